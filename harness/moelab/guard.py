"""Looks at a worker from outside, between samples: whether it keeps to its CPUs and its priority, and is alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path


def trespass(pid: int, cpus: Collection[int]) -> str | None:
    """What a process does that it may not; None if nothing, or if it is gone.

    `cpus` are those that it was bound to. Its priority has to be that of this process, which started it.
    """
    try:
        for task in (int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()):
            elsewhere = sorted(os.sched_getaffinity(task) - set(cpus))
            if elsewhere:
                return f"a thread of its process may run on CPU {elsewhere[0]}, which was not granted"
            nice, policy = os.getpriority(os.PRIO_PROCESS, task), os.sched_getscheduler(task)
            if nice != os.getpriority(os.PRIO_PROCESS, 0) or policy != os.sched_getscheduler(0):
                return f"the priority of its process was changed (nice {nice}, policy {policy})"
    except (FileNotFoundError, ProcessLookupError):
        return None  # a thread that has just ended, or all of them
    for child in descendants(pid):
        return f"a process that it started is alive: {_name(child)}"
    return None


def descendants(pid: int) -> Iterator[int]:
    """Living processes below this one. Needs no more than the kernel's list of children; none where it has no list."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, file.read_text().split()):
                if _state(child) not in ("Z", "X", ""):
                    yield child
                yield from descendants(child)


def end_descendants(pid: int) -> None:
    """Ends what a worker has started and left."""
    for child in list(descendants(pid)):
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)


def waited(*pids: int) -> float:
    """Seconds that the first threads of these processes have been ready to run while something else had the CPU.

    By the kernel's account (second number of schedstat, nanoseconds); nothing where it keeps none.
    """
    total = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/schedstat").read_text().split()
            total += int(fields[1]) if len(fields) > 1 else 0
    return total * 1e-9


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return str(pid)
