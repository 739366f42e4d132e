"""Debian packages that a script needs: installed where this process may, named where it may not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence


def install(packages: Sequence[str]) -> str | None:
    """Installs them with apt-get. None on success, else why not."""
    if shutil.which("apt-get") is None:
        return "no apt-get here"
    prefix = _privilege()
    if prefix is None:
        return "installing needs root"
    print(f"installing the Debian packages {', '.join(packages)}", flush=True)
    command = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    for step in (["update"], ["install", "--no-install-recommends", *packages]):
        done = subprocess.run([*command, *step], check=False, capture_output=True, text=True)
        if done.returncode != 0 and step[0] == "install":  # a broken third-party source fails the update alone
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
            return "apt-get install failed, see above"
    return None


def by_hand(packages: Sequence[str]) -> str:
    """What a person would type."""
    return f"On Debian and Ubuntu: sudo apt-get install {' '.join(packages)}"


def _privilege() -> list[str] | None:
    """How to become root: not needed, sudo without a password on a CI machine, or not at all."""
    if os.geteuid() == 0:
        return []
    if os.environ.get("CI") == "true" and shutil.which("sudo"):
        allowed = subprocess.run(["sudo", "-n", "true"], check=False, capture_output=True)
        if allowed.returncode == 0:
            return ["sudo", "-n"]
    return None
