"""Installs the pinned CPU build of torch into the environment whose Python runs this script. Never a CUDA build.

On x86-64 plain `pip install torch` takes a CUDA build of several gigabytes from PyPI. So pip is asked for the full
local version `+cpu`, which it finds only where somebody has configured a place that has it; elsewhere uv takes it
from torch's own index, which uv knows by itself. On aarch64 PyPI has a CPU build up to 2.10.0. An index that cannot be
reached must neither hang nor pass unseen: time-outs are short, and what was installed is looked at afterwards.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

VERSIONS = {"x86_64": "2.13.0", "aarch64": "2.10.0"}
CONSTRAINTS = Path(__file__).resolve().parent / "constraints.txt"
SECONDS_WITHOUT_AN_ANSWER = "15"

# Reads torch/version.py without importing torch, which takes seconds.
PROBE = """
import runpy
from importlib.util import find_spec
from pathlib import Path

version = runpy.run_path(str(Path(find_spec("torch").origin).with_name("version.py")))
print(version["__version__"], version.get("cuda") or version.get("hip") or version.get("xpu") or "cpu")
"""

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


class Failed(Exception):  # noqa: N818 - it reads as a sentence where it is raised
    """No CPU build of torch could be installed; the message says what was tried."""


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command, its output captured."""
    return subprocess.run(list(command), check=False, capture_output=True, text=True)


def installed(execute: Run) -> tuple[str, str] | None:
    """(version, "cpu" or the GPU toolkit's version) of the torch that this environment has."""
    probe = execute([sys.executable, "-c", PROBE])
    words = probe.stdout.split()
    return (words[0], words[1]) if probe.returncode == 0 and len(words) == 2 else None


def attempts(machine: str) -> list[list[str]]:
    """The commands to try, in order."""
    version = VERSIONS[machine]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    pip += ["--timeout", SECONDS_WITHOUT_AN_ANSWER, "--retries", "1"]
    # Byte code is made on first import: a fifth of torch is ever imported.
    pip += ["--constraint", str(CONSTRAINTS), "--only-binary", "torch", "--no-compile"]
    if machine == "aarch64":
        return [[*pip, f"torch=={version}"]]
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--torch-backend", "cpu"]
    uv += ["--constraint", str(CONSTRAINTS), f"torch=={version}"]
    return [[*pip, f"torch=={version}+cpu"], [*pip, "uv"], uv]


def right(found: tuple[str, str] | None, machine: str) -> bool:
    """Whether an installed torch is the pinned CPU build."""
    return found is not None and found[0].partition("+")[0] == VERSIONS[machine] and found[1] == "cpu"


def install(machine: str, execute: Run = run) -> str:
    """Version of the CPU build of torch that is installed afterwards. Raises Failed."""
    if machine not in VERSIONS:
        raise Failed(f"torch: no CPU build is pinned for {machine}, only for {', '.join(VERSIONS)}")
    found = installed(execute)
    said = []
    for command in attempts(machine):
        if right(found, machine):
            break
        outcome = execute(command)
        if outcome.returncode:
            said.append(f"  {' '.join(command[2:4])} … {command[-1]}: {last_line(outcome.stderr or outcome.stdout)}")
        found = installed(execute)
    if found is None:
        raise Failed(f"torch: no CPU build of {VERSIONS[machine]} could be installed\n" + "\n".join(said))
    if not right(found, machine):
        raise Failed(
            f"torch: {found[0]} ({found[1]}) is installed, expected the CPU build of {VERSIONS[machine]}\n"
            + "\n".join(said)
        )
    return found[0]


def last_line(text: str) -> str:
    """The last line that says something: the reason, in pip's and uv's output."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def main() -> int:
    """Exit status 0 with the version printed, 1 with the reason."""
    try:
        version = install(platform.machine())
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    print(f"torch {version}, CPU build")
    return 0


if __name__ == "__main__":
    sys.exit(main())
