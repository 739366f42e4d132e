"""Intervals, paired ratios and verdicts from samples that were taken in interleaved rounds in several processes.

Everything here works on logarithms of seconds: a ratio is a difference, and a machine that slows down for a while
slows all backends of a round down alike, which the pairing takes out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

LEVEL = 0.95
MARGIN = 0.02
RESAMPLES = 4000
POWER = 0.8

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A median with its confidence interval, in the unit of the samples."""

    median: float
    low: float
    high: float
    level: float = LEVEL


@dataclass(frozen=True)
class Ratio:
    """baseline seconds / backend seconds, paired by round: above 1 the backend is the faster one."""

    value: float
    low: float
    high: float
    level: float
    pairs: int
    processes: int
    freedom: float  # degrees of freedom behind the interval
    minimum_detectable: float  # relative difference seen with 80 % power


@dataclass(frozen=True)
class Verdict:
    """`alone` judges the cell by itself, `table` after Holm's correction over all cells of the run."""

    alone: str
    table: str
    p: float | None  # of the claim of `alone`, two-sided; None where nothing is claimed
    p_adjusted: float | None
    margin: float
    reason: str


@dataclass(frozen=True)
class _Location:
    value: float
    low: float
    high: float
    freedom: float


def _by_process(values: Floats, process: npt.NDArray[np.int64]) -> list[Floats]:
    return [values[process == p] for p in np.unique(process)]


def _resampled_medians(groups: list[Floats], rng: np.random.Generator) -> Floats:
    """Hierarchical bootstrap: processes drawn with replacement, then rounds within each."""
    rounds = round(float(np.mean([len(group) for group in groups])))  # the same for all, so that arrays stay square
    lengths = np.array([len(group) for group in groups])
    padded = np.zeros((len(groups), int(lengths.max())))
    for row, group in zip(padded, groups, strict=True):
        row[: len(group)] = group
    chosen = rng.integers(0, len(groups), (RESAMPLES, len(groups)))
    picks = (rng.random((RESAMPLES, len(groups), rounds)) * lengths[chosen][:, :, None]).astype(np.int64)
    drawn = padded[chosen[:, :, None], picks]
    return np.asarray(np.median(drawn.reshape(RESAMPLES, -1), axis=1))


def _between_processes(groups: list[Floats], rng: np.random.Generator) -> tuple[float, float]:
    """Variance of processes' true medians, and Satterthwaite's degrees of freedom of the overall median.

    Two sources: a process as a whole is fast or slow (placement in memory, say), and rounds within a process vary.
    """
    processes = len(groups)
    within = 0.0
    for group in groups:
        picks = rng.integers(0, len(group), (200, len(group)))
        within += float(np.median(group[picks], axis=1).var(ddof=1)) / processes
    within_freedom = max(1, sum(len(group) - 1 for group in groups))
    if processes == 1:
        return 0.0, within_freedom
    between = max(0.0, float(np.var([np.median(group) for group in groups], ddof=1)) - within)
    total = between + within
    if total == 0.0:
        return 0.0, within_freedom
    return between, max(1.0, total**2 / (between**2 / (processes - 1) + within**2 / within_freedom))


def _location(values: Floats, process: npt.NDArray[np.int64], level: float, seed: int) -> _Location:
    """Median and its interval: the percentile bootstrap, stretched about the median.

    With two to five processes the bootstrap alone is too narrow: it draws the few processes that there are, which shows
    (P - 1) / P of the variance between them, and knows no t distribution. The stretch makes up for both;
    tests/test_statistics.py holds the coverage that this reaches.
    """
    rng = np.random.default_rng(seed)
    groups = _by_process(values, process)
    middle = float(np.median(values))
    medians = _resampled_medians(groups, rng)
    between, freedom = _between_processes(groups, rng)
    tail = (1 - level) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    stretch = float(stats.t.isf(tail, freedom) / stats.norm.isf(tail))
    bootstrap = float(medians.var(ddof=1))
    if bootstrap > 0.0:
        stretch *= math.sqrt(1 + between / len(groups) ** 2 / bootstrap)
    return _Location(
        middle, middle - (middle - float(low)) * stretch, middle + (float(high) - middle) * stretch, freedom
    )


def interval(seconds: Sequence[float], process: Sequence[int], *, level: float = LEVEL, seed: int = 0) -> Interval:
    """Median of `seconds` (> 0) with its interval; `process` tells which process each sample came from.

    Raises ValueError for no samples, unequal lengths or a sample that is not positive and finite.
    """
    where = _location(_log("seconds", seconds), _processes(process, len(seconds)), level, seed)
    median = float(np.median(seconds))  # of an even number: the mean of the middle two, not of their logarithms
    return Interval(median, min(median, math.exp(where.low)), max(median, math.exp(where.high)), level)


def paired_ratio(
    baseline: Sequence[float], backend: Sequence[float], process: Sequence[int], *, level: float = LEVEL, seed: int = 0
) -> Ratio:
    """Speed of `backend` relative to `baseline`; element i of both was measured in the same round of process[i].

    Raises ValueError as `interval` does.
    """
    if len(baseline) != len(backend):
        raise ValueError(f"baseline has {len(baseline)} samples, backend has {len(backend)}; they are paired by round")
    logs = _log("baseline", baseline) - _log("backend", backend)
    processes = _processes(process, len(logs))
    where = _location(logs, processes, level, seed)
    critical = float(stats.t.isf((1 - level) / 2, where.freedom))
    error = (where.high - where.low) / 2 / critical
    detectable = math.expm1(min(50.0, (critical + float(stats.t.ppf(POWER, where.freedom))) * error))
    return Ratio(
        value=math.exp(where.value),
        low=math.exp(where.low),
        high=math.exp(where.high),
        level=level,
        pairs=len(logs),
        processes=len(np.unique(processes)),
        freedom=where.freedom,
        minimum_detectable=detectable,
    )


def _log(name: str, seconds: Sequence[float]) -> Floats:
    values = np.asarray(seconds, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"{name}: needs at least one sample, got shape {list(values.shape)}")
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{name}: samples must be positive and finite, got {values.min()} to {values.max()}")
    return np.asarray(np.log(values))


def _processes(process: Sequence[int], count: int) -> npt.NDArray[np.int64]:
    numbers = np.asarray(process, dtype=np.int64)
    if numbers.shape != (count,):
        raise ValueError(f"process: {numbers.size} entries for {count} samples")
    return numbers


def inside_margin(ratio: Ratio, margin: float = MARGIN) -> bool:
    """Whether the whole interval lies within the margin of 1."""
    return ratio.low >= 1 / (1 + margin) and ratio.high <= 1 + margin


def judge(  # noqa: PLR0911 - one return for each kind of verdict
    ratio: Ratio, control: Ratio | None, *, margin: float = MARGIN
) -> Verdict:
    """The verdict of one cell by itself.

    faster, slower   the interval lies beyond the margin, and beyond whatever the A/A control of the run showed
    same             the interval and the control's lie within the margin
    undecided        anything else; also where there was only one process or no control
    """
    if ratio.processes < 2:
        return _undecided(margin, "one process: differences between processes cannot be seen")
    if control is None:
        return _undecided(margin, "no A/A control")
    noise = max(-math.log(control.low), math.log(control.high))
    threshold = max(math.log1p(margin), noise)
    shown = f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    beyond = f"{shown} beyond {math.expm1(threshold):.1%}, the larger of margin and A/A control"
    if math.log(ratio.low) > threshold:
        return _claim("faster", _tail(ratio, threshold), margin, beyond)
    if math.log(ratio.high) < -threshold:
        return _claim("slower", _tail(ratio, -threshold), margin, beyond)
    if not inside_margin(ratio, margin):
        return _undecided(margin, f"{shown} crosses {math.expm1(threshold):.1%}")
    if not inside_margin(control, margin):
        return _undecided(margin, f"{shown} within {margin:.0%}, but the A/A control is not")
    edge = math.log1p(margin)
    return _claim("same", max(_tail(ratio, edge), _tail(ratio, -edge)), margin, f"{shown} within {margin:.0%}")


def _undecided(margin: float, reason: str) -> Verdict:
    return Verdict("undecided", "undecided", None, None, margin, reason)


def _claim(kind: str, p: float, margin: float, reason: str) -> Verdict:
    return Verdict(kind, kind, p, p, margin, reason)


def _tail(ratio: Ratio, edge: float) -> float:
    """Two-sided p-value of log(ratio) = edge, so made that it equals 1 - level where the interval ends at the edge."""
    middle, low, high = (math.log(v) for v in (ratio.value, ratio.low, ratio.high))
    half_width = middle - low if middle > edge else high - middle
    if half_width <= 0.0:
        return 0.0
    critical = float(stats.t.isf((1 - ratio.level) / 2, ratio.freedom))
    return float(2 * stats.t.sf(abs(middle - edge) / half_width * critical, ratio.freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values. By hand, since neither scipy nor numpy has it and statsmodels would bring pandas."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return [float(value) for value in adjusted]


def judge_table(verdicts: Sequence[Verdict], *, level: float = LEVEL) -> list[Verdict]:
    """The same verdicts with `table` and `p_adjusted` filled in.

    Cells that claim nothing count as tests too: they were looked at.
    """
    adjusted = holm([1.0 if v.p is None else v.p for v in verdicts])
    judged = []
    for verdict, p in zip(verdicts, adjusted, strict=True):
        if verdict.p is None:
            judged.append(verdict)
            continue
        holds = p <= 1 - level
        judged.append(
            Verdict(
                alone=verdict.alone,
                table=verdict.alone if holds else "undecided",
                p=verdict.p,
                p_adjusted=p,
                margin=verdict.margin,
                reason=verdict.reason if holds else f"{verdict.reason}; not after correction for {len(verdicts)} cells",
            )
        )
    return judged


def geometric_mean(ratios: Sequence[float]) -> float:
    """Geometric mean of at least one positive ratio."""
    return float(stats.gmean(np.asarray(ratios, dtype=np.float64)))
