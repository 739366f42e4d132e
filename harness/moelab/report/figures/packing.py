"""How long each backend packs one layer, and how long its first result takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from moelab.report.figures.axes import log_axis_across
from moelab.report.figures.canvas import Drawn, legend_above, new_figure
from moelab.report.model import Interval, Packing, spread
from moelab.report.palette import ROLES, backend_look
from moelab.report.text import significant

COLUMNS = (
    "layer", "backend", "processes", "packing_seconds", "packing_seconds_low", "packing_seconds_high",
    "packing_gb_per_s", "weight_bytes", "packed_bytes", "extra_bytes", "first_call_seconds", "first_call_seconds_low",
    "first_call_seconds_high", "first_result_seconds", "first_result_seconds_low", "first_result_seconds_high",
)  # fmt: skip
_PACKED, _RESULT = "packing", "first result: packing and call"

Named = Sequence[tuple[str, Packing]]


def data_rows(layer: str, packed: Named) -> list[tuple[object, ...]]:
    """Rows of COLUMNS: medians over the processes with the least and the largest."""
    return [
        (layer, backend, len(p.seconds), *_ends(p.seconds), p.bytes_per_second / 1e9, p.weight_bytes, p.packed_bytes,
         spread(p.extra_bytes).value, *_ends(p.first_call), *_ends(p.first_result))
        for backend, p in packed
    ]  # fmt: skip


def _ends(values: Sequence[float]) -> tuple[float, float, float]:
    found = spread(values)
    return found.value, found.low, found.high


def packing(name: str, title: str, footer: str, layer: str, packed: Named) -> Drawn | None:
    """One row per backend; None where no time of packing is known."""
    shown = [(backend, p) for backend, p in packed if spread(p.seconds).low > 0]
    if not shown:
        return None
    shortest = min(shown, key=lambda row: _total(row[1]).value)
    alt = (
        f"Seconds to pack the layer and seconds until the first result for {', '.join(name for name, _ in shown)}, "
        f"on a log axis; the shortest until the first result is {significant(_total(shortest[1]).value)} s "
        f"({shortest[0]})."
    )
    return Drawn(name, title, alt, footer, COLUMNS, data_rows(layer, packed), lambda: _draw(shown))


def _total(p: Packing) -> Interval:
    """Until the first result; of packing alone where the first call is not known."""
    return spread(p.first_result or p.seconds)


def _draw(shown: Named) -> Figure:
    names = [backend for backend, _ in shown]
    left = min(2.4, 0.25 + 0.072 * max(len(name) for name in names))
    figure, (axes,) = new_figure(0.9 + 0.3 * len(names), left=left)
    for place, (backend, p) in enumerate(shown):
        colour = backend_look(backend).light
        packed, whole = spread(p.seconds), spread(p.first_result)
        _mark(axes, packed, place - 0.13, colour, colour)
        if math.isfinite(whole.value):
            _mark(axes, whole, place + 0.13, colour, ROLES["bg"].light)
    axes.set_yticks(range(len(names)), [name if len(name) < 34 else name[:32] + "…" for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    ends = [end for _, p in shown for value in (spread(p.seconds), spread(p.first_result)) for end in
            (value.low, value.high)]  # fmt: skip
    log_axis_across(axes, ends, "seconds")
    ink = ROLES["fg"].light
    handles = [
        Line2D([], [], marker="o", linestyle="none", color=ink, markerfacecolor=ground)
        for ground in (ink, ROLES["bg"].light)
    ]
    legend_above(figure, handles, [_PACKED, _RESULT])
    return figure


def _mark(axes: Axes, value: Interval, y: float, colour: str, ground: str) -> None:
    axes.plot([value.low, value.high], [y, y], color=colour, linewidth=1.1)
    axes.plot([value.value], [y], marker="o", linestyle="none", color=colour, markerfacecolor=ground)
