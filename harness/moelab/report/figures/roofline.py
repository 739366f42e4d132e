"""The roofline plot: FLOP/s over FLOPs per byte, with the roof measured beside the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from moelab.report.figures.axes import log_value_axis
from moelab.report.figures.canvas import Drawn, Handle, legend_above, new_figure
from moelab.report.model import Cell, Measurement
from moelab.report.palette import ROLES, backend_look, backend_order
from moelab.report.text import significant


def roofline(name: str, title: str, footer: str, cells: Sequence[Cell]) -> Drawn | None:
    """None without both probes, or without bytes and FLOPs."""
    points = [(cell.case.tokens, m) for cell in cells for m in cell.measurements.values() if _complete(m)]
    if not points:
        return None
    points.sort(key=lambda point: (backend_order(point[1].backend), point[0]))
    rows = [
        (tokens, m.backend, m.roofline.flops / m.roofline.bytes, m.roofline.flops / m.time.value / 1e9,
         m.roofline.peak / 1e9, m.roofline.bandwidth / 1e9, m.broken)
        for tokens, m in points
    ]  # fmt: skip
    backends = list(dict.fromkeys(row[1] for row in rows))
    peak, band = _middle([row[4] for row in rows]), _middle([row[5] for row in rows])
    alt = (
        f"GFLOP/s over FLOPs per byte of memory traffic for {', '.join(backends)} under a roof of "
        f"{significant(peak)} GFLOP/s and {significant(band)} GB/s, both measured beside the samples."
    )
    columns = ("tokens", "backend", "flops_per_byte", "gflops", "probe_gflops", "probe_read_gb_per_s", "broken")
    return Drawn(name, title, alt, footer, columns, rows, lambda: _draw(points, backends))


def _complete(m: Measurement) -> bool:
    r = m.roofline
    return all(math.isfinite(value) for value in (r.bytes, r.flops, r.peak, r.bandwidth))


def _middle(values: Sequence[float]) -> float:
    return float(np.median(values))


def _draw(points: Sequence[tuple[int, Measurement]], backends: Sequence[str]) -> Figure:
    figure, (axes,) = new_figure(3.1)
    peaks = [m.roofline.peak / 1e9 for _, m in points]
    bands = [m.roofline.bandwidth / 1e9 for _, m in points]
    intensities = [m.roofline.flops / m.roofline.bytes for _, m in points]
    ridge = _middle(peaks) / _middle(bands)
    x = np.geomspace(min(intensities) / 2, max(*intensities, ridge) * 2, 200)
    roof = np.minimum(_middle(peaks), x * _middle(bands))
    axes.fill_between(x, np.minimum(min(peaks), x * min(bands)), np.minimum(max(peaks), x * max(bands)),
                      color=ROLES["grid"].light, linewidth=0, zorder=0)  # fmt: skip
    (line,) = axes.plot(x, roof, color=ROLES["fg"].light, linewidth=1.1)
    handles: list[Handle] = []
    for backend in backends:
        look = backend_look(backend)
        own = [(tokens, m) for tokens, m in points if m.backend == backend]
        (marks,) = axes.plot(
            [m.roofline.flops / m.roofline.bytes for _, m in own],
            [m.roofline.flops / m.time.value / 1e9 for _, m in own],
            color=look.light, marker=look.marker, dashes=look.dash or (None, None), linewidth=0.8,
        )  # fmt: skip
        handles.append(marks)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(x[0], x[-1])
    lowest = min(m.roofline.flops / m.time.value / 1e9 for _, m in points)
    axes.set_ylim(lowest / 2, max(peaks) * 1.5)
    log_value_axis(axes, "GFLOP/s")
    _name_tokens(axes, [(tokens, m) for tokens, m in points if m.backend == backends[0]])
    axes.set_xlabel("FLOPs per byte that must come from memory (numbers: tokens)")
    legend_above(figure, [*handles, line], [*backends, "roof (shade: range of the probes)"])
    return figure


def _name_tokens(axes: Axes, own: Sequence[tuple[int, Measurement]]) -> None:
    """Tokens above their points, as far as they do not lie on each other."""
    kept: list[tuple[float, float]] = []
    for tokens, m in own:
        place = (m.roofline.flops / m.roofline.bytes, m.roofline.flops / m.time.value / 1e9)
        x, y = axes.transData.transform(place)
        room = 5.5 * len(str(tokens)) + 3
        if all(abs(x - other_x) > room or abs(y - other_y) > 10 for other_x, other_y in kept):
            axes.annotate(str(tokens), place, xytext=(0, 5), textcoords="offset points", size=8, ha="center")
            kept.append((x, y))
