"""What pages are made of. The same blocks become HTML and Markdown, so that both say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from moelab.report.figures.canvas import Drawn, Files


@dataclass(frozen=True, slots=True)
class Link:
    """Text that leads to a page of the report (`page`: its id), to a file beside it, or to an address on the web."""

    text: str
    page: str = ""
    file: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A table cell: text, a second line, and a tone (good, bad, warn, muted) that never stands without the words."""

    text: str
    under: str = ""
    tone: str = ""
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; `lead` sets it larger."""

    kind = "text"
    text: str
    lead: bool = False


@dataclass(frozen=True, slots=True)
class Banner:
    """What must not be overlooked. `level`: danger, warning or info."""

    kind = "banner"
    level: str
    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """`numeric`: which columns are numbers, aligned to the right. The first column heads its row.

    `data`: name of the CSV file that holds the same and more, "" for none.
    """

    kind = "table"
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str | Value]]
    numeric: frozenset[int] = frozenset()
    note: str = ""
    data: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """`files` is None where the report drew no more figures: then only the data is there."""

    kind = "figure"
    drawn: Drawn
    files: Files | None


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    kind = "bullets"
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Links:
    """A row of links."""

    kind = "links"
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """One command to copy."""

    kind = "command"
    text: str


Block = Text | Banner | Table | Figure | Bullets | Links | Command


@dataclass(slots=True)
class Section:
    """A heading (none for "") and its blocks. `brief`: also part of the short Markdown summary."""

    title: str
    blocks: list[Block] = field(default_factory=list)
    brief: bool = False


@dataclass(slots=True)
class Page:
    """One page: `id` is unique in the report, `path` its file in the site."""

    id: str
    path: str
    title: str
    sections: list[Section] = field(default_factory=list)
    group: str = ""
