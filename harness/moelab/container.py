"""Entry point of the images: looks at the container it runs in, says what it found, then runs the moelab command.

The lines go to standard error, so that a command's output stays its own. Nothing here stops a command but a container
in which it cannot work: one that gives no room to write or no kernel to run.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moelab import machine

BF16_ISAS = ("amx_bf16", "avx512_bf16", "neon_bf16", "sve_bf16")
# Below this the smallest model layer (weights twice: the caller's and the packed ones) does not fit.
SMALL_MEMORY = 6 * 2**30
MEASURING = ("bench", "reproduce")


def describe(facts: Mapping[str, Any], isas: Sequence[str]) -> list[str]:
    """What this container is, one line each, the plainest first. `facts` as moelab.machine.gather() gives them."""
    cpu, cpus, memory, cgroup = facts["cpu"], facts["cpus"], facts["memory"], facts["cgroup"]
    limit = "no limit" if cgroup["cpu_limit"] is None else f"limit {cgroup['cpu_limit']:g}"
    room = "no limit" if cgroup["memory_limit"] is None else f"limit {cgroup['memory_limit'] / 2**30:.1f} GiB"
    lines = [
        f"{facts['architecture']}, {cpu['name']}, {cpus['allowed']} usable CPUs on {cpus['cores']} cores ({limit})",
        f"memory: {memory['available'] / 2**30:.1f} GiB available ({room})",
        f"kernels: {isas[0]} (usable here: {', '.join(isas)})",
    ]
    if not set(isas) & set(BF16_ISAS):
        lines.append(f"this CPU has no BF16 instructions: {isas[0]} is used")
    if facts["emulated"]:
        lines.append("emulated: correctness only, times would mean nothing")
    return lines


def warnings(facts: Mapping[str, Any], command: str | None) -> list[str]:
    """What will make a measurement worse or keep it from being traced."""
    found = []
    cgroup, available = facts["cgroup"], facts["memory"]["available"]
    if command in MEASURING:
        if cgroup["cpu_limit"] is not None and cgroup["cpu_limit"] < facts["cpus"]["allowed"]:
            found.append("--cpus throttles in slices of time; --cpuset-cpus gives whole cores, which measure better")
        if available < SMALL_MEMORY:
            found.append(f"{available / 2**30:.1f} GiB of memory: models that do not fit will be skipped")
        if not os.environ.get("MOELAB_IMAGE_DIGEST"):
            found.append("the result will not name its image: give it with -e MOELAB_IMAGE_DIGEST (see the README)")
    return found


def obstacles(isas: Sequence[str]) -> list[str]:
    """Why nothing can work here; empty where it can."""
    found = []
    if not isas:
        found.append(f"the kernels in this image are not for this machine ({platform.machine()})")
    try:
        with tempfile.TemporaryFile():
            pass
    except OSError as error:
        found.append(f"no room for temporary files ({error.strerror}): with --read-only, add --tmpfs /tmp")
    return found


def results_obstacle(command: str | None, folder: Path) -> str | None:
    """Why results could not be written into the working folder; None where they can or need not."""
    if command not in MEASURING or os.access(folder, os.W_OK):
        return None
    return (
        f"{folder} cannot be written by user {os.getuid()}: "
        f'mount a folder there (-v "$PWD/results:/results") that is yours, with --user "$(id -u):$(id -g)"'
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks, then runs `moelab` with the arguments; exit status 3 where the container cannot work."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in given if not word.startswith("-")), None)
    import moelab_kernels  # after sys.argv: loading the library may fail, with its own message

    isas = moelab_kernels.isas()
    stopped = obstacles(isas)
    blocked = results_obstacle(command, Path.cwd()) if "--out" not in given else None
    if blocked:
        stopped.append(blocked)
    if not stopped and command is not None:
        facts: Any = machine.gather()
        if facts["emulated"]:
            os.environ["MOELAB_EMULATED"] = "1"  # what this process starts must not measure either
        for line in [*describe(facts, isas), *(f"note: {text}" for text in warnings(facts, command))]:
            print(f"moelab container: {line}", file=sys.stderr)
    for line in stopped:
        print(f"moelab container: {line}", file=sys.stderr)
    if stopped:
        return 3
    from moelab import cli

    return cli.main(given)


if __name__ == "__main__":
    sys.exit(main())
