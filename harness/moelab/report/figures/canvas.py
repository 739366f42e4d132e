"""A matplotlib figure with its footer, its alternative text and its data, and how the three become files.

The SVG is written once: standing alone it brings its colours for light and dark; inside a page it takes the page's.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from moelab.report.palette import ROLES, all_looks, css_variables
from moelab.report.text import csv_cell

STYLE = Path(__file__).resolve().parent.parent / "moelab.mplstyle"
WIDTH = 6.6  # inches; at most half of a wide page, so that 9 pt text stays near 9 pt
_FOOTER_LINE = 0.115  # inches
_FOOTER_COLUMNS = 138  # characters of 5.6 pt that fit WIDTH
_FOOTER_MOST_LINES = 6
_FOOTER_ID = "origin"
_LEGEND_LONGEST = 40  # characters
_LEGEND_WIDEST = 0.985  # of the figure: fonts of readers may be a little wider

# Stands before every id of an inline SVG; the page puts its own name there, since one file may hold several pages.
# A private-use character, which clean text never holds.
ID_PREFIX = "\ue000"

Rows = Sequence[Sequence[object]]
Handle = Artist | Container


@dataclass(frozen=True, slots=True)
class Drawn:
    """One figure ready to be written.

    `name`: file name without ending. `columns` and `rows`: its data, as the CSV holds it. `draw`: makes the matplotlib
    figure; called once, only when the figure is really wanted.
    """

    name: str
    title: str
    alt: str
    footer: str
    columns: tuple[str, ...]
    rows: Rows
    draw: Callable[[], Figure]
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Files:
    """What one figure became: `inline` is SVG for a page, the names are relative to the site."""

    inline: str
    svg: str
    png: str
    csv: str


@contextmanager
def style() -> Iterator[None]:
    """The report's matplotlib style, whatever the caller's own settings are."""
    base = dict(mpl.rcParamsDefault)
    base.pop("backend", None)
    base.update(mpl.rc_params_from_file(STYLE, use_default_template=False))
    with mpl.rc_context(base), warnings.catch_warnings():
        # A name in a script that the font lacks is boxes in the PNG; the SVG leaves it to the reader's fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def new_figure(height: float, *, panels: int = 1, left: float = 0.8) -> tuple[Figure, list[Axes]]:
    """A figure of WIDTH x height inches with room for a title; legend and footer make their own room."""
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.subplots(1, panels, squeeze=False)[0]
    figure.subplots_adjust(left=left / WIDTH, right=1 - 0.16 / WIDTH, bottom=0.5 / height, top=1 - 0.34 / height,
                           wspace=0.28)  # fmt: skip
    return figure, list(axes)


def set_title(figure: Figure, title: str) -> None:
    figure.text(0.012, 1 - 0.07 / figure.get_figheight(), title, va="top", ha="left", size=10, weight="bold")


def legend_above(figure: Figure, handles: Sequence[Handle], labels: Sequence[str]) -> None:
    """One legend for the whole figure, under the title, in up to four columns as they fit; the figure grows by it."""
    FigureCanvasAgg(figure)  # measures text
    for columns in range(max(1, min(4, len(labels))), 0, -1):
        legend = _legend(figure, handles, labels, columns)
        size = legend.get_window_extent()
        if columns == 1 or size.width <= _LEGEND_WIDEST * figure.bbox.width:
            break
        legend.remove()
    _grow(figure, top=float(size.height) / figure.dpi)


def _legend(figure: Figure, handles: Sequence[Handle], labels: Sequence[str], columns: int) -> Legend:
    labels = [name if len(name) <= _LEGEND_LONGEST else name[: _LEGEND_LONGEST - 1] + "…" for name in labels]
    artists = cast("list[Artist]", list(handles))  # containers are as good; matplotlib's stubs do not say so
    # matplotlib fills column by column; this order reads row by row.
    order = [place for column in range(columns) for place in range(column, len(labels), columns)]
    shown = ([artists[i] for i in order], [labels[i] for i in order])
    return figure.legend(*shown, loc="upper left", bbox_to_anchor=(0.0, _legend_top(figure)), ncols=columns,
                         borderaxespad=0.2, handlelength=2.2, columnspacing=1.2, labelspacing=0.25)  # fmt: skip


def _legend_top(figure: Figure) -> float:
    return 1 - 0.27 / float(figure.get_figheight())


def _grow(figure: Figure, *, top: float = 0.0, bottom: float = 0.0) -> None:
    """Make the figure taller by so many inches; everything in it keeps its size and place."""
    width, height = (float(size) for size in figure.get_size_inches())
    grown = height + top + bottom
    boxes = [axes.get_position() for axes in figure.axes]
    figure.set_size_inches(width, grown)

    def moved(y: float) -> float:
        return (y * height + bottom) / grown

    for axes, box in zip(figure.axes, boxes, strict=True):
        axes.set_position((box.x0, moved(box.y0), box.width, box.height * height / grown))
    for text in figure.texts:
        x, y = text.get_position()
        text.set_position((x, moved(y)))
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0.0, _legend_top(figure)))


def save(drawn: Drawn, folder: Path) -> Files:
    """Write figures/NAME.svg, figures/NAME.png and data/NAME.csv under `folder`."""
    names = (f"figures/{drawn.name}.svg", f"figures/{drawn.name}.png", f"data/{drawn.name}.csv")
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    with style():
        figure, body = _finished(drawn)
        FigureCanvasAgg(figure)
        figure.savefig(folder / names[1], format="png", metadata={"Title": drawn.title, "Software": None})
        svg = _svg(figure)
    figure.clear()
    (folder / names[0]).write_text(_standalone(svg, drawn), encoding="utf-8")
    write_csv(data_path(folder, drawn.name), drawn.columns, drawn.rows)
    return Files(_inline(svg, drawn, body * 72), *names)


def standalone_svg(drawn: Drawn) -> str:
    """The SVG alone, as `save` writes it."""
    with style():
        figure, _ = _finished(drawn)
        return _standalone(_svg(figure), drawn)


def _finished(drawn: Drawn) -> tuple[Figure, float]:
    """The figure with title and footer, and its height in inches without the footer."""
    figure = drawn.draw()
    set_title(figure, drawn.title)
    body = float(figure.get_figheight())
    _add_footer(figure, drawn.footer)
    return figure, body


def data_path(folder: Path, name: str) -> Path:
    """Where the data of figure `name` goes; its folder exists afterwards."""
    path = folder / "data" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_csv(path: Path, columns: Sequence[str], rows: Rows) -> None:
    """Rows as CSV; an empty cell where there is no number."""
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(columns)
        writer.writerows([_plain(value) for value in row] for row in rows)


def _plain(value: object) -> object:
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    return csv_cell(value)


def _add_footer(figure: Figure, footer: str) -> None:
    """Grow the figure at the bottom by the footer, so that a picture that is passed on still tells its origin."""
    lines = [line for part in footer.split("\n") for line in textwrap.wrap(part, _FOOTER_COLUMNS) or [""]]
    if len(lines) > _FOOTER_MOST_LINES:
        lines = [*lines[: _FOOTER_MOST_LINES - 1], lines[_FOOTER_MOST_LINES - 1] + " …"]
    _grow(figure, bottom=_FOOTER_LINE * len(lines) + 0.12)
    grown = float(figure.get_figheight())
    figure.text(0.012, 0.06 / grown, "\n".join(lines), size=5.6, color=ROLES["muted"].light, va="bottom", ha="left",
                linespacing=1.25, gid=_FOOTER_ID)  # fmt: skip


# ---- SVG ------------------------------------------------------------------------------------------------------------
_ID = re.compile(r'\b(id|xlink:href|href)="(#?)([^"]+)"|url\(#([^)]+)\)')
_FOOTER_GROUP = re.compile(rf'<g id="{_FOOTER_ID}">.*?</g>', re.DOTALL)
# The figure's own background: a page has one, and shows through it that a narrow screen cuts the figure off.
_BACKGROUND = re.compile(r'<g id="patch_1">.*?</g>', re.DOTALL)
_STYLE_BLOCK = re.compile(r"<style[^>]*>.*?</style>", re.DOTALL)
_HEAD = re.compile(r"^.*?(?=<svg\b)", re.DOTALL)
_SVG_TAG = re.compile(r"<svg\b[^>]*>", re.DOTALL)
_VIEW_BOX = re.compile(r'viewBox="([^"]+)"')
_VARIABLES = {look.light: f"var(--c-{look.css}, {look.light})" for look in all_looks()}
_COLOUR = re.compile(r'(?<=: )(#[0-9a-f]{6})(?=[;"])')
_FILL = re.compile(r'\bfill="(#[0-9a-f]{6})"')  # the ground of a hatch


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": "moelab"}):
        FigureCanvasSVG(figure)
        figure.savefig(out, format="svg", metadata=nothing)
    svg = _FILL.sub(r'style="fill: \1"', out.getvalue())
    return _COLOUR.sub(lambda match: _VARIABLES.get(match[1], match[1]), svg)


def _standalone(svg: str, drawn: Drawn) -> str:
    colours = (
        f":root{{{css_variables(dark=False)}}}@media (prefers-color-scheme:dark){{:root{{{css_variables(dark=True)}}}}}"
    )
    title = f"<title>{_xml(drawn.title)}</title><desc>{_xml(drawn.alt)}</desc><style>{colours}</style>"
    return _SVG_TAG.sub(lambda match: match[0] + title, svg, count=1)


def _inline(svg: str, drawn: Drawn, body_points: float) -> str:
    """The SVG for a page: no header, no page-wide style, ids of its own, and no footer: the caption tells it."""
    box = _VIEW_BOX.search(svg)
    width = float(box[1].split()[2]) if box else WIDTH * 72
    svg = _FOOTER_GROUP.sub("", _STYLE_BLOCK.sub("", _HEAD.sub("", svg), count=1))
    svg = _BACKGROUND.sub("", svg, count=1)
    svg = _ID.sub(lambda match: _own_id(match, f"{ID_PREFIX}{drawn.name}-"), svg)
    tag = (
        f'<svg class="plot" role="img" aria-label="{_xml(drawn.alt)}" viewBox="0 0 {width:g} {body_points:g}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return _SVG_TAG.sub(lambda _: tag, svg, count=1).strip()


def _own_id(match: re.Match[str], prefix: str) -> str:
    if match[4] is not None:
        return f"url(#{prefix}{match[4]})"
    if match[1] != "id" and not match[2]:
        return match[0]
    return f'{match[1]}="{match[2]}{prefix}{match[3]}"'


def _xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
