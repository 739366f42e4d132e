"""Axis habits that several figures share: tokens, ratios and milliseconds read the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from moelab.report.palette import ROLES
from moelab.report.text import significant

_MANY_DECADES = 2000
_MOST_TICKS = 16  # names of tokens that fit beside each other
_RATIO_TICKS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 20, 50, 100)


def token_axis(axes: Axes, tokens: Sequence[int]) -> None:
    """A log axis with a tick at every number of tokens that was run, as far as their names have room."""
    axes.set_xscale("log", base=2)
    apart = math.log(max(tokens) / min(tokens)) / _MOST_TICKS
    ticks: list[int] = []
    for number in sorted(tokens):
        if not ticks or math.log(number / ticks[-1]) > apart:
            ticks.append(number)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    low, high = min(tokens), max(tokens)
    axes.set_xlim(low / 1.35, high * 1.35)
    axes.set_xlabel("tokens in the batch")


def named_places(axes: Axes, names: Sequence[str], shift: float = 0.0) -> None:
    """Names under the places 0, 1, 2 … of a horizontal axis; every second, third … one where there are many."""
    step = -(-len(names) // _MOST_TICKS)
    axes.set_xticks([place + shift for place in range(0, len(names), step)], names[::step])


def log_value_axis(axes: Axes, label: str) -> None:
    """A log axis with plain numbers at 1, 2 and 5 of each decade, at 1 alone where there are many decades.

    Call it after the limits are set.
    """
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > _MANY_DECADES else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: significant(value, 1) if value < 1 else f"{value:g}"))
    axes.set_ylabel(label)


def log_axis_across(axes: Axes, values: Sequence[float], label: str) -> None:
    """A horizontal log axis around the finite ones of `values`, which are positive, with ticks as `log_value_axis`."""
    found = [value for value in values if math.isfinite(value)]
    axes.set_xscale("log")
    axes.set_xlim(min(found) / 1.4, max(found) * 1.4)
    many = max(found) / min(found) > _MANY_DECADES
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if many else (1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(label)


def ratio_axis(axes: Axes, values: Sequence[float], ends: Iterable[float]) -> None:
    """A log axis around 1.0 that always shows 1.0, both directions and every value.

    Of the intervals it shows what lies within a factor of 2 of the values: one that reaches from 0.01 to 1000 would
    flatten everything else; it runs out of the figure instead (`mark_what_goes_on`).
    """
    low, high, ticks = ratio_ticks(values, ends, room=12)
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def mark_what_goes_on(axes: Axes, intervals: Iterable[tuple[float, float, float]], *, across: bool = False) -> None:
    """A triangle at the edge where an interval, given as (place, low, high), leaves the figure. Set the limits first.

    `across`: the intervals are horizontal.
    """
    least, most = axes.get_xlim() if across else axes.get_ylim()
    for place, low, high in intervals:
        for beyond, edge, marker in ((high > most, most, "^>"), (low < least, least, "v<")):
            if beyond:
                x, y = (edge, place) if across else (place, edge)
                axes.plot([x], [y], marker=marker[across], markersize=4, linestyle="none", clip_on=False, zorder=4,
                          color=ROLES["fg"].light)  # fmt: skip


def ratio_ticks(values: Sequence[float], ends: Iterable[float], *, room: int) -> tuple[float, float, list[float]]:
    """Limits and ticks of a log axis of ratios as `ratio_axis` describes it; `room`: how many ticks fit."""
    low, high = min([*values, 0.9]), max([*values, 1.25])
    wanted = [end for end in ends if math.isfinite(end)]
    low, high = max(min([low, *wanted]), low / 2), min(max([high, *wanted]), high * 2)
    # Ticks closer than this would write over each other.
    apart = math.log(high / low) / room
    ticks: list[float] = []
    for tick in sorted(_RATIO_TICKS, key=lambda t: (t != 1, abs(math.log(t)))):
        if low / 1.08 <= tick <= high * 1.08 and all(abs(math.log(tick / t)) > apart for t in ticks):
            ticks.append(tick)
    return low / 1.08, high * 1.08, sorted(ticks)
