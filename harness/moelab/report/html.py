"""Pages to HTML: a site of small files, and one file that needs nothing beside it."""

from __future__ import annotations

import base64
import functools
import os
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from moelab.report.blocks import Figure, Link, Page
from moelab.report.figures.canvas import ID_PREFIX
from moelab.report.palette import css_variables
from moelab.report.text import slug

TEMPLATES = Path(__file__).resolve().parent / "templates"
# A page lists at most so many machines in its navigation; the front page has them all.
MOST_IN_MENU = 8
_SHORT = 24
_OPTION = re.compile(r"(?<!\S)(--[a-z][a-z-]*)")
# Stands in the style sheet twice: for readers whose system is dark, and for those who chose dark on the page.
_DARK_PAGE = (
    "--page:#14171c;--panel:#1c2128;--line:#363d48;--text:#e8eaed;--soft:#a9b2be;--link:#8ab8ff;--good:#7fd79a;"
    "--bad:#ff9a94;--warn:#f0c067;--danger-bg:#43191b;--warning-bg:#3b2d10;--info-bg:#17273b;--shadow:#000c;"
)


class _Place:
    """What a template asks of the page that it is rendering: where links lead, and figures with ids of their own."""

    def __init__(self, pages: Sequence[Page], page: Page, folder: Path, *, single: bool) -> None:
        self._paths = {other.id: other.path for other in pages}
        self._page = page
        self._folder = folder
        self._single = single

    def href(self, link: Link) -> str:
        """The address of a link, "" where it leads nowhere from here."""
        if link.url:
            return link.url if link.url.startswith("https://") else ""
        if link.page:
            path = self._paths.get(link.page, "")
            return (f"#{link.page}" if self._single else self._relative(path)) if path else ""
        return "" if self._single or not link.file else self._relative(link.file)

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, PurePosixPath(self._page.path).parent)

    def root(self, path: str) -> str:
        return self._relative(path)

    def anchor(self, title: str) -> str:
        return f"{self._page.id}-{slug(title)}" if self._single else slug(title)

    def plot(self, figure: Figure) -> Markup:
        """The inline SVG; its text was escaped by matplotlib and canvas, so it is markup."""
        assert figure.files is not None
        prefix = f"{self._page.id}-" if self._single else ""
        return Markup(figure.files.inline.replace(ID_PREFIX, prefix))  # noqa: S704

    def downloads(self, figure: Figure) -> list[tuple[str, str, str]]:
        """(label, address, file name) of what belongs to a figure."""
        found = [self.data(figure.drawn.name)]
        if figure.files and not self._single:
            pictures = (("SVG", figure.files.svg), ("PNG", figure.files.png))
            found += [(label, self._relative(path), PurePosixPath(path).name) for label, path in pictures]
        return found

    def data(self, name: str) -> tuple[str, str, str]:
        """(label, address, file name) of the CSV called `name`."""
        path = f"data/{name}.csv"
        if self._single:
            raw = base64.b64encode((self._folder / path).read_bytes()).decode()
            return "CSV", f"data:text/csv;base64,{raw}", f"{name}.csv"
        return "CSV", self._relative(path), f"{name}.csv"


@functools.cache  # compiling the templates takes longer than a small report
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["breakable"] = _breakable
    environment.filters["groupby_kind"] = lambda found: [list(run) for _, run in groupby(found, key=lambda b: b.kind)]
    return environment


def _breakable(text: str) -> Markup:
    """Lets a long identifier break after _ / : and comma instead of widening its column."""
    broken = escape(text)
    if len(text) < _SHORT:
        return broken
    for mark in ("_", "/", ":"):
        broken = broken.replace(mark, Markup(mark + "<wbr>"))  # noqa: S704
    return Markup(_OPTION.sub(r'<span class="w">\1</span>', str(broken)))  # noqa: S704


def stylesheet() -> str:
    """The page's CSS with the colours of the palette."""
    css = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    light, dark = css_variables(dark=False), css_variables(dark=True) + _DARK_PAGE
    return css.replace("/*light*/", light).replace("/*dark*/", dark)


def script() -> str:
    """What the pages can do where scripts run: light or dark by hand, sorting and filtering of tables."""
    return (TEMPLATES / "report.js").read_text(encoding="utf-8")


def write_site(pages: Sequence[Page], folder: Path) -> None:
    """One HTML file per page, one style sheet, one script."""
    template = _environment().get_template("page.html")
    (folder / "style.css").write_text(stylesheet(), encoding="utf-8")
    (folder / "report.js").write_text(script(), encoding="utf-8")
    for page in pages:
        place = _Place(pages, page, folder, single=False)
        path = folder / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = template.render(
            page=page, pages=pages, place=place, menu=_menu(pages), front=pages[0], home=_home(pages)
        )
        path.write_text(text, encoding="utf-8")


def write_single(pages: Sequence[Page], path: Path, folder: Path) -> None:
    """Every page in one file, styles, figures and data included."""
    places = [(page, _Place(pages, page, folder, single=True)) for page in pages]
    text = (
        _environment()
        .get_template("single.html")
        .render(
            pages=pages,
            places=places,
            menu=_menu(pages),
            front=pages[0],
            home=_home(pages),
            css=Markup(stylesheet()),  # noqa: S704
            script=Markup(script()),  # noqa: S704
        )
    )
    path.write_text(text, encoding="utf-8")


def _home(pages: Sequence[Page]) -> Link:
    return Link("Summary", page=pages[0].id)


def _menu(pages: Sequence[Page]) -> list[tuple[str, list[Link], int]]:
    """(group, links, how many more) for the navigation."""
    menu = []
    for group in ("Models", "Machines", "Beside the bench"):
        own = [Link(page.title, page=page.id) for page in pages if page.group == group]
        if own:
            menu.append((group, own[:MOST_IN_MENU], max(0, len(own) - MOST_IN_MENU)))
    return menu
