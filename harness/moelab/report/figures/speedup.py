"""Speedup bars with intervals around the line at 1.0: ours against every backend, one model, machine and setting."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from moelab.report.figures.axes import mark_what_goes_on, named_places, ratio_axis
from moelab.report.figures.canvas import Drawn, Handle, legend_above, new_figure
from moelab.report.model import OURS, Cell, Comparison, Interval
from moelab.report.palette import ROLES, backend_look, backend_order
from moelab.report.text import count, ratio

_DECIDED = ("faster", "slower")


def speedup(name: str, title: str, footer: str, cells: Sequence[Cell]) -> Drawn | None:
    """None where ours was not compared with anything."""
    peers = sorted({peer for cell in cells if cell.ours for peer in cell.ours.comparisons}, key=backend_order)
    rows = [
        (cell.case.tokens, peer, c.ratio.value, c.ratio.low, c.ratio.high, c.verdict, c.pairs, c.minimum_detectable)
        for cell in cells
        if cell.ours
        for peer in peers
        if (c := cell.ours.comparisons.get(peer))
    ]
    good = [row for row in rows if row[5] != "broken"]
    if not good:
        return None
    low, high = min(row[2] for row in good), max(row[2] for row in good)
    slower = sum(row[5] == "slower" for row in good)
    alt = (
        f"Bars of {OURS}'s speedup with its intervals against {', '.join(peers)} over the number of tokens: "
        f"from {ratio(low)} to {ratio(high)}; slower in {count(slower, 'comparison')} of {len(good)}."
    )
    columns = ("tokens", "against", "speedup", "low", "high", "verdict", "pairs", "minimum_detectable")
    return Drawn(name, title, alt, footer, columns, rows, lambda: _draw(cells, peers))


def _draw(cells: Sequence[Cell], peers: Sequence[str]) -> Figure:
    figure, (axes,) = new_figure(3.1)
    width = 0.82 / len(peers)
    handles: dict[str, Handle] = {}
    values: list[float] = []
    intervals: list[tuple[float, float, float]] = []
    for index, peer in enumerate(peers):
        shift = (index - (len(peers) - 1) / 2) * width
        found = [(place + shift, c) for place, cell in enumerate(cells) if (c := _good(cell, peer))]
        for decided in (False, True):
            own = [(x, c.ratio) for x, c in found if (c.verdict in _DECIDED) == decided]
            if own:
                _bars(axes, own, peer, width, alpha=1.0 if decided else 0.4)
                look = backend_look(peer)
                handles[f"vs {peer}"] = Patch(facecolor=look.light, hatch=look.hatch, linewidth=0)
                values += [r.value for _, r in own]
                intervals += [(x, r.low, r.high) for x, r in own if r.has_ends]
    axes.axhline(1, color=ROLES["fg"].light, linewidth=1)
    ratio_axis(axes, values, [end for _, low, high in intervals for end in (low, high)])
    mark_what_goes_on(axes, intervals)
    named_places(axes, [str(cell.case.tokens) for cell in cells])
    axes.set_xlim(-0.6, len(cells) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("tokens in the batch")
    axes.set_ylabel(f"speed of {OURS}")
    legend_above(figure, list(handles.values()), list(handles))
    return figure


def _good(cell: Cell, peer: str) -> Comparison | None:
    comparison = cell.ours.comparisons.get(peer) if cell.ours else None
    return comparison if comparison and comparison.verdict != "broken" else None


def _bars(axes: Axes, own: Sequence[tuple[float, Interval]], peer: str, width: float, alpha: float) -> None:
    look = backend_look(peer)
    x = [place for place, _ in own]
    # A bar starts at 1.0: up is faster, down is slower, and its length is the gain itself.
    axes.bar(x, [r.value - 1 for _, r in own], width * 0.9, bottom=1, color=look.light, hatch=look.hatch,
             alpha=alpha, linewidth=0)  # fmt: skip
    gaps = [
        [max(r.value - r.low, 0.0) if r.has_ends else 0.0 for _, r in own],
        [max(r.high - r.value, 0.0) if r.has_ends else 0.0 for _, r in own],
    ]
    axes.errorbar(x, [r.value for _, r in own], gaps, fmt="none", ecolor=ROLES["fg"].light, elinewidth=0.9,
                  capsize=min(2.0, width * 9))  # fmt: skip
