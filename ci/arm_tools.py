"""What the emulated Arm suite needs from the system: a cross compiler and QEMU's user-mode emulator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

PACKAGES = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",  # also brings the arm64 C and C++ libraries
    "qemu-aarch64": "qemu-user",  # not qemu-user-static: only the dynamic one counts instructions (plugins)
}


@dataclass(frozen=True)
class Missing:
    """Programs that are not here, and why they could not be installed."""

    programs: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        packages = " ".join(PACKAGES[program] for program in self.programs)
        return (
            f"not found: {', '.join(self.programs)} ({self.reason}). "
            f"On Debian and Ubuntu: sudo apt-get install {packages}"
        )


def missing_programs() -> tuple[str, ...]:
    return tuple(program for program in PACKAGES if shutil.which(program) is None)


def install() -> Missing | None:
    """Installs what is missing with apt where this process may; otherwise says what is missing."""
    programs = missing_programs()
    if not programs:
        return None
    prefix = _privilege()
    if shutil.which("apt-get") is None:
        return Missing(programs, "no apt-get here")
    if prefix is None:
        return Missing(programs, "installing needs root")
    packages = [PACKAGES[program] for program in programs]
    say(f"installing the Debian packages {', '.join(packages)}")
    command = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    for step in (["update"], ["install", "--no-install-recommends", *packages]):
        done = subprocess.run([*command, *step], check=False, capture_output=True, text=True)
        if done.returncode != 0 and step[0] == "install":  # a broken third-party source fails the update alone
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
    programs = missing_programs()
    return Missing(programs, "apt-get install failed, see above") if programs else None


def _privilege() -> list[str] | None:
    """How to become root: not needed, sudo without a password on a CI machine, or not at all."""
    if os.geteuid() == 0:
        return []
    if os.environ.get("CI") == "true" and shutil.which("sudo"):
        allowed = subprocess.run(["sudo", "-n", "true"], check=False, capture_output=True)
        if allowed.returncode == 0:
            return ["sudo", "-n"]
    return None


def say(text: str) -> None:
    print(f"arm: {text}", flush=True)


def not_run(reason: str) -> int:
    """Says that the suite did not run, so that nobody takes silence for success; the exit status."""
    in_ci = os.environ.get("CI") == "true"
    bar = "!" * 100
    print(f"{bar}\n!! The Arm suite DID NOT RUN: {reason}\n{bar}", file=sys.stderr, flush=True)
    return 1 if in_ci else 0
