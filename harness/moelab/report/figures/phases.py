"""Where the time of a call goes: shares of route, pack, GEMM1, GEMM2 and combine over tokens."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from moelab.report.figures.canvas import Drawn, legend_above, new_figure
from moelab.report.model import OURS, Cell
from moelab.report.palette import PHASES, ROLES
from moelab.report.text import percent

LABELS = {"route": "route", "pack": "pack rows", "gemm1": "GEMM1", "gemm2": "GEMM2", "combine": "combine",
          "wait": "wait"}  # fmt: skip


def phases(name: str, title: str, footer: str, cells: Sequence[Cell]) -> Drawn | None:
    """None where the run did not split its calls (`bench --profile` does)."""
    split = [(cell.case.tokens, cell.ours.phases) for cell in cells if cell.ours and sum(cell.ours.phases.values()) > 0]
    if not split:
        return None
    rows = [
        (tokens, phase, seconds * 1e3, seconds / sum(own.values()))
        for tokens, own in split
        for phase, seconds in own.items()
    ]
    largest = max(rows, key=lambda row: row[3])
    alt = (
        f"Shares of the time of one {OURS} call by phase at {', '.join(str(t) for t, _ in split)} tokens; the largest "
        f"is {LABELS[largest[1]]} with {percent(largest[3])} at {largest[0]} tokens."
    )
    columns = ("tokens", "phase", "milliseconds", "share")
    return Drawn(name, title, alt, footer, columns, rows, lambda: _draw(rows))


def _draw(rows: Sequence[tuple[int, str, float, float]]) -> Figure:
    tokens = sorted({row[0] for row in rows})
    figure, (axes,) = new_figure(0.97 + 0.28 * len(tokens))
    share = {(row[0], row[1]): row[3] for row in rows}
    left = [0.0] * len(tokens)
    handles, labels = [], []
    for phase, look in PHASES.items():
        widths = [share.get((count, phase), 0.0) * 100 for count in tokens]
        if not any(widths):
            continue
        bars = axes.barh(range(len(tokens)), widths, 0.72, left=left, color=look.light, hatch=look.hatch,
                         edgecolor=ROLES["bg"].light, linewidth=0)  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
        handles.append(bars)
        labels.append(LABELS[phase])
    axes.set_yticks(range(len(tokens)), [str(count) for count in tokens])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of the call")
    axes.set_ylabel("tokens")
    legend_above(figure, handles, labels)
    return figure
