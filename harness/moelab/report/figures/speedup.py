"""Speedup bars with intervals around the line at 1.0: ours against every backend, one model, machine and setting."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from moelab.report.figures.axes import ratio_axis
from moelab.report.figures.canvas import Drawn, legend_above, legend_rows, new_figure
from moelab.report.model import OURS, Cell
from moelab.report.palette import ROLES, backend_look, backend_order
from moelab.report.text import count, ratio


def speedup(name: str, title: str, footer: str, cells: Sequence[Cell]) -> Drawn | None:
    """None where ours was not compared with anything."""
    peers = sorted({peer for cell in cells if cell.ours for peer in cell.ours.comparisons}, key=backend_order)
    rows = [
        (cell.case.tokens, peer, c.ratio.value, c.ratio.low, c.ratio.high, c.verdict, c.pairs)
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
        f"Bars of {OURS}'s speedup with 95 % intervals against {', '.join(peers)} over the number of tokens: "
        f"from {ratio(low)} to {ratio(high)}; slower in {count(slower, 'comparison')} of {len(good)}."
    )
    columns = ("tokens", "against", "speedup", "low", "high", "verdict", "pairs")
    return Drawn(name, title, alt, footer, columns, rows, lambda: _draw(cells, peers))


def _draw(cells: Sequence[Cell], peers: Sequence[str]) -> Figure:
    figure, (axes,) = new_figure(3.3, legend_rows=legend_rows(len(peers)))
    width = 0.82 / len(peers)
    handles, values = [], []
    for index, peer in enumerate(peers):
        look = backend_look(peer)
        handle = None
        for place, cell in enumerate(cells):
            comparison = cell.ours.comparisons.get(peer) if cell.ours else None
            if comparison is None or comparison.verdict == "broken":
                continue
            r = comparison.ratio
            decided = comparison.verdict in ("faster", "slower")
            x = place + (index - (len(peers) - 1) / 2) * width
            # The bar starts at 1.0: up is faster, down is slower, and its length is the gain itself.
            bar = axes.bar(x, r.value - 1, width * 0.9, bottom=1, color=look.light, hatch=look.hatch,
                           alpha=1.0 if decided else 0.4, linewidth=0)  # fmt: skip
            handle = bar if decided or handle is None else handle
            values.append(r.value)
            if r.has_ends:
                values += [r.low, r.high]
                axes.errorbar(x, r.value, [[max(r.value - r.low, 0)], [max(r.high - r.value, 0)]], fmt="none",
                              ecolor=ROLES["fg"].light, elinewidth=0.9, capsize=min(2.0, width * 9))  # fmt: skip
        if handle is not None:
            handles.append((handle, f"vs {peer}"))
    axes.axhline(1, color=ROLES["fg"].light, linewidth=1)
    ratio_axis(axes, values)
    axes.set_xticks(range(len(cells)), [str(cell.case.tokens) for cell in cells])
    axes.set_xlim(-0.6, len(cells) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("tokens in the batch")
    axes.set_ylabel(f"speed of {OURS} (above 1: faster)")
    legend_above(figure, [handle for handle, _ in handles], [label for _, label in handles])
    return figure
