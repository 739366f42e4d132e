"""Pages to Markdown, for a job summary, a pull request or the README: the brief sections, text and tables only.

Every value that a template prints is escaped unless it is Raw, as autoescape does for HTML.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from moelab.report.blocks import Page, Table, Value

TEMPLATES = Path(__file__).resolve().parent / "templates"
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~$!@&])")
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(x|\u202f%)?$")


class Raw(str):
    """Markdown that is already right."""

    __slots__ = ()


def escape(value: object) -> str:
    """Any value as plain text inside Markdown: no markup, no table cell, no mention, no link of its own."""
    if isinstance(value, Raw):
        return value
    text = " ".join(str(value).split())
    if _NUMBER.match(text):
        return text
    return _SPECIAL.sub(r"\\\1", text).replace("://", ":\u200b//")


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=False, undefined=StrictUndefined, trim_blocks=True,  # noqa: S701
        lstrip_blocks=True, finalize=escape, keep_trailing_newline=True,
    )  # fmt: skip
    environment.globals.update(table=table, code=code)
    return environment


def render(pages: Sequence[Page]) -> str:
    """The brief sections of all pages."""
    text = _environment().get_template("report.md").render(pages=pages)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def table(block: Table) -> Raw:
    """A GitHub table; a value's second line follows in the same cell."""
    head = "| " + " | ".join(escape(column) for column in block.columns) + " |"
    rule = "|" + "|".join("--:" if i in block.numeric else "---" for i in range(len(block.columns))) + "|"
    rows = ["| " + " | ".join(_cell(value) for value in row) + " |" for row in block.rows]
    return Raw("\n".join([head, rule, *rows]))


def _cell(value: str | Value) -> str:
    if isinstance(value, str):
        return escape(value)
    text = escape(value.text)
    if value.tone in ("good", "bad") and value.text != "0":
        text = f"**{text}**" if value.tone == "bad" else text
    return f"{text} ({escape(value.under)})" if value.under else text


def code(text: str) -> Raw:
    """Text as inline code, whatever backticks it holds."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return Raw(f"{fence}{pad}{text.replace('|', '¦')}{pad}{fence}" if text else "")
