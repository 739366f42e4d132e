"""`moelab compare OLD NEW…`: what changed between result files, as a table, a figure and an exit status."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moelab import comparison, results, statistics
from moelab.comparison import Change
from moelab.text_table import markdown, table

HEADER = ["case", "backend", "old ms", "new ms", "new / old speed", "verdict"]


@dataclass(frozen=True)
class Compared:
    """`changes` can be the code's doing; `refused` (case, label, why) cannot; `alone` are in one file only."""

    name: str
    changes: list[Change]
    refused: list[tuple[str, str, str]]
    alone: list[tuple[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, nargs="+", metavar="NEW")
    parser.add_argument(
        "--fail-above", type=float, default=statistics.MARGIN, metavar="SHARE",
        help="exit status 1 where a backend is surely slower by more than this share; default 0.02",
    )  # fmt: skip
    parser.add_argument("--backend", metavar="NAME,…", help="look at these only, for the exit status too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the comparison for a pull request")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw it (.svg or .png)")


def run(arguments: argparse.Namespace) -> int:
    """0: nothing surely slower; 1: something is; 2: the files cannot be compared. Undecided never fails."""
    try:
        old = results.load(arguments.old)
        compared = [
            compare(old, results.load(path), path.name, only=arguments.backend, threshold=arguments.fail_above)
            for path in arguments.new
        ]
    except (OSError, ValueError) as error:
        print(f"moelab compare: {error}", file=sys.stderr)
        return 2
    text = "\n\n".join(as_markdown(arguments.old.name, one) for one in compared)
    for one in compared:
        print(as_text(one))
    if arguments.markdown:
        arguments.markdown.write_text(text + "\n", encoding="utf-8")
    changes = [c for one in compared for c in one.changes]
    if arguments.figure and changes:
        from moelab.compare_figure import draw  # needs matplotlib

        draw([(one.name, change) for one in compared for change in one.changes], arguments.figure)
    if not changes:
        print("moelab compare: no case of these files can be compared as a change of the code", file=sys.stderr)
        return 2
    return 1 if any(surely_slower(c, arguments.fail_above) for c in changes) else 0


def surely_slower(change: Change, threshold: float) -> bool:
    """Whether the corrected verdict says slower and the whole interval lies beyond the threshold."""
    return change.verdict.table == "slower" and change.ratio.high < 1 / (1 + threshold)


def compare(
    old: dict[str, Any], new: dict[str, Any], name: str, *, only: str | None = None, threshold: float | None = None
) -> Compared:
    """Every backend and case that both files have; verdicts corrected for their number."""
    before, after = (comparison.by_layer(comparison.entries(document)) for document in (old, new))
    wanted = None if only is None else {part.strip() for part in only.split(",")}
    keys = [k for k in after if k in before and (wanted is None or k[1] in wanted)]
    changes, refused = [], []
    for key in keys:
        why = comparison.differences(before[key], after[key])
        if why:
            refused.append((after[key].case, key[1], "; ".join(why)))
        else:
            changes.append(comparison.change(before[key], after[key], margin=threshold or statistics.MARGIN))
    judged = statistics.judge_table([c.verdict for c in changes])
    alone = [
        (entry.case, entry.label)
        for own, other in ((before, after), (after, before))
        for key, entry in own.items()
        if key not in other and (wanted is None or key[1] in wanted)
    ]
    return Compared(name, [replace(c, verdict=v) for c, v in zip(changes, judged, strict=True)], refused, alone)


def _rows(compared: Compared) -> list[list[str]]:
    return [
        [
            c.case,
            c.label,
            f"{c.old_seconds * 1e3:.4g}",
            f"{c.new_seconds * 1e3:.4g}",
            f"{c.ratio.value:.3f} [{c.ratio.low:.3f}, {c.ratio.high:.3f}]" + ("" if c.basis != "time" else " (time)"),
            c.verdict.table,
        ]
        for c in compared.changes
    ]


def as_text(compared: Compared) -> str:
    rows = _rows(compared)
    lines = [compared.name, table(HEADER, rows) if rows else "nothing to compare"]
    lines += [f"not a change of the code: {case} {label}: {why}" for case, label, why in compared.refused]
    lines += [f"in one file only: {case} {label}" for case, label in compared.alone]
    return "\n".join(lines)


def as_markdown(old_name: str, compared: Compared) -> str:
    """For a pull request: the summary first, all rows folded away beneath."""
    counts = {
        kind: sum(c.verdict.table == kind for c in compared.changes)
        for kind in ("faster", "slower", "same", "undecided")
    }
    summary = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n) or "nothing to compare"
    parts = [f"### {compared.name} against {old_name}: {summary}"]
    decided = [r for r in _rows(compared) if r[-1] in ("faster", "slower")]
    if decided:
        parts.append(markdown(HEADER, decided))
    if compared.changes:
        rows = markdown(HEADER, _rows(compared))
        parts.append(f"<details><summary>all {len(compared.changes)} rows</summary>\n\n{rows}\n\n</details>")
    if compared.refused:
        rows = markdown(["case", "backend", "not a change of the code"], [list(r) for r in compared.refused])
        parts.append(rows)
    if compared.alone:
        parts.append("In one file only: " + ", ".join(f"{case} {label}" for case, label in compared.alone))
    return "\n\n".join(parts)
