"""Notices what disturbs a measurement while it runs: time stolen by the hypervisor, other programs, heat, drift."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from moelab.machine import own_cgroups

STEAL_SHARE = 0.01
OTHERS_SHARE = 0.05
COMPUTE_DRIFT = 0.05
BANDWIDTH_DRIFT = 0.20


@dataclass(frozen=True)
class Disturbance:
    """CPU ticks during measurements: all, stolen by the hypervisor, used by others.

    `throttles`: times the CPU did because of heat; `pauses`: times that the control group's limit stopped it.
    """

    total: float = 0.0
    stolen: float = 0.0
    others: float = 0.0
    throttles: int = 0
    pauses: int = 0

    def __add__(self, more: Disturbance) -> Disturbance:
        return Disturbance(
            self.total + more.total,
            self.stolen + more.stolen,
            self.others + more.others,
            self.throttles + more.throttles,
            self.pauses + more.pauses,
        )

    def words(self) -> list[str]:
        """What was unstable; empty on a quiet machine."""
        if self.total <= 0:
            return []
        found = []
        if self.stolen / self.total > STEAL_SHARE:
            found.append(f"the hypervisor took {self.stolen / self.total:.1%} of the CPU time")
        if self.others / self.total > OTHERS_SHARE:
            found.append(f"other programs used {self.others / self.total:.0%} of the CPU time")
        if self.pauses:
            found.append(f"the control group's CPU limit stopped the run {self.pauses} times")
        if self.throttles:
            found.append(f"the CPU throttled {self.throttles} times because of heat")
        return found


@dataclass(frozen=True)
class _Reading:
    total: int
    busy: int
    stolen: int
    own: float
    throttles: int
    pauses: int


@dataclass
class Monitor:
    """Readings before and after a stretch of work; `pids` are the workers, whose time is not a disturbance.

    `cpus` are those that the workers are bound to, the only ones that matter; empty: all.
    """

    root: Path = Path("/")
    cpus: Sequence[int] = ()
    pids: set[int] = field(default_factory=set)
    _start: _Reading | None = None
    _retired: float = 0.0

    def start(self) -> None:
        self._retired = 0.0
        self._start = self._read()

    def retire(self, pid: int) -> None:
        """Counts a worker that is about to end, whose time could not be read afterwards."""
        self._retired += _ticks_of(self.root, pid)
        self.pids.discard(pid)

    def stop(self) -> Disturbance:
        """What happened since `start`."""
        before, after = self._start, self._read()
        if before is None:
            return Disturbance()
        own = after.own - before.own + self._retired
        return Disturbance(
            total=after.total - before.total,
            stolen=after.stolen - before.stolen,
            others=max(0.0, after.busy - before.busy - own),
            throttles=max(0, after.throttles - before.throttles),
            pauses=max(0, after.pauses - before.pauses),
        )

    def _read(self) -> _Reading:
        total = busy = stolen = 0
        for user, nice, system, idle, iowait, irq, softirq, steal in _cpu_times(self.root, self.cpus):
            working = user + nice + system + irq + softirq
            busy, stolen, total = busy + working, stolen + steal, total + working + idle + iowait + steal
        own = _ticks_of(self.root, os.getpid()) + sum(_ticks_of(self.root, pid) for pid in self.pids)
        return _Reading(total, busy, stolen, own, _throttles(self.root), _pauses(self.root))


def _cpu_times(root: Path, cpus: Sequence[int]) -> list[list[int]]:
    """The first eight columns of /proc/stat for each of the CPUs, or of the sum over all."""
    try:
        lines = [line.split() for line in (root / "proc/stat").read_text().splitlines()]
        times = {line[0]: [int(v) for v in line[1:9]] for line in lines if line and line[0].startswith("cpu")}
    except (OSError, ValueError):
        return []
    found = [times[f"cpu{n}"] for n in cpus if f"cpu{n}" in times]
    chosen = found if found and len(found) == len(cpus) else [times["cpu"]] if "cpu" in times else []
    return [columns for columns in chosen if len(columns) == 8]


def _ticks_of(root: Path, pid: int) -> float:
    """CPU ticks of a process and of its ended children."""
    try:
        text = (root / f"proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text[text.rindex(")") + 2 :].split()
    return float(sum(int(v) for v in fields[11:15]))


def _throttles(root: Path) -> int:
    total = 0
    for file in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            total += int(file.read_text())
        except (OSError, ValueError):
            continue
    return total


def _pauses(root: Path) -> int:
    """How often the CPU limit of this process's control groups stopped it (version 2 and 1 name it alike)."""
    total = 0
    for folder in own_cgroups(root, "cpu"):
        try:
            lines = (folder / "cpu.stat").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("nr_throttled "))
    return total


def drift(compute: Sequence[float | None], bandwidth: Sequence[float | None]) -> list[str]:
    """What the probes say about the machine itself: clock frequency and memory bandwidth that changed in between."""
    found = []
    for name, rates, limit in (
        ("compute rate", compute, COMPUTE_DRIFT),
        ("memory bandwidth", bandwidth, BANDWIDTH_DRIFT),
    ):
        known = [rate for rate in rates if rate]
        if len(known) < 4:
            continue
        low, middle, high = np.quantile(known, [0.1, 0.5, 0.9])
        if (high - low) / middle > limit:
            found.append(
                f"the {name} seen by the probes varied by {(high - low) / middle:.0%} (10th to 90th percentile)"
            )
    return found
