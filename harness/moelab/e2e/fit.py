"""Time = fixed + layers x per layer, from two or more depths, and what it comes to at full depth.

Everything is linear in the medians at the measured depths, whose errors are independent: the samples of one depth come
from other processes than those of another. Half-widths of intervals therefore add up as the root of their squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moelab.statistics import Interval


@dataclass(frozen=True)
class Line:
    """Seconds of an engine's cell as a function of depth; `at` is for one number of layers."""

    fixed: Interval
    per_layer: Interval
    at: Interval
    layers: int


def line(depths: Sequence[int], times: Sequence[Interval], layers: int) -> Line:
    """Least squares through the medians `times` at `depths`. ValueError for fewer than two different depths."""
    if len(set(depths)) < 2 or len(depths) != len(times):
        raise ValueError(f"depths {list(depths)}: two different ones are needed, with a time for each")
    x = np.asarray(depths, dtype=np.float64)
    centred = x - x.mean()
    slope = centred / np.sum(centred**2)
    return Line(
        fixed=combined(1 / len(x) - x.mean() * slope, times),
        per_layer=combined(slope, times),
        at=combined(1 / len(x) + (layers - x.mean()) * slope, times),
        layers=layers,
    )


def combined(factors: Sequence[float] | np.ndarray, times: Sequence[Interval]) -> Interval:
    """Sum of factor x time over independent times."""
    pairs = list(zip((float(f) for f in factors), times, strict=True))
    value = sum(f * t.median for f, t in pairs)
    # A negative factor turns a time that is longer than seen into a sum that is smaller.
    down = math.hypot(*(f * ((t.median - t.low) if f > 0 else (t.high - t.median)) for f, t in pairs))
    up = math.hypot(*(f * ((t.high - t.median) if f > 0 else (t.median - t.low)) for f, t in pairs))
    return Interval(value, value - down, value + up, times[0].level)


def quotient(left: Interval, right: Interval) -> Interval | None:
    """left / right, independent of each other; None where one of them is not above 0, as a noisy fit may be."""
    if left.median <= 0 or right.median <= 0:
        return None
    value = left.median / right.median
    down = math.hypot(_logarithm(left.median, left.low), _logarithm(right.high, right.median))
    up = math.hypot(_logarithm(left.high, left.median), _logarithm(right.median, right.low))
    return Interval(value, value * math.exp(-down), value * math.exp(min(up, 700.0)), left.level)


def _logarithm(upper: float, lower: float) -> float:
    """log(upper / lower), which has no end where the lower one is not above 0."""
    return math.log(upper / lower) if lower > 0 else math.inf
