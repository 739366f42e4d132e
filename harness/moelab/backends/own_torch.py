"""A virtual environment with the CPU build of one version of torch, for a peer that the running torch does not suit."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

_PROBE = "import torch; print(torch.__version__, torch.version.cuda or torch.version.hip or 'cpu')"


def make_venv(place: Path, version: str) -> None:
    """Raises RuntimeError with what was tried unless the environment ends up with this version, built for CPUs.

    pip is asked for the full local version, so that it cannot bring a CUDA build; where it is configured with no place
    that has one, uv knows torch's own index.
    """
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--timeout", "15", "--retries", "1"]
    uv = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python, "--torch-backend", "cpu"]
    said: list[str] = []
    _run([*pip, "numpy"], said)
    if not _run([*pip, f"torch=={version}+cpu"], said) and _run([*pip, "uv"], said):
        _run([*uv, f"torch=={version}"], said)
    found = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False).stdout.split()
    if len(found) != 2 or found[0].partition("+")[0] != version or found[1] != "cpu":
        what = " ".join(found) or "no torch"
        raise RuntimeError(
            f"the CPU build of torch {version} could not be installed ({what} is there)\n" + "\n".join(said)
        )


def _run(command: list[str], said: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        said.append(f"  {' '.join(command[2:4])} ... {command[-1]}: {lines[-1]}")
    return done.returncode == 0
