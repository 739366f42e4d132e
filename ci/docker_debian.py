#!/usr/bin/env python3
"""Runs a command of this clone in the pinned Debian base image: docker_debian.py -- COMMAND ARGUMENT.

Packages come from the dated snapshot that the base image names (dockerfiles/apt/install.sh), so that compiler and
emulator are the same every time, whatever the runner has. The clone is copied into the container: nothing of it is
changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ca-certificates", "g++", "g++-aarch64-linux-gnu", "git", "python3-venv", "qemu-user", "qemu-user-static")
# In the container: packages, then a clone that belongs to root there, then the command as given.
SCRIPT = """
sh /src/dockerfiles/apt/install.sh $PACKAGES
git config --global --add safe.directory "*"
git clone -q /src /clone
cd /clone
exec "$@"
"""


def base_image() -> str:
    """The base image with its digest, as the Dockerfile pins it."""
    for line in (ROOT / "dockerfiles" / "Dockerfile").read_text().splitlines():
        if line.startswith("ARG BASE="):
            return line.partition("=")[2]
    raise ValueError("dockerfiles/Dockerfile pins no BASE")


def command(wanted: list[str]) -> list[str]:
    """Docker's command line."""
    return [
        "docker", "run", "--rm", "--volume", f"{ROOT}:/src:ro", "--env", "CI",
        "--env", f"PACKAGES={' '.join(PACKAGES)}", base_image(), "sh", "-ec", SCRIPT, "sh", *wanted,
    ]  # fmt: skip


def main() -> int:
    """Exit status of the command."""
    wanted = sys.argv[1:]
    if not wanted or wanted[0] != "--" or len(wanted) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if shutil.which("docker") is None:
        print("docker_debian: docker is not installed here", file=sys.stderr)
        return 1
    return subprocess.run(command(wanted[1:]), check=False, env=dict(os.environ)).returncode


if __name__ == "__main__":
    sys.exit(main())
