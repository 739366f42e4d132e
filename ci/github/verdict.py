#!/usr/bin/env python3
"""Reads the A/B results of a pull request's runners: what needs a second look, and whether the gate opens.

    verdict.py undecided FOLDER   writes runners=[…] to $GITHUB_OUTPUT: those of $RUNNERS with an undecided cell
    verdict.py gate FOLDER        exit status 1 where a cell became slower

FOLDER holds ab-first-<runner>/*.json and, where a second look was needed, ab-second-<runner>/*.json. A cell that the
first run left undecided is judged by the second, on another machine of the same kind; undecided never fails the gate,
and neither does a number that only time gave. The files may come from a fork: they are read as data, names and numbers
are checked, everything else is dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/+:@-]{0,79}")
VERDICTS = ("faster", "slower", "same", "undecided", "broken")
LIMIT = 20_000_000


@dataclass(frozen=True)
class Cell:
    """One case on one runner: speed of the head over the base with its interval, and the verdict."""

    runner: str
    case: str
    ratio: float
    low: float
    high: float
    verdict: str
    look: str  # "first" or "second"


def name(value: object) -> str:
    """A name that may be shown, or ValueError."""
    if not isinstance(value, str) or not SAFE.fullmatch(value):
        raise ValueError(f"unexpected name {str(value)[:40]!r}")
    return value


def number(value: object) -> float:
    """A number that may be shown, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise ValueError(f"unexpected number {str(value)[:40]!r}")
    return float(value)


def cells_of(document: Any, runner: str, look: str) -> Iterator[Cell]:
    """The cells of one result file; entries without a verdict (baseline, control) have none."""
    if not isinstance(document, dict) or not isinstance(document.get("benchmarks"), list):
        raise ValueError("not a result file")  # noqa: TRY004 - of a file, not of an argument
    for entry in document["benchmarks"]:
        info = entry.get("extra_info") if isinstance(entry, dict) else None
        if not isinstance(info, dict) or not info.get("verdict") or not info.get("ratio"):
            continue
        ratio, verdict = info["ratio"], info["verdict"]["table"]
        if verdict not in VERDICTS:
            raise ValueError(f"unexpected verdict {str(verdict)[:40]!r}")
        low, high = number(ratio["low"]), number(ratio["high"])
        yield Cell(runner, name(info["case"]["id"]), number(ratio["value"]), low, high, verdict, look)


def read(folder: Path) -> list[Cell]:
    """Final cells of all runners: a second look replaces a first one that was undecided. ValueError for odd files."""
    found: dict[tuple[str, str], Cell] = {}
    for look in ("first", "second"):
        for sub in sorted(folder.glob(f"ab-{look}-*")):
            runner = name(sub.name.removeprefix(f"ab-{look}-"))
            for path in sorted(sub.glob("*.json")):
                if path.stat().st_size > LIMIT:
                    raise ValueError(f"{runner}: result of {path.stat().st_size} bytes")
                try:
                    cells = list(cells_of(json.loads(path.read_text()), runner, look))
                except (KeyError, TypeError, AttributeError) as error:
                    raise ValueError(f"{runner}: not a result file ({type(error).__name__})") from error
                for cell in cells:
                    key = (cell.runner, cell.case)
                    if key not in found or found[key].verdict == "undecided":
                        found[key] = cell
    return list(found.values())


def undecided(cells: list[Cell], runners: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runners that should look again."""
    open_ones = {cell.runner for cell in cells if cell.verdict == "undecided"}
    return [runner for runner in runners if runner["name"] in open_ones]


def main() -> int:
    """Runs one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("undecided", "gate"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        cells = read(options.folder)
    except ValueError as error:
        print(f"verdict: {error}", file=sys.stderr)
        return 1
    if options.command == "undecided":
        line = f"runners={json.dumps(undecided(cells, json.loads(os.environ['RUNNERS'])))}"
        print(line)
        if "GITHUB_OUTPUT" in os.environ:
            with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as out:
                out.write(line + "\n")
        return 0
    for cell in cells:
        interval = f"{cell.ratio:.3f} [{cell.low:.3f}, {cell.high:.3f}]"
        print(f"{cell.verdict:9} {interval}  {cell.case} on {cell.runner}, {cell.look} look")
    if not cells:
        print("verdict: no cell was measured", file=sys.stderr)
        return 1
    return 1 if any(cell.verdict == "slower" for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
