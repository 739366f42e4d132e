"""What the Arm suite needs from the system: a cross compiler, QEMU's user-mode emulator, clangs to compare."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

import system_packages

PACKAGES = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",  # also brings the arm64 C and C++ libraries
    "qemu-aarch64": "qemu-user",  # not qemu-user-static: only the dynamic one counts instructions (plugins)
}

CLANGS = tuple(f"clang++-{version}" for version in range(14, 40))


def missing_programs(wanted: Mapping[str, str] = PACKAGES) -> tuple[str, ...]:
    return tuple(program for program in wanted if shutil.which(program) is None)


def install(wanted: Mapping[str, str] = PACKAGES) -> str | None:
    """Installs what is missing of these programs where this process may.

    None if all is there, else what is not, and how to get it.
    """
    programs = missing_programs(wanted)
    if not programs:
        return None
    reason = system_packages.install([wanted[program] for program in programs])
    programs = missing_programs(wanted)
    if not programs:
        return None
    packages = [wanted[program] for program in programs]
    return f"not found: {', '.join(programs)} ({reason or 'although installed'}). {system_packages.by_hand(packages)}"


def install_clangs() -> list[str]:
    """The oldest and the newest clang that this distribution has, installed where this process may: clang++-14 ...

    They are no condition of the suite: what is missing is said, loudly, and the rest is returned.
    """
    offered = _offered_clangs() or [name for name in CLANGS if shutil.which(name)]
    wanted = oldest_and_newest(offered)
    missing = [name.replace("++", "") for name in wanted if shutil.which(name) is None]
    reason = system_packages.install(missing) if missing else None
    here = [name for name in wanted if shutil.which(name)]
    if len(here) < max(len(wanted), 1):
        absent = ", ".join(name for name in wanted if name not in here) or "clang"
        text = f"!! arm: the inner loops are NOT READ as built by {absent}: {reason or 'none here'}"
        print(text, file=sys.stderr, flush=True)
    return here


def oldest_and_newest(names: Sequence[str]) -> list[str]:
    """The first and the last of names in order; one where they are the same."""
    return list(dict.fromkeys([*names[:1], *names[-1:]]))


def version_line(program: str) -> str:
    """The first line that a program says about itself."""
    done = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[0]


def _offered_clangs() -> list[str]:
    """What apt could install, by version."""
    if shutil.which("apt-cache") is None:
        return []
    search = ["apt-cache", "search", "--names-only", "^clang-[0-9]+$"]
    done = subprocess.run(search, check=False, capture_output=True, text=True)
    packages = {line.split()[0] for line in done.stdout.splitlines()}
    return [name for name in CLANGS if name.replace("++", "") in packages]


def say(text: str) -> None:
    print(f"arm: {text}", flush=True)


def not_run(reason: str, what: str = "Arm suite") -> int:
    """Says that it did not run, so that nobody takes silence for success; the exit status."""
    in_ci = os.environ.get("CI") == "true"
    bar = "!" * 100
    print(f"{bar}\n!! {what}: DID NOT RUN: {reason}\n{bar}", file=sys.stderr, flush=True)
    return 1 if in_ci else 0
