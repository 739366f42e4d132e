"""The figure of a comparison: the change of every cell with its interval, around the line of no change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moelab.comparison import Change

COLOURS = {"faster": "#1b7837", "slower": "#b2182b", "same": "#4d4d4d", "undecided": "#9e9e9e"}


def draw(changes: Sequence[tuple[str, Change]], path: Path) -> None:
    """One row per case and backend, on a logarithmic axis; the band is the margin. Each change has its file's name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1 + 0.28 * len(changes)), layout="constrained")
    axes = figure.subplots()
    margin = changes[0][1].verdict.margin
    several = len({name for name, _ in changes}) > 1
    axes.axvspan(1 / (1 + margin), 1 + margin, color="#e8e8e8", zorder=0)
    axes.axvline(1.0, color="black", linewidth=0.8)
    for row, (_, change) in enumerate(reversed(changes)):
        ratio = change.ratio
        colour = COLOURS.get(change.verdict.table, "black")
        axes.plot([ratio.low, ratio.high], [row, row], color=colour, linewidth=2)
        axes.plot([ratio.value], [row], marker="o", markersize=4, color=colour)
    axes.set_xscale("log")
    names = [f"{f'{name}  ' if several else ''}{change.case}  {change.label}" for name, change in reversed(changes)]
    axes.set_yticks(range(len(changes)), names, fontsize=7)
    axes.set_xlabel("speed of new / old, 95 % interval (right of 1: faster)")
    figure.savefig(path)
