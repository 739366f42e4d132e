"""Axis habits that several figures share: tokens, ratios and milliseconds read the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from moelab.report.text import significant

_RATIO_TICKS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 20, 50, 100)


def token_axis(axes: Axes, tokens: Sequence[int]) -> None:
    """A log axis with a tick at every number of tokens that was run."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(tokens)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    low, high = min(tokens), max(tokens)
    axes.set_xlim(low / 1.35, high * 1.35)
    axes.set_xlabel("tokens in the batch")


def log_value_axis(axes: Axes, label: str) -> None:
    """A log axis with plain numbers at 1, 2 and 5 of each decade."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: significant(value, 1) if value < 1 else f"{value:g}"))
    axes.set_ylabel(label)


def ratio_axis(axes: Axes, values: Iterable[float]) -> None:
    """A log axis around 1.0 that always shows 1.0 and both directions."""
    finite = [value for value in values if math.isfinite(value) and value > 0]
    low, high = min([*finite, 0.9]), max([*finite, 1.25])
    axes.set_yscale("log", base=2)
    axes.set_ylim(low / 1.08, high * 1.08)
    # Ticks closer than a sixteenth of the axis would write over each other.
    span = math.log(high / low)
    ticks: list[float] = []
    for tick in sorted(_RATIO_TICKS, key=lambda t: (t != 1, abs(math.log(t)))):
        if low / 1.08 <= tick <= high * 1.08 and all(abs(math.log(tick / t)) > span / 12 for t in ticks):
            ticks.append(tick)
    axes.yaxis.set_major_locator(FixedLocator(sorted(ticks)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
