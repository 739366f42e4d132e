"""How many CPUs a run may use, and which."""

from __future__ import annotations

import os
from pathlib import Path

from moelab.machine import cgroup_cpu_limit


def usable_cpus(root: Path = Path("/")) -> list[int]:
    """CPUs of this process's affinity, one of each core before the second threads of cores."""
    allowed = sorted(os.sched_getaffinity(0))
    first: list[int] = []
    second: list[int] = []
    seen = set()
    for cpu in allowed:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        try:
            core = (folder / "thread_siblings_list").read_text().strip()
        except OSError:
            core = str(cpu)
        (second if core in seen else first).append(cpu)
        seen.add(core)
    return first + second


def default_threads(root: Path = Path("/")) -> int:
    """One per core that is allowed, no more than a container's CPU limit."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        try:
            cores.add((folder / "thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    limit = cgroup_cpu_limit(root)
    return max(1, len(cores) if limit is None else min(len(cores), int(limit)))


def bound_cpus(threads: int, root: Path = Path("/")) -> list[int]:
    """The CPUs that workers are bound to: as many as threads. ValueError where there are fewer."""
    cpus = usable_cpus(root)
    if threads > len(cpus):
        raise ValueError(f"threads is {threads}, this process may use {len(cpus)} CPUs")
    return sorted(cpus[:threads])
