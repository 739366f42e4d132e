"""The A/A distribution: one backend against itself, so what this machine shows where there is no difference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from moelab.report.figures.canvas import Drawn, new_figure
from moelab.report.model import Cell
from moelab.report.palette import ROLES
from moelab.report.text import count


def control(name: str, title: str, footer: str, cells: Sequence[Cell], margin: float) -> Drawn | None:
    """None where no run had a control."""
    with_control = [cell for cell in cells if cell.control]
    rows: list[tuple[str, int, str, str, float]] = []
    for cell in with_control:
        assert cell.control is not None
        head = (cell.case.workload, cell.case.tokens, cell.setting.label)
        rows += [(*head, "round", ratio) for ratio in cell.control_ratios]
        rows.append((*head, "median", cell.control.ratio.value))
        rows += [
            (*head, kind, end) for kind, end in (("low", cell.control.ratio.low), ("high", cell.control.ratio.high))
        ]
    if not rows:
        return None
    outside = sum(cell.control is not None and not _inside(cell, margin) for cell in with_control)
    rounds = [row[4] for row in rows if row[3] == "round"]
    spread = ""
    if rounds:
        low, high = np.quantile(rounds, [0.05, 0.95])
        spread = f"; nine of ten single rounds lie between {low - 1:+.1%} and {high - 1:+.1%}"
    alt = (
        f"Distribution of the A/A control's ratios around 1.0 in {count(len(with_control), 'cell')}{spread}; the "
        f"interval leaves the {margin:.0%} margin in {outside}."
    )
    columns = ("workload", "tokens", "setting", "kind", "ratio")
    return Drawn(name, title, alt, footer, columns, rows, lambda: _draw(with_control, rounds, margin))


def _inside(cell: Cell, margin: float) -> bool:
    assert cell.control is not None
    r = cell.control.ratio
    return r.has_ends and r.low >= 1 / (1 + margin) and r.high <= 1 + margin


def _draw(cells: Sequence[Cell], rounds: Sequence[float], margin: float) -> Figure:
    figure, (left, right) = new_figure(2.9, panels=2)
    ends = [value for cell in cells if cell.control for value in (cell.control.ratio.low, cell.control.ratio.high)]
    shown = [abs(math.log(value)) for value in (*rounds, *ends) if math.isfinite(value)]
    limit = min(1.0, max(margin * 1.5, float(np.quantile(shown, 0.99)) * 1.1 if shown else 0.0))
    for axes in (left, right):
        axes.axvspan(-margin, margin, color=ROLES["shade"].light, linewidth=0, zorder=0)
        axes.axvline(0, color=ROLES["fg"].light, linewidth=0.9)
        axes.set_xlim(-limit, limit)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if limit > 0.03 else 1))
        axes.locator_params(axis="x", nbins=5)
    if rounds:
        left.hist(np.clip(np.array(rounds) - 1, -limit, limit), bins=40, range=(-limit, limit),
                  color=ROLES["muted"].light)  # fmt: skip
    left.set_xlabel("single rounds: difference from itself")
    left.set_ylabel("rounds")
    left.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ordered = sorted((cell.control.ratio for cell in cells if cell.control), key=lambda ratio: ratio.value)
    for place, ratio in enumerate(ordered):
        bar = [[max(ratio.value - ratio.low, 0)], [max(ratio.high - ratio.value, 0)]] if ratio.has_ends else None
        right.errorbar(ratio.value - 1, place, xerr=bar, fmt="o", markersize=3, color=ROLES["fg"].light,
                       elinewidth=0.9, capsize=0)  # fmt: skip
    right.set_yticks([])
    right.set_ylim(-1, len(ordered))
    right.set_xlabel("per cell: median and interval")
    return figure
