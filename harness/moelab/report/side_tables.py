"""Tables that are no timings: counted instructions and predictions.

They come in small JSON files of their own ("moelab_table": 1; reports/README.md describes them) and get pages of their
own, so that a count or a prediction is never read as a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moelab.report.blocks import Banner, Command, Page, Section, Table, Text, Value
from moelab.report.reading import Node
from moelab.report.text import clean, significant

MARK = "moelab_table"
_MOST_COLUMNS, _MOST_ROWS = 40, 2000


@dataclass(frozen=True, slots=True)
class Kind:
    """A page: its title and what its reader has to know first."""

    title: str
    path: str
    warning: str


KINDS = {
    "counts": Kind(
        "Instruction counts",
        "counts.html",
        "Counts, not time: retired instructions under emulation. They are exact and the same on every run, and tell a "
        "changed kernel from an unchanged one, not how long it takes.",
    ),
    "prediction": Kind(
        "Predictions",
        "predictions.html",
        "Predicted, not measured: what a model of the core says about the instructions as built. The model's known "
        "errors are beside it.",
    ),
}


@dataclass(frozen=True, slots=True)
class SideTable:
    """One table of a file. `notes`: sentences about how it came about."""

    name: str
    digest: str
    kind: str
    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int]
    notes: tuple[str, ...]
    command: str
    synthetic: bool


def read_side_table(document: Node, name: str, digest: str, command: str) -> SideTable:
    """Raises ValueError for an unknown kind or a table without columns."""
    kind = document["kind"].text(limit=40)
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, must be one of {', '.join(KINDS)}")
    columns = tuple(_column(node) for node in list(document["columns"].items())[:_MOST_COLUMNS])
    if not columns:
        raise ValueError("a table without columns")
    cells = [list(row.items()) for row in list(document["rows"].items())[:_MOST_ROWS]]
    rows = [row[: len(columns)] + [Node(None)] * (len(columns) - len(row)) for row in cells]
    numeric = frozenset(i for i in range(len(columns)) if rows and all(_is_number(row[i]) for row in rows))
    origin = [
        (label, document[key].text())
        for label, key in (("tool", "tool"), ("machine", "machine"), ("revision", "revision"), ("date", "date"))
    ]
    return SideTable(
        name=clean(name, 200),
        digest=digest,
        kind=kind,
        title=document["title"].text(kind),
        about=document["about"].text(limit=1500),
        columns=columns,
        rows=tuple(tuple(_shown(node) for node in row) for row in rows),
        numeric=numeric,
        notes=(*document["notes"].texts(), *(f"{label}: {text}" for label, text in origin if text)),
        command=command,
        synthetic=document["synthetic"].flag() is True,
    )


def side_pages(found: Sequence[SideTable]) -> list[Page]:
    """One page per kind that there is something of."""
    pages = []
    for kind, about in KINDS.items():
        own = [table for table in found if table.kind == kind]
        if not own:
            continue
        page = Page(f"side-{kind}", about.path, about.title, group="Beside the bench")
        page.sections.append(Section("", [Banner("warning", about.warning)]))
        page.sections += [_section(table) for table in own]
        pages.append(page)
    return pages


def _section(table: SideTable) -> Section:
    section = Section(table.title)
    if table.synthetic:
        section.blocks.append(Banner("danger", "SYNTHETIC DATA: invented by a test"))
    if table.about:
        section.blocks.append(Text(table.about))
    rows: list[list[str | Value]] = [list(row) for row in table.rows]
    note = "; ".join((*(said.rstrip(".") for said in table.notes), f"{table.name} (sha256 {table.digest[:12]})")) + "."
    section.blocks.append(Table(table.title, table.columns, rows, table.numeric, note))
    if table.command:
        section.blocks.append(Command(table.command))
    return section


def _column(node: Node) -> str:
    if isinstance(node.value, dict):
        unit = node["unit"].text(limit=40)
        return node["name"].text("?", limit=80) + (f" [{unit}]" if unit else "")
    return node.text("?", limit=80)


def _is_number(node: Node) -> bool:
    return node.value is None or (isinstance(node.value, int | float) and not isinstance(node.value, bool))


def _shown(node: Node) -> str:
    if isinstance(node.value, float):
        return significant(node.number(), 4)
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return f"{node.value:,}".replace(",", "\u202f") if abs(node.value) < 10**30 else "–"
    return node.text("–", limit=300)
