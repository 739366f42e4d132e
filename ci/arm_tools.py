"""What the emulated Arm suite needs from the system: a cross compiler and QEMU's user-mode emulator."""

from __future__ import annotations

import os
import shutil
import sys

import system_packages

PACKAGES = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",  # also brings the arm64 C and C++ libraries
    "qemu-aarch64": "qemu-user",  # not qemu-user-static: only the dynamic one counts instructions (plugins)
}


def missing_programs() -> tuple[str, ...]:
    return tuple(program for program in PACKAGES if shutil.which(program) is None)


def install() -> str | None:
    """Installs what is missing where this process may. None if all is there, else what is not, and how to get it."""
    programs = missing_programs()
    if not programs:
        return None
    reason = system_packages.install([PACKAGES[program] for program in programs])
    programs = missing_programs()
    if not programs:
        return None
    packages = [PACKAGES[program] for program in programs]
    return f"not found: {', '.join(programs)} ({reason or 'although installed'}). {system_packages.by_hand(packages)}"


def say(text: str) -> None:
    print(f"arm: {text}", flush=True)


def not_run(reason: str, what: str = "Arm suite") -> int:
    """Says that it did not run, so that nobody takes silence for success; the exit status."""
    in_ci = os.environ.get("CI") == "true"
    bar = "!" * 100
    print(f"{bar}\n!! {what}: DID NOT RUN: {reason}\n{bar}", file=sys.stderr, flush=True)
    return 1 if in_ci else 0
