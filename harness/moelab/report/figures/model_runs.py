"""Figures of whole models: tokens per second, speed over each baseline, and how the experts' share explains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from moelab.report.figures.axes import log_axis_across, mark_what_goes_on, ratio_ticks
from moelab.report.figures.canvas import WIDTH, Drawn, Handle, legend_above, new_figure
from moelab.report.model import Interval
from moelab.report.model_runs import RunCell, RunRatio
from moelab.report.palette import ROLES, engine_look, engine_order
from moelab.report.text import percent, ratio, significant

_ROW = 0.23  # inches
_FITTED, _PREDICTED = "extrapolated to full depth", "predicted from the layer (Amdahl)"


def engines_of(cells: Sequence[RunCell]) -> list[str]:
    return sorted({name for cell in cells for name in cell.engines}, key=engine_order)


def _hollow(cells: Sequence[RunCell]) -> str:
    return " Hollow marks are extrapolated to full depth." if any(cell.extrapolated for cell in cells) else ""


def label(cell: RunCell) -> str:
    """The kind of run and how many layers it had."""
    return f"{cell.id}, {cell.layers}L" + (" extrapolated" if cell.extrapolated else "")


# ---- tokens per second ----------------------------------------------------------------------------------------------
def rates(name: str, title: str, footer: str, cells: Sequence[RunCell]) -> Drawn | None:
    """Tokens per second of every engine, one row per cell; hollow where the figure is extrapolated."""
    engines = engines_of(cells)
    rows = [
        (cell.id, cell.layers, cell.extrapolated, engine, run.rate.value, run.rate.low, run.rate.high, cell.unit,
         run.samples)
        for cell in cells
        for engine in engines
        if (run := cell.engines.get(engine)) and math.isfinite(run.rate.value)
    ]  # fmt: skip
    if not rows:
        return None
    low, high = min(row[4] for row in rows), max(row[4] for row in rows)
    alt = (
        f"Tokens per second with intervals for {', '.join(engines)}, one row per kind of run and number of layers, "
        f"from {significant(low)} to {significant(high)}.{_hollow(cells)}"
    )
    columns = ("run", "layers", "extrapolated", "engine", "tokens_per_second", "low", "high", "unit", "samples")
    return Drawn(name, title, alt, footer, columns, rows, lambda: _draw_rates(cells, engines))


def _draw_rates(cells: Sequence[RunCell], engines: Sequence[str]) -> Figure:
    figure, axes = _rows_of(cells, tall=0.1 + 0.13 * len(engines))
    handles: dict[str, Handle] = {}
    intervals: list[tuple[float, float, float]] = []
    step = 0.8 / max(1, len(engines))
    for place, cell in enumerate(cells):
        for index, engine in enumerate(engines):
            if (run := cell.engines.get(engine)) and math.isfinite(run.rate.value):
                y = place + (index - (len(engines) - 1) / 2) * step
                mark = _mark(axes, run.rate, y, engine, hollow=cell.extrapolated)
                handles.setdefault(engine, mark)
                intervals += [(y, run.rate.low, run.rate.high)] if run.rate.has_ends else []
    log_axis_across(axes, [run.rate.value for cell in cells for run in cell.engines.values()], "tokens per second")
    mark_what_goes_on(axes, intervals, across=True)
    legend_above(figure, list(handles.values()), list(handles))
    return figure


# ---- speed over a baseline ------------------------------------------------------------------------------------------
def speeds(name: str, title: str, footer: str, cells: Sequence[RunCell], engine: str, baseline: str) -> Drawn | None:
    """Measured ratios with intervals, Amdahl's prediction below each, extrapolated ones hollow."""
    met = [(cell, found) for cell in cells if (found := _ratio(cell, engine, baseline))]
    if not met:
        return None
    rows = [
        (cell.id, cell.layers, cell.extrapolated, r.ratio.value, r.ratio.low, r.ratio.high, r.verdict,
         *_predicted(r), r.pairs)
        for cell, r in met
    ]  # fmt: skip
    slower = sum(r.verdict == "slower" for _, r in met)
    alt = (
        f"Speed of {engine} over {baseline} in whole models, one row per kind of run and number of layers, from "
        f"{ratio(min(row[3] for row in rows))} to {ratio(max(row[3] for row in rows))} around a line at 1; "
        f"slower in {slower} of {len(rows)}. Diamonds: what the layer's ratio predicts.{_hollow(cells)}"
    )
    columns = ("run", "layers", "extrapolated", "speedup", "low", "high", "verdict", "predicted", "predicted_low",
               "predicted_high", "pairs")  # fmt: skip
    return Drawn(name, title, alt, footer, columns, rows, lambda: _draw_speeds(met, engine))


def _ratio(cell: RunCell, engine: str, baseline: str) -> RunRatio | None:
    return next((r for r in cell.ratios if (r.engine, r.baseline) == (engine, baseline)), None)


def _predicted(found: RunRatio) -> tuple[float, float, float]:
    p = found.explanation.predicted if found.explanation else Interval(math.nan)
    return p.value, p.low, p.high


def _draw_speeds(met: Sequence[tuple[RunCell, RunRatio]], engine: str) -> Figure:
    figure, axes = _rows_of([cell for cell, _ in met], tall=0.3)
    handles: dict[str, Handle] = {}
    values: list[float] = []
    intervals: list[tuple[float, float, float]] = []
    for place, (cell, found) in enumerate(met):
        named = _FITTED if cell.extrapolated else "measured"
        handles.setdefault(named, _mark(axes, found.ratio, place - 0.13, engine, hollow=cell.extrapolated))
        values.append(found.ratio.value)
        intervals += [(place - 0.13, found.ratio.low, found.ratio.high)] if found.ratio.has_ends else []
        if found.explanation and math.isfinite(found.explanation.predicted.value):
            p = found.explanation.predicted
            (mark,) = axes.plot([p.value], [place + 0.2], marker="d", markersize=4.5, linestyle="none",
                                color=ROLES["muted"].light)  # fmt: skip
            _interval(axes, p, place + 0.2, ROLES["muted"].light)
            handles.setdefault(_PREDICTED, mark)
            values.append(p.value)
            intervals += [(place + 0.2, p.low, p.high)] if p.has_ends else []
    axes.axvline(1, color=ROLES["fg"].light, linewidth=1)
    low, high, ticks = ratio_ticks(values, [end for _, *ends in intervals for end in ends], room=9)
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    mark_what_goes_on(axes, intervals, across=True)
    axes.set_xlabel("speed over the baseline (right of 1: faster)")
    shown = [name for name in ("measured", _FITTED, _PREDICTED) if name in handles]
    legend_above(figure, [handles[name] for name in shown], shown)
    return figure


# ---- share of the experts -------------------------------------------------------------------------------------------
class Share(NamedTuple):
    """One engine in one cell; `of_slowest`: its time over that of the slowest engine of the cell."""

    run: str
    layers: int
    extrapolated: bool
    engine: str
    seconds: float
    experts_share: float
    low: float
    high: float
    of_slowest: float


def experts_share(name: str, title: str, footer: str, cells: Sequence[RunCell]) -> Drawn | None:
    """Time of each engine, split into experts and the rest, in percent of the slowest engine's time in the cell."""
    engines = engines_of(cells)
    rows: list[Share] = []
    for cell in cells:
        longest = max(run.seconds.value for run in cell.engines.values())
        for engine in engines:
            run = cell.engines.get(engine)
            if run and math.isfinite(run.share.value):
                share = run.share
                rows.append(Share(cell.id, cell.layers, cell.extrapolated, engine, run.seconds.value, share.value,
                                  share.low, share.high, run.seconds.value / longest))  # fmt: skip
    if not rows:
        return None
    least, most = min(row.experts_share for row in rows), max(row.experts_share for row in rows)
    alt = (
        f"Bars of the time of {', '.join(engines)} in each kind of run, split into the experts (coloured) and "
        f"everything else (pale); the experts take {percent(least)} to {percent(most)} of the time."
    )
    return Drawn(name, title, alt, footer, Share._fields, rows, lambda: _draw_shares(cells, engines, rows))


def _draw_shares(cells: Sequence[RunCell], engines: Sequence[str], rows: Sequence[Share]) -> Figure:
    figure, axes = _rows_of(cells, tall=0.08 + 0.15 * len(engines))
    step = 0.84 / max(1, len(engines))
    found = {row[:4]: row for row in rows}
    handles: dict[str, Handle] = {}
    rest_bar: Handle | None = None
    for place, cell in enumerate(cells):
        for index, engine in enumerate(engines):
            if (row := found.get((cell.id, cell.layers, cell.extrapolated, engine))) is None:
                continue
            look = engine_look(engine)
            y = place + (index - (len(engines) - 1) / 2) * step
            whole = row.of_slowest * 100
            experts = whole * row.experts_share
            bar = axes.barh(y, experts, step * 0.86, color=look.light, hatch=look.hatch, linewidth=0,
                            edgecolor=ROLES["bg"].light)  # fmt: skip
            rest_bar = axes.barh(y, whole - experts, step * 0.86, left=experts, color=ROLES["grid"].light, linewidth=0)
            _interval(axes, Interval(experts, row.low * whole, row.high * whole), y, ROLES["fg"].light)
            handles.setdefault(f"{engine}: experts", bar)
    if rest_bar is not None:
        handles["everything else"] = rest_bar
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of the slowest engine's time")
    legend_above(figure, list(handles.values()), list(handles))
    return figure


# ---- what they share ------------------------------------------------------------------------------------------------
def _rows_of(cells: Sequence[RunCell], *, tall: float) -> tuple[Figure, Axes]:
    """A figure with one row per cell, first on top, and names at the left."""
    names = [label(cell) for cell in cells]
    left = min(2.6, 0.25 + 0.068 * max(len(name) for name in names))
    figure, (axes,) = new_figure(0.95 + max(_ROW, tall) * len(cells), left=left)
    axes.set_yticks(range(len(cells)), names)
    axes.set_ylim(len(cells) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    for place in range(1, len(cells)):
        if cells[place].id != cells[place - 1].id:
            axes.axhline(place - 0.5, color=ROLES["grid"].light, linewidth=0.7)
    axes.tick_params(axis="y", length=0)
    assert figure.get_figwidth() == WIDTH
    return figure, axes


def _interval(axes: Axes, value: Interval, y: float, colour: str) -> None:
    if value.has_ends:
        gaps = [[max(value.value - value.low, 0)], [max(value.high - value.value, 0)]]
        axes.errorbar([value.value], [y], xerr=gaps, fmt="none", ecolor=colour, elinewidth=1.1, capsize=2)


def _mark(axes: Axes, value: Interval, y: float, engine: str, *, hollow: bool) -> Handle:
    look = engine_look(engine)
    _interval(axes, value, y, look.light)
    (mark,) = axes.plot([value.value], [y], marker=look.marker, linestyle="none", color=look.light,
                        markerfacecolor=ROLES["bg"].light if hollow else look.light)  # fmt: skip
    return mark
