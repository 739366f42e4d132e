"""The scripts that workflows run: they trust nothing that a pull request could have written."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ci_scripts import load

ROOT = Path(__file__).resolve().parents[1]


def script(name: str) -> ModuleType:
    """A script of ci/github as a module."""
    return load(f"github/{name}.py", "ci_github_" + name)


SELF_HOSTED = '[{"name": "graviton4", "labels": ["self-hosted", "graviton4"], "expect": "cpu=neoverse-v2"}]'


def test_githubs_own_runners_measure_without_any_setting():
    names = [r["name"] for r in script("matrix").runners("", event="push", fork=False)]
    assert names == ["github-x86-64", "github-arm64"]


def test_code_of_a_fork_never_reaches_a_self_hosted_runner():
    matrix = script("matrix")
    assert [r["name"] for r in matrix.runners(SELF_HOSTED, event="push", fork=False)][-1] == "graviton4"
    assert [r["name"] for r in matrix.runners(SELF_HOSTED, event="pull_request", fork=False)][-1] == "graviton4"
    forked = matrix.runners(SELF_HOSTED, event="pull_request", fork=True)
    assert not [r for r in forked if "self-hosted" in r["labels"]]


def test_the_runners_engine_keeps_its_settings_and_gets_the_image_store():
    given = '{"cgroup-parent": "/actions_job", "features": {"buildkit": true}}'
    wanted = {"cgroup-parent": "/actions_job", "features": {"buildkit": True, "containerd-snapshotter": True}}
    assert json.loads(script("engine").with_image_store(given)) == wanted
    assert json.loads(script("engine").with_image_store("")) == {"features": {"containerd-snapshotter": True}}


def test_only_githubs_own_runners_are_changed(monkeypatch: pytest.MonkeyPatch):
    engine = script("engine")
    monkeypatch.setattr(engine.subprocess, "run", lambda *_, **__: pytest.fail("a program was run"))
    monkeypatch.delenv("RUNNER_ENVIRONMENT", raising=False)
    assert engine.main() == 0
    monkeypatch.setenv("RUNNER_ENVIRONMENT", "self-hosted")
    assert engine.main() == 0


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("{}", "MOELAB_RUNNERS is a dict, expected a list"),
        ('[{"name": "a"}]', "expected the keys name, labels, expect"),
        ('[{"name": "A b", "labels": ["x"], "expect": ""}]', "runner name 'A b'"),
        ('[{"name": "a", "labels": [], "expect": ""}]', "labels of a: []"),
        ('[{"name": "a", "labels": ["x;y"], "expect": ""}]', "labels of a"),
        ('[{"name": "a", "labels": ["x"], "expect": "$(id)"}]', "expect of a"),
        ("[", "Expecting value"),
    ],
)
def test_a_wrong_runner_variable_says_what_is_wrong(variable: str, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        script("matrix").runners(variable, event="push", fork=False)


def entry(case: str = "gpt-oss-20b/t16", verdict: str = "same", value: float = 1.0) -> dict[str, Any]:
    return {
        "extra_info": {
            "case": {"id": case},
            "ratio": {"value": value, "low": value * 0.99, "high": value * 1.01},
            "verdict": {"table": verdict},
        }
    }


def result(*entries: dict[str, Any]) -> dict[str, Any]:
    baseline = {"extra_info": {"case": {"id": "x"}, "ratio": None, "verdict": None}}
    return {"benchmarks": [baseline, *entries]}


def lay(folder: Path, look: str, runner: str, document: object) -> None:
    target = folder / f"ab-{look}-{runner}"
    target.mkdir(parents=True)
    (target / f"{runner}.json").write_text(json.dumps(document))


def test_an_undecided_cell_is_looked_at_again_and_then_judged(tmp_path: Path):
    verdict = script("verdict")
    lay(tmp_path, "first", "arm", result(entry("a", "undecided"), entry("b", "faster", 1.2)))
    lay(tmp_path, "first", "x86", result(entry("a", "same")))
    runners = [{"name": "arm"}, {"name": "x86"}]
    assert verdict.undecided(verdict.read(tmp_path), runners) == [{"name": "arm"}]
    lay(tmp_path, "second", "arm", result(entry("a", "slower", 0.9), entry("b", "slower", 0.9)))
    cells = {(c.runner, c.case): c for c in verdict.read(tmp_path)}
    assert cells["arm", "a"].verdict == "slower"  # the second look decides what the first left open
    assert cells["arm", "b"].verdict == "faster"  # and overturns nothing that the first decided


@pytest.mark.parametrize(("verdicts", "status"), [(["same", "undecided"], 0), (["faster", "slower"], 1)])
def test_the_gate_closes_on_slower_and_on_nothing_else(tmp_path: Path, verdicts: list[str], status: int):
    lay(tmp_path, "first", "arm", result(*(entry(str(i), v) for i, v in enumerate(verdicts))))
    program = [sys.executable, "ci/github/verdict.py", "gate", str(tmp_path)]
    assert subprocess.run(program, cwd=ROOT, check=False, capture_output=True).returncode == status


def test_the_gate_closes_where_nothing_was_measured(tmp_path: Path):
    program = [sys.executable, "ci/github/verdict.py", "gate", str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no cell was measured" in done.stderr


HOSTILE: list[Any] = [
    result(entry("<img src=x onerror=alert(1)>")),
    result(entry("@everyone look")),
    result(entry("a` | b | `c\n\n# heading")),
    result(entry("a", "FASTER!!")),
    result(entry("a", "same", float("inf"))),
    result(entry("a", "same", -1.0)),
    result({"extra_info": {"verdict": "x", "ratio": "y"}}),
    [],
    {"benchmarks": "x"},
    result(entry(["a"])),  # type: ignore[arg-type]
    result(entry("a", "same", True)),
]  # fmt: skip


@pytest.mark.parametrize("document", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_result_file_is_refused_and_never_shown(tmp_path: Path, document: object):
    lay(tmp_path, "first", "arm", document)
    with pytest.raises(ValueError, match=r"unexpected|not a result file"):
        script("verdict").read(tmp_path)


def test_the_comment_shows_worst_first_and_says_what_a_fork_is(tmp_path: Path):
    lay(tmp_path, "first", "arm", result(entry("a", "same"), entry("b", "slower", 0.8)))
    cells = script("verdict").read(tmp_path)
    comment = script("comment")
    text = comment.render(cells, sha="a" * 40, fork=True, run_url="https://host/o/r/actions/runs/1")
    assert text.startswith(comment.MARK)
    assert "From a fork" in text
    assert text.index("`b`") < text.index("`a`")
    assert "1 slower, 1 same" in text
    assert "[run](https://host/o/r/actions/runs/1)" in text
    assert "javascript" not in comment.render([], sha="x", fork=False, run_url="javascript:alert(1)")


class Recorder(BaseHTTPRequestHandler):
    """A stand-in for GitHub's API with one open pull request and, once written, one comment."""

    calls: list[tuple[str, str, Any]]
    comments: list[dict[str, Any]]

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        type(self).calls.append((self.command, self.path, body))
        found: Any = {}
        if "/pulls?" in self.path:
            found = [{"number": 7, "head": {"sha": "b" * 40}}] if "head=fork%3Atopic%26x" in self.path else []
        elif self.command == "GET":
            found = self.comments
        elif self.command == "POST":
            self.comments.append({"id": 5, "user": {"type": "Bot"}, "body": body["body"]})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    do_GET = do_POST = do_PATCH = answer  # noqa: N815 - the names that http.server looks for

    def log_message(self, *_: object) -> None:
        """Quiet."""


def test_one_comment_is_written_and_then_updated(tmp_path: Path):
    handler = type("Handler", (Recorder,), {"calls": [], "comments": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        lay(tmp_path, "first", "arm", result(entry()))
        env = {
            **os.environ, "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}", "GITHUB_REPOSITORY": "o/r",
            "GITHUB_TOKEN": "t", "HEAD_OWNER": "fork", "HEAD_BRANCH": "topic&x", "HEAD_SHA": "b" * 40, "FORK": "true",
            "RUN_URL": "https://host/run",
        }  # fmt: skip
        program = [sys.executable, "ci/github/comment.py", str(tmp_path)]
        for expected in ("written", "updated"):
            done = subprocess.run(program, cwd=ROOT, env=env, check=True, capture_output=True, text=True)
            assert done.stdout == f"comment: {expected} on pull request 7\n"
        gone = subprocess.run(
            program, cwd=ROOT, env={**env, "HEAD_SHA": "c" * 40}, check=True, capture_output=True, text=True
        )
        assert "no open pull request" in gone.stdout
    finally:
        server.shutdown()
        server.server_close()
    methods = [call[0] for call in handler.calls if call[0] != "GET"]  # type: ignore[attr-defined]
    assert methods == ["POST", "PATCH"]


def git(*arguments: str, cwd: Path) -> str:
    return subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with an origin, as a job has it."""
    git("init", "-q", "--bare", "-b", "main", "origin.git", cwd=tmp_path)
    git("clone", "-q", "origin.git", "work", cwd=tmp_path)
    work = tmp_path / "work"
    (work / "file").write_text("x")
    git("add", ".", cwd=work)
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a", cwd=work)
    git("push", "-q", "origin", "HEAD:main", cwd=work)
    return work


def archive(work: Path, folder: Path, ref: str = "refs/heads/main") -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(ROOT / "ci" / "github" / "archive.py"), str(folder)]
    return subprocess.run(
        program, cwd=work, env={**os.environ, "GITHUB_REF": ref}, check=False, capture_output=True, text=True
    )


def full_result(commit: str) -> str:
    return json.dumps({"benchmarks": [], "moelab": {"source": {"commit": commit}}})


def test_results_are_archived_beside_what_is_there(checkout: Path, tmp_path: Path):
    folder = tmp_path / "results"
    folder.mkdir()
    for commit in ("1" * 40, "2" * 40):
        (folder / "arm.json").write_text(full_result(commit))
        assert archive(checkout, folder).returncode == 0
    listed = git("ls-tree", "-r", "--name-only", "results", cwd=tmp_path / "origin.git").splitlines()
    assert listed == [f"results/arm/{'1' * 40}.json", f"results/arm/{'2' * 40}.json"]
    assert "nothing new" in archive(checkout, folder).stdout
    assert git("status", "--porcelain", cwd=checkout) == ""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("arm.json", "{}", "no moelab result file"),
        ("arm.json", "[1]", "no moelab result file"),
        ("arm.json", "nonsense", "Expecting value"),
        ("arm.json", full_result("../../x"), "expected 40 hex digits"),
        ("A B.json", full_result("1" * 40), "expected a runner's name"),
    ],
)
def test_what_is_no_result_is_not_archived(checkout: Path, tmp_path: Path, name: str, text: str, message: str):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / name).write_text(text)
    done = archive(checkout, folder)
    assert done.returncode == 1
    assert message in done.stderr
    assert "results" not in git("branch", "--list", cwd=tmp_path / "origin.git")


def test_only_main_is_archived(checkout: Path, tmp_path: Path):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "arm.json").write_text(full_result("1" * 40))
    done = archive(checkout, folder, "refs/pull/1/merge")
    assert done.returncode == 1
    assert "is not main" in done.stderr


def test_the_site_shows_the_newest_result_of_each_machine(tmp_path: Path):
    for runner, name, when in (("arm", "1", "2026-01-01"), ("arm", "2", "2026-02-01"), ("x86", "3", "2026-01-15")):
        folder = tmp_path / "archive" / "results" / runner
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps({"datetime": when}))
    evidence = tmp_path / "evidence" / "zen4"
    evidence.mkdir(parents=True)
    (evidence / "run.json").write_text("{}")
    (evidence.parent / "index.json").write_text("{}")
    chosen = script("site").chosen(tmp_path / "archive", tmp_path / "evidence")
    assert [path.name for path in chosen] == ["2.json", "3.json", "run.json"]


def test_inputs_of_a_manual_start_are_arguments_or_refused():
    bench = script("bench")
    given = {"INPUT_WORKLOAD": "gpt-oss-20b,tiny", "INPUT_TOKENS": "1,16", "EXPECT": "arch=aarch64"}
    assert bench.options(given) == [
        "--workload", "gpt-oss-20b,tiny", "--tokens", "1,16", "--expect", "arch=aarch64",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="--backend is 'moelab; rm -rf ~'"):
        bench.options({"INPUT_BACKEND": "moelab; rm -rf ~"})


def test_the_pinned_debian_is_the_images_base():
    spec = importlib.util.spec_from_file_location("ci_docker_debian", ROOT / "ci" / "docker_debian.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    words = module.command(["./ci/lab", "arm", "a b"])
    assert words[-3:] == ["./ci/lab", "arm", "a b"]
    assert module.base_image() in words
    assert "@sha256:" in module.base_image()
