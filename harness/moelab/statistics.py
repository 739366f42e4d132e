"""Intervals, paired ratios and verdicts from samples that were taken in interleaved rounds in several processes.

Everything here works on logarithms of seconds: a ratio is a difference, and a machine that slows down for a while
slows all backends of a round down alike, which the pairing takes out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

LEVEL = 0.95
MARGIN = 0.02
RESAMPLES = 4000
POWER = 0.8
MOST_BORROWED = 4.0  # degrees of freedom; more gains little and trusts cells to be alike
FEWEST_TO_BORROW = 3  # cells

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
class Pairs:
    """Seconds of two backends in one cell; element i of both was measured in the same round of process[i]."""

    baseline: Sequence[float]
    backend: Sequence[float]
    process: Sequence[int]


@dataclass(frozen=True)
class _Spread:
    """A median and what the bootstrap says about it, as logarithms."""

    middle: float
    below: float
    """From the median down to the lower end of the percentile bootstrap, in units of its standard deviation."""
    above: float
    variance: float
    """Of the median: the bootstrap's, and what it lacks of the variance between processes."""
    freedom: float

    def ends(self, level: float) -> tuple[float, float]:
        """The bootstrap's interval, stretched to the variance and from the normal distribution to Student's t."""
        tail = (1 - level) / 2
        stretch = math.sqrt(self.variance) * float(stats.t.isf(tail, self.freedom) / stats.norm.isf(tail))
        return self.middle - self.below * stretch, self.middle + self.above * stretch


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


def _spread(values: Floats, process: npt.NDArray[np.int64], level: float, seed: int) -> _Spread:
    """Median and its uncertainty.

    With two to five processes the bootstrap alone is too narrow: it draws the few processes that there are, which shows
    (P - 1) / P of the variance between them, and knows no t distribution. Variance and degrees of freedom make up for
    both; tests/test_statistics.py holds the coverage that this reaches.
    """
    rng = np.random.default_rng(seed)
    groups = _by_process(values, process)
    middle = float(np.median(values))
    medians = _resampled_medians(groups, rng)
    between, freedom = _between_processes(groups, rng)
    tail = (1 - level) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    bootstrap = float(medians.var(ddof=1))
    normal = float(stats.norm.isf(tail))
    below = above = normal
    if bootstrap > 0.0:
        below, above = (middle - float(low)) / math.sqrt(bootstrap), (float(high) - middle) / math.sqrt(bootstrap)
    return _Spread(middle, below, above, bootstrap + between / len(groups) ** 2, freedom)


def moderated(spreads: Sequence[_Spread]) -> list[_Spread]:
    """The same medians, each with a variance that also draws on the other cells' of the same two backends.

    Empirical Bayes (Smyth 2004, limma): the variances of cells are taken as draws from one scaled inverse chi-square
    distribution, whose scale and degrees of freedom follow from their own scatter, so cells that differ much borrow
    little. Two bounds keep a noisy cell among quiet ones honest: no variance becomes smaller than the cell's own, and
    what is borrowed counts for MOST_BORROWED degrees of freedom at most.
    """
    known = [s for s in spreads if s.variance > 0.0]
    if len(known) < FEWEST_TO_BORROW:
        return list(spreads)
    prior, freedom = _prior(np.array([s.variance for s in known]), np.array([s.freedom for s in known]))
    made = []
    for spread in spreads:
        total = freedom + spread.freedom
        shared = (freedom * prior + spread.freedom * spread.variance) / total
        made.append(replace(spread, variance=max(spread.variance, shared), freedom=total))
    return made


def _prior(variances: Floats, freedom: Floats) -> tuple[float, float]:
    """Scale and degrees of freedom of the distribution that the variances come from, by moments of their logarithms."""
    half = freedom / 2
    logs = np.log(variances) - special.digamma(half) + np.log(half)
    scatter = float(np.var(logs, ddof=1) - np.mean(special.polygamma(1, half)))
    most = min(MOST_BORROWED, float(np.sum(freedom) - np.max(freedom)))
    borrowed = most
    if scatter > float(special.polygamma(1, most / 2)):
        borrowed = 2 * float(optimize.brentq(lambda y: float(special.polygamma(1, y)) - scatter, 1e-6, most / 2))
    scale = math.exp(float(np.mean(logs)) + float(special.digamma(borrowed / 2)) - math.log(borrowed / 2))
    return scale, borrowed


def interval(seconds: Sequence[float], process: Sequence[int], *, level: float = LEVEL, seed: int = 0) -> Interval:
    """Median of `seconds` (> 0) with its interval; `process` tells which process each sample came from.

    Raises ValueError for no samples, unequal lengths or a sample that is not positive and finite.
    """
    low, high = _spread(_log("seconds", seconds), _processes(process, len(seconds)), level, seed).ends(level)
    median = float(np.median(seconds))  # of an even number: the mean of the middle two, not of their logarithms
    return Interval(median, min(median, math.exp(low)), max(median, math.exp(high)), level)


def paired_ratio(
    baseline: Sequence[float], backend: Sequence[float], process: Sequence[int], *, level: float = LEVEL, seed: int = 0
) -> Ratio:
    """Speed of `backend` relative to `baseline` in one cell by itself; arguments as in `Pairs`.

    Raises ValueError as `interval` does.
    """
    return paired_ratios([Pairs(baseline, backend, process)], level=level, seed=seed)[0]


def paired_ratios(cells: Sequence[Pairs], *, level: float = LEVEL, seed: int = 0) -> list[Ratio]:
    """Speed of a backend relative to another one in each cell of a run that has both.

    The cells share what they know of the scatter (`moderated`): two or three processes say little about it in one cell,
    and ten cells say much. Medians are each cell's own. Raises ValueError as `interval` does.
    """
    spreads, processes = [], []
    for cell in cells:
        if len(cell.baseline) != len(cell.backend):
            raise ValueError(
                f"baseline has {len(cell.baseline)} samples, backend has {len(cell.backend)}; they are paired by round"
            )
        logs = _log("baseline", cell.baseline) - _log("backend", cell.backend)
        numbers = _processes(cell.process, len(logs))
        spreads.append(_spread(logs, numbers, level, seed))
        processes.append(len(np.unique(numbers)))
    # One process says nothing about differences between processes: it neither lends nor borrows.
    several = [i for i, count in enumerate(processes) if count > 1]
    for i, spread in zip(several, moderated([spreads[i] for i in several]), strict=True):
        spreads[i] = spread
    return [
        _ratio(spread, level, len(cell.process), count)
        for cell, spread, count in zip(cells, spreads, processes, strict=True)
    ]


def _ratio(spread: _Spread, level: float, pairs: int, processes: int) -> Ratio:
    low, high = spread.ends(level)
    critical = float(stats.t.isf((1 - level) / 2, spread.freedom))
    error = (high - low) / 2 / critical
    detectable = math.expm1(min(50.0, (critical + float(stats.t.ppf(POWER, spread.freedom))) * error))
    return Ratio(
        value=math.exp(spread.middle),
        low=math.exp(low),
        high=math.exp(high),
        level=level,
        pairs=pairs,
        processes=processes,
        freedom=spread.freedom,
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

    faster, slower   the whole interval lies beyond the margin, and the ratio farther from 1 than the whole interval of
                     the run's A/A control: a difference that the control shows as well is none
    same             the interval and the control's lie within the margin
    undecided        anything else; also where there was only one process or no control
    """
    if ratio.processes < 2:
        return _undecided(margin, "one process: differences between processes cannot be seen")
    if control is None:
        return _undecided(margin, "no A/A control")
    noise, edge = max(-math.log(control.low), math.log(control.high)), math.log1p(margin)
    shown = f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    for kind, nearest, sign in (("faster", ratio.low, 1), ("slower", ratio.high, -1)):
        if sign * math.log(nearest) <= edge:
            continue
        if sign * math.log(ratio.value) <= noise:
            return _undecided(margin, f"{shown}, but the A/A control shows up to {math.expm1(noise):.1%}")
        reason = f"{shown} beyond {margin:.0%}, and farther than the {math.expm1(noise):.1%} of the A/A control"
        return _claim(kind, _tail(ratio, sign * edge), margin, reason)
    if not inside_margin(ratio, margin):
        return _undecided(margin, f"{shown} crosses {margin:.0%}")
    if not inside_margin(control, margin):
        return _undecided(margin, f"{shown} within {margin:.0%}, but the A/A control is not")
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
