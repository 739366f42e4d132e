"""Nothing secret or personal gets into what a run writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moelab.redaction import HIDDEN, Redactor

ROOT = Path(__file__).resolve().parents[1]
SECRETS = {
    "GITHUB_TOKEN": "ghp_canaryaaaaaaaa",
    "AWS_SECRET_ACCESS_KEY": "canary/bbbb+bbbb",
    "PYPI_PASSWORD": "canary-cccc cccc",
    "DOCKER_AUTH_CONFIG": '{"auths":{"r":{"auth":"canarydddd"}}}',
    "HF_TOKEN": "hf_canaryeeee",
}
CLEANER = Redactor(
    {**SECRETS, "TOKEN_COUNT": "16", "SSH_AUTH_SOCK": "/run/agent.1", "HOSTNAME": "build-host-7", "PATH": "/usr/bin"},
    repository=Path("/home/mallory/moelab"),
    home="/home/mallory",
    user="mallory",
    host="mallorys-laptop",
)


@pytest.mark.parametrize(
    ("given", "published"),
    [
        ("failed with ghp_canaryaaaaaaaa twice", f"failed with {HIDDEN} twice"),
        ("https://bob:canary@example.org/x.git", "https://example.org/x.git"),
        ("https://ghp_x@example.org/x.git", "https://example.org/x.git"),
        ("get /x?private_token=canary&a=1", f"get /x?private_token={HIDDEN}&a=1"),
        ("run --token canary --quick", f"run --token {HIDDEN} --quick"),
        ("password: canary", f"password: {HIDDEN}"),
        ('{"api_key": "canary"}', f'{{"api_key": "{HIDDEN}"}}'),
        ("/home/mallory/moelab/tests/a.py:Cls", "tests/a.py:Cls"),
        ("trace:/home/mallory/routing.npz", "trace:~/routing.npz"),
        ("/scratch/mallory/x", "/scratch/USER/x"),
        ("no route to mallorys-laptop:22", "no route to HOST:22"),
        ("asked mallory for it", "asked USER for it"),
        ("on build-host-7", "on HOST"),
        # And nothing else:
        ("tokens 1,16,256", "tokens 1,16,256"),
        ("tokens=16, tokens: 16", "tokens=16, tokens: 16"),
        ("--tokens 16 --backend moelab", "--tokens 16 --backend moelab"),
        ("/usr/home/mallory2/x at 16", "/usr/home/mallory2/x at 16"),
        ("no agent at /run/agent.1", "no agent at /run/agent.1"),
        ("AuthenticAMD 25/17/1", "AuthenticAMD 25/17/1"),
    ],
)
def test_a_string(given: str, published: str) -> None:
    assert CLEANER.clean(given) == published


def test_an_account_and_a_host_of_the_products_name_change_nothing() -> None:
    cleaner = Redactor({}, repository=None, home="/", user="moelab", host="localhost")
    assert cleaner.clean("moelab /x/moelab localhost /") == "moelab /x/moelab localhost /"


def test_strings_anywhere_in_a_document_and_nothing_but_strings() -> None:
    given = {"a": [{"b": "x hf_canaryeeee"}, 1.5, None, True], "c": ("d",)}
    assert CLEANER.clean(given) == {"a": [{"b": f"x {HIDDEN}"}, 1.5, None, True], "c": ["d"]}


def test_a_run_beside_secrets_publishes_none(tmp_path: Path) -> None:
    """A backend whose exception holds the whole environment, paths and a URL; a remote with a password; a home."""
    home = tmp_path / "home" / "mallory-canary"
    home.mkdir(parents=True)
    remote = "https://bob:canary-remote@example.org/canary-path.git?token=canary-query"
    for command in (["init", "-q"], ["remote", "add", "origin", remote], ["checkout", "-q", "-b", "canary-branch"]):
        subprocess.run(["git", *command], cwd=home, check=True)
    (home / "leaky.py").write_text(
        f"""
import importlib.util, os, socket
spec = importlib.util.spec_from_file_location("honest", {str(ROOT / "tests/backends_for_tests.py")!r})
honest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(honest)

class Honest(honest.Honest):
    pass

class Leaky(honest.Honest):
    name = "Leaky"
    def prepare(self, *arguments):
        secrets = [value for name, value in os.environ.items() if "canary" in value]
        raise RuntimeError(f"{{secrets}} {{__file__}} {{socket.gethostname()}} https://u:canary-url@example.org")
"""
    )
    names = f"{home}/leaky.py:Honest,{home}/leaky.py:Leaky"
    options = ["--workload", "tiny", "--tokens", "2", "--threads", "1", "--quick", "--budget", "0", "--cache", "warm",
               "--backend", names, "--baseline", f"{home}/leaky.py:Honest", "--out", str(home / "out")]  # fmt: skip
    path = os.pathsep.join([str(ROOT / "harness"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **SECRETS, "PYTHONPATH": path, "HOME": str(home), "USER": "mallory-canary",
                   "LOGNAME": "mallory-canary", "HOSTNAME": "canary-host"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "moelab", "bench", *options],
        cwd=home, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr  # Leaky failed
    written = [path for path in (home / "out").rglob("*") if path.is_file()]
    assert {path.suffix for path in written} >= {".json", ".html", ".md"}
    for path in written:
        text = path.read_text(errors="replace")
        at = text.find("canary")
        assert at < 0, f"{path.name}: …{text[max(0, at - 80) : at + 40]}…"
    assert HIDDEN in (home / "out/result.json").read_text(), "the exception is in the file, or this test shows nothing"
