"""Two heat maps: percent of the roofline (backend x tokens), and speedup (model x tokens) with its verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from moelab.report.figures.axes import named_places
from moelab.report.figures.canvas import WIDTH, Drawn, new_figure
from moelab.report.model import OURS, Cell
from moelab.report.palette import backend_order
from moelab.report.text import ratio

_DARK, _LIGHT = "#101010", "#fefefe"  # on the cells' own colours, the same on a light and a dark page
# More columns than so many have no room for upright numbers, more than that for none: the colours and the data remain.
_MOST_UPRIGHT, _MOST_COLUMNS = 12, 32
_MARKS = {"same": " =", "undecided": " ?", "broken": " !"}


def roofline_percent(name: str, title: str, footer: str, cells: Sequence[Cell]) -> Drawn | None:
    """None where no measurement has a roofline."""
    backends = sorted({backend for cell in cells for backend in cell.measurements}, key=backend_order)
    rows = [
        (cell.case.tokens, backend, m.roofline.fraction.value * 100, m.roofline.fraction.low * 100,
         m.roofline.fraction.high * 100, m.roofline.limit, m.broken)
        for cell in cells
        for backend in backends
        if (m := cell.measurements.get(backend)) and math.isfinite(m.roofline.fraction.value)
    ]  # fmt: skip
    if not rows:
        return None
    best = max((row for row in rows if not row[6]), key=lambda row: row[2], default=None)
    peak = f"; the highest is {best[2]:.0f} % ({best[1]}, {best[0]} tokens)" if best else ""
    alt = f"Table of the percent of the roofline that {', '.join(backends)} reach at each number of tokens{peak}."
    tokens = [cell.case.tokens for cell in cells]
    values = {(row[1], row[0]): row[2] for row in rows}
    texts = {(row[1], row[0]): f"{row[2]:.0f}" + (" !" if row[6] else "") for row in rows}

    def draw() -> Figure:
        return _grid(backends, tokens, values, texts, Normalize(0, 100), "cividis", str, "percent of the roofline")

    columns = ("tokens", "backend", "percent_of_roofline", "low", "high", "limited_by", "broken")
    return Drawn(name, title, alt, footer, columns, rows, draw)


def ratio_table(name: str, title: str, footer: str, cells: Sequence[Cell], against: str) -> Drawn | None:
    """Models x tokens with ours over one other backend; None where the two never met."""
    met = [(cell, c) for cell in cells if cell.ours and (c := cell.ours.comparisons.get(against))]
    if not met:
        return None
    rows = [
        (cell.case.workload, cell.case.tokens, c.ratio.value, c.ratio.low, c.ratio.high, c.verdict, c.pairs)
        for cell, c in met
    ]
    models = sorted({row[0] for row in rows})
    tokens = sorted({row[1] for row in rows})
    values = {(row[0], row[1]): math.log2(row[2]) for row in rows}
    texts = {(row[0], row[1]): ratio(row[2])[:-1] + _MARKS.get(row[5], "") for row in rows}
    limit = max(1.0, *(abs(value) for value in values.values()))
    alt = (
        f"Table of {OURS}'s speed over {against} per model and number of tokens, from "
        f"{ratio(min(row[2] for row in rows))} to {ratio(max(row[2] for row in rows))}. "
        "A number alone is decided; = is the same, ? undecided, ! a broken measurement."
    )

    def draw() -> Figure:
        return _grid(models, tokens, values, texts, Normalize(-limit, limit), "PuOr_r", _ratio_tick,
                     f"speed over {against}")  # fmt: skip

    columns = ("workload", "tokens", "speedup", "low", "high", "verdict", "pairs")
    return Drawn(name, title, alt, footer, columns, rows, draw)


def _ratio_tick(value: float) -> str:
    return f"{2**value:.2g}x"


def _grid(
    names: Sequence[str],
    tokens: Sequence[int],
    values: dict[tuple[str, int], float],
    texts: dict[tuple[str, int], str],
    norm: Normalize,
    colours: str,
    tick: Callable[[float], str],
    label: str,
) -> Figure:
    height = 1.25 + 0.3 * len(names)
    longest = max(len(name) for name in names)
    figure, (axes,) = new_figure(height, left=min(2.4, 0.25 + 0.072 * longest))
    grid: npt.NDArray[np.float64] = np.array([[values.get((n, t), math.nan) for t in tokens] for n in names])
    image = axes.pcolormesh(np.ma.masked_invalid(grid), cmap=colours, norm=norm, edgecolors="face", linewidth=0)
    colour_of = mpl.colormaps[colours]
    fits, turned = len(tokens) <= _MOST_COLUMNS, 90 if len(tokens) > _MOST_UPRIGHT else 0
    for row, name in enumerate(names):
        for column, token in enumerate(tokens):
            if (text := texts.get((name, token))) is None:
                if fits:
                    axes.text(column + 0.5, row + 0.5, "–", ha="center", va="center", size=8)
                continue
            red, green, blue, _ = colour_of(norm(values[(name, token)]))
            dark_cell = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.2
            if fits:
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", size=8.5, rotation=turned,
                          color=_LIGHT if dark_cell else _DARK)  # fmt: skip
    named_places(axes, [str(token) for token in tokens], 0.5)
    axes.set_yticks(np.arange(len(names)) + 0.5, [name if len(name) < 34 else name[:32] + "…" for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("tokens in the batch")
    box = axes.get_position()
    axes.set_position((box.x0, box.y0, box.width - 0.62 / WIDTH, box.height))
    scale = figure.add_axes((box.x1 - 0.45 / WIDTH, box.y0, 0.11 / WIDTH, box.height))
    bar = figure.colorbar(image, cax=scale)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(lambda value, _: tick(value) if tick is not str else f"{value:.0f}")
    bar.ax.set_title(label, size=8, weight="normal", loc="right", pad=4)
    return figure
