"""Whether the clock saw all the work of a backend: judged by what happened around it (see harness/README.md).

The allowances are what honest backends need with room to spare; work below them can be hidden, and no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from moelab.measurement import BackendRun, Setting
from moelab.workloads import Case

AROUND_SECONDS = 1e-3
"""For handing inputs or an output over, beside their copies; for a question and its answer between two processes."""
BUSY_SECONDS = 1e-2
"""At most so much more where it takes the others longer, as on a machine that is busy otherwise."""
COPY_RATE = 1e9
"""Byte/s at which inputs and outputs are copied at least."""
SHARE = 0.02
"""Of a call: what stays below the margin of a verdict hides no difference."""
TICK_SECONDS = 0.01
"""CPU time of threads on other CPUs is counted up to so late."""


def misconduct(run: BackendRun, others: Sequence[BackendRun], case: Case, setting: Setting) -> str | None:
    """Why the times of a backend do not count; None if they do. Under emulation no time says anything."""
    if not run.samples or not run.spent or setting.emulated:
        return None
    called = float(np.median([s.seconds for s in run.samples]))
    sample = called * float(np.median([s.calls for s in run.samples]))
    copies = 2 * 4 * case.tokens * case.layer.hidden / COPY_RATE
    bind, result, unexplained = (
        _at_least([getattr(s, name) for s in run.spent]) for name in ("bind", "result", "unexplained")
    )
    if bind > max(_allowed(others, "bind") + copies, SHARE * called):
        return _words(bind, called, "of work before the clock ran, when it got its inputs")
    if result > max(_allowed(others, "result") + copies, SHARE * called):
        return _words(result, called, "of work after the clock had stopped")
    if unexplained > max(_allowed(others, "unexplained"), SHARE * sample):
        return _words(unexplained, called, "more passed on the clock of the engine than its process accounts for")
    return _too_many_cpus(run, setting.threads)


def _at_least(values: Sequence[float]) -> float:
    """What their median exceeds with 99 % confidence (the order statistic that the binomial distribution names).

    On a busy machine disturbances lengthen many samples, and of a few samples they may lengthen half.
    """
    rank = int(stats.binom.ppf(0.01, len(values), 0.5)) - 1
    return float(np.sort(values)[max(0, rank)])


def _allowed(others: Sequence[BackendRun], name: str) -> float:
    """Seconds: the fixed part, and what most samples of the others take."""
    theirs = [getattr(s, name) for run in others for s in run.spent]
    return AROUND_SECONDS + (min(BUSY_SECONDS, max(0.0, float(np.quantile(theirs, 0.75)))) if theirs else 0.0)


def _words(seconds: float, called: float, what: str) -> str:
    return f"{seconds * 1e3:.3g} ms {what} (a call takes {called * 1e3:.3g} ms)"


def _too_many_cpus(run: BackendRun, threads: int) -> str | None:
    """Over all samples together, since the kernel counts late."""
    wall = sum(s.seconds * s.calls for s in run.samples)
    cpu = sum(spent.cpu * s.calls for spent, s in zip(run.spent, run.samples, strict=True))
    late = TICK_SECONDS * (threads - 1) * len(run.samples)
    if cpu <= 1.1 * threads * wall + late + 1e-4 * len(run.samples):
        return None
    return f"used {cpu / wall:.2f} CPUs on average, {threads} {'was' if threads == 1 else 'were'} granted"
