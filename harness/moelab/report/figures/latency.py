"""Time of a call against tokens, log-log, with the roofline bound drawn in."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from moelab.report.figures.axes import log_value_axis, mark_what_goes_on, token_axis
from moelab.report.figures.canvas import Drawn, Handle, legend_above, new_figure
from moelab.report.model import OURS, Cell, Measurement
from moelab.report.palette import ROLES, backend_look, backend_order
from moelab.report.text import milliseconds


def latency(name: str, title: str, footer: str, cells: Sequence[Cell]) -> Drawn | None:
    """None where no cell has a time."""
    backends = sorted({backend for cell in cells for backend in cell.measurements}, key=backend_order)
    rows = [
        (cell.case.tokens, backend, m.time.value * 1e3, m.time.low * 1e3, m.time.high * 1e3,
         m.roofline.bound_seconds * 1e3, len(m.samples.seconds), m.broken)
        for cell in cells
        for backend in backends
        if (m := cell.measurements.get(backend))
    ]  # fmt: skip
    if not rows:
        return None
    ours = [cell.ours.time.value for cell in cells if cell.ours]
    span = f"; {OURS} takes {milliseconds(min(ours))} to {milliseconds(max(ours))} ms" if ours else ""
    alt = (
        f"Milliseconds per call over {cells[0].case.tokens} to {cells[-1].case.tokens} tokens for "
        f"{', '.join(backends)}, with the roofline bound below{span}."
    )
    columns = ("tokens", "backend", "milliseconds", "low", "high", "roofline_bound_ms", "samples", "broken")
    return Drawn(name, title, alt, footer, columns, rows, lambda: _draw(cells, backends))


def bound_seconds(cell: Cell) -> float:
    """The lowest bound in the cell: that of ours where there is one, since bytes differ between backends."""
    own = cell.ours.roofline.bound_seconds if cell.ours else math.nan
    if math.isfinite(own):
        return own
    found = [m.roofline.bound_seconds for m in cell.measurements.values() if math.isfinite(m.roofline.bound_seconds)]
    return min(found, default=math.nan)


def _draw(cells: Sequence[Cell], backends: Sequence[str]) -> Figure:
    figure, (axes,) = new_figure(3.1)
    handles: list[Handle] = []
    labels: list[str] = []
    for backend in reversed(backends):
        points = [(cell.case.tokens, m) for cell in cells if (m := cell.measurements.get(backend))]
        look = backend_look(backend)
        line = axes.errorbar(
            [tokens for tokens, _ in points],
            [m.time.value * 1e3 for _, m in points],
            _ends([m for _, m in points]),
            color=look.light, marker=look.marker, dashes=look.dash or (None, None),
            linewidth=2.2 if backend == OURS else 1.3, elinewidth=0.9,
        )  # fmt: skip
        broken = [(tokens, m) for tokens, m in points if m.broken]
        axes.plot([tokens for tokens, _ in broken], [m.time.value * 1e3 for _, m in broken], linestyle="none",
                  marker="o", markersize=11, markerfacecolor="none", color=ROLES["fg"].light)  # fmt: skip
        handles.append(line)
        labels.append(backend)
    bounds = [(cell.case.tokens, bound_seconds(cell) * 1e3) for cell in cells]
    bounds = [(tokens, bound) for tokens, bound in bounds if math.isfinite(bound)]
    if bounds:
        x, y = [tokens for tokens, _ in bounds], [bound for _, bound in bounds]
        (roof,) = axes.plot(x, y, color=ROLES["fg"].light, linewidth=1, linestyle=(0, (1, 1)))
        axes.fill_between(x, y, [min(y) / 1e3] * len(y), color=ROLES["shade"].light, linewidth=0, zorder=0)
        handles.append(roof)
        labels.append("roofline bound")
    found = [(cell.case.tokens, m.time) for cell in cells for m in cell.measurements.values()]
    intervals = [(tokens, time.low * 1e3, time.high * 1e3) for tokens, time in found if time.has_ends]
    least = min([time.value * 1e3 for _, time in found] + [bound for _, bound in bounds])
    most = max(time.value * 1e3 for _, time in found)
    # An interval of many decades would flatten everything else.
    low = max(least / 3, min([least / 1.3, *(end for _, end, _ in intervals)]))
    high = min(most * 3, max([most * 1.2, *(end for _, _, end in intervals)]))
    axes.set_ylim(low / 1.15, high * 1.15)
    log_value_axis(axes, "milliseconds per call")
    mark_what_goes_on(axes, intervals)
    token_axis(axes, [cell.case.tokens for cell in cells])
    order = sorted(range(len(labels)), key=lambda i: (labels[i] == "roofline bound", backend_order(labels[i])))
    legend_above(figure, [handles[i] for i in order], [labels[i] for i in order])
    return figure


def _ends(measurements: Sequence[Measurement]) -> list[list[float]]:
    def gap(value: float) -> float:
        return max(value, 0.0) * 1e3 if math.isfinite(value) else 0.0

    times = [m.time for m in measurements]
    return [[gap(t.value - t.low) for t in times], [gap(t.high - t.value) for t in times]]
