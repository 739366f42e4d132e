"""A whole run: its workloads one after the other, each with its weights in memory only while it is measured."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from moelab import machine
from moelab.contenders import contenders_of
from moelab.cpus import bound_cpus
from moelab.engine import WorkloadRun
from moelab.eviction import eviction_bytes
from moelab.measurement import CaseRun, Missing, Probing
from moelab.plan import Plan
from moelab.progress import Progress
from moelab.weights import materialise, open_weights
from moelab.workloads import Layer, bytes_needed, layer_by_name

SLACK_BYTES = 1 << 30  # activations and scratch
PROCESS_BYTES = 1 << 29  # libraries of a worker
PROBE_BYTES = 1 << 30  # buffer of the read probe, see kernels/src/peak.cpp


class EmulatedError(RuntimeError):
    """Nothing is timed under emulation."""


class Run:
    """Measures the plan's workloads on demand, so that a test runner can ask for them one by one."""

    def __init__(self, plan: Plan, progress: Progress, *, done: Sequence[str] = ()) -> None:
        """`done`: workloads that have had their share of the budget in an earlier session."""
        if machine.emulated() and not plan.emulated:
            raise EmulatedError(
                "instructions are emulated on this machine; a time would mean nothing, so none is taken"
            )
        self.plan, self.progress = plan, progress
        self.cpus = bound_cpus(plan.threads)
        self._left = [name for name in plan.workloads if name not in done]
        self._deadline = time.monotonic() + plan.budget * len(self._left) / len(plan.workloads)

    def measure(self, workload: str) -> tuple[list[CaseRun], list[Missing]]:
        """All cases of one workload. The time that is left is shared out among the workloads still to come."""
        now = time.monotonic()
        deadline = now + max(0.0, self._deadline - now) / max(1, len(self._left))
        if workload in self._left:
            self._left.remove(workload)
        layer = layer_by_name(workload)
        last_level = machine.last_level_bytes()
        fit, needed = self._fit(layer, last_level)
        if fit is None:
            reason = f"needs {needed / 2**30:.1f} GiB of memory, {available() / 2**30:.1f} GiB are free"
            self.progress.step(f"{workload}: skipped, {reason}")
            return [], [Missing(None, None, workload, "skipped", reason, needed)]
        with _folder(layer.weight_bytes + eviction_bytes(last_level)) as folder:
            self.progress.step(f"{workload}: weights, {layer.weight_bytes / 2**30:.2f} GiB")
            path = materialise(layer, self.plan.seed, folder)
            run = WorkloadRun(
                self.plan,
                workload,
                cpus=self.cpus,
                last_level_bytes=last_level,
                weights=open_weights(path),
                weights_path=path,
                folder=folder,
                separate_copy=fit[0],
                probing=fit[1],
                progress=self.progress,
                emulated=machine.emulated(),
            )
            return run.run(deadline)

    def _fit(self, layer: Layer, last_level: int) -> tuple[tuple[bool, Probing] | None, int]:
        """(Whether the A/A control has a packed copy of its own, which processes probe), and the least bytes needed.

        As much as the free memory allows; None where not even the least fits.
        """
        evict = eviction_bytes(last_level) if self.plan.cache == "cold" else 0
        wanted: Probing = "all" if self.plan.probe_seconds > 0 else "none"
        least: Probing = "one" if self.plan.probe_seconds > 0 else "none"

        def needed(separate: bool, probing: Probing) -> int:
            contenders = contenders_of(self.plan, separate).values()
            processes = len({c.facts.backend.environment for c in contenders})
            packed = sum(c.facts.copy_of is None for c in contenders)
            probes = {"all": processes, "one": 1, "none": 0}[probing] * PROBE_BYTES
            return bytes_needed(layer, packed) + processes * PROCESS_BYTES + probes + evict + SLACK_BYTES

        free = available()
        choices: list[tuple[bool, Probing]] = [(True, wanted), (True, least), (False, least)]
        fitting = next((choice for choice in choices if needed(*choice) <= free), None)
        return fitting, needed(False, least)


def available() -> int:
    """Bytes of memory that a run may fill."""
    value = machine.memory()["available"]
    assert isinstance(value, int)
    return value


@contextmanager
def _folder(size: int) -> Iterator[Path]:
    """A folder for weights and inputs, in memory where /dev/shm has room (containers often give it 64 MB)."""
    shared = Path("/dev/shm")  # noqa: S108 - a new folder with a random name in it
    roomy = shared.is_dir() and shutil.disk_usage(shared).free > size + (256 << 20)
    with tempfile.TemporaryDirectory(prefix="moelab-", dir=shared if roomy else None) as name:
        yield Path(name)
