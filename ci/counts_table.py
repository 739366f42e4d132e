"""The committed table of instruction counts: its file, what makes a new count differ from it, and how it reads.

A document is {"versions": {"compiler", "emulator"}, "cases": {case: {"minimum_bfmmla", "phases": {phase: {class: n}}}},
"peers": {name: {"versions", "note", "cases": {case: {class: n}}}}} and, made from that, what `nox -s report` shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Document = dict[str, Any]

PHASES = ("route", "pack", "gemm1", "gemm2", "combine")
TOTAL_TOLERANCE = 0.001
MOST_OVER_MINIMUM = 1.02  # BFMMLA at 64 tokens
# Instructions per minimum BFMMLA on the yardstick: of the whole call, and of each phase.
YARDSTICK_LIMIT = 1.45
YARDSTICK_BUDGET = {"route": 0.002, "pack": 0.010, "gemm1": 0.982, "gemm2": 0.440, "combine": 0.016}

ABOUT = (
    "One fused call of neon_bf16 with one thread, under QEMU's user-mode emulator, classed by ci/armmix.c; blocked for "
    "a Neoverse V2's caches. The layers of models are scaled down as their names say. The minimum is the sum over "
    "experts and both GEMMs of ceil(rows/2) ceil(N/2) ceil(K/4) BFMMLA. Counts say nothing about time."
)


@dataclass
class Verdict:
    """Faults fail; notes are said and do not."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def total(classes: Mapping[str, int]) -> int:
    return sum(classes.values())


def bfmmla(classes: Mapping[str, int]) -> int:
    return classes.get("bfmmla", 0)


def whole_call(case: Mapping[str, Any]) -> dict[str, int]:
    """A case's counts by class, over all phases."""
    summed: dict[str, int] = {}
    for classes in case["phases"].values():
        for name, count in classes.items():
            summed[name] = summed.get(name, 0) + count
    return summed


def compare(new: Document, old: Document) -> Verdict:
    """New counts of some or all cases against the committed ones.

    A different BFMMLA count is a fault whatever built it: the loops are assembly. Totals hang on the compiler, so they
    are faults where it is the table's, and notes where not. Another emulator is said, and excuses nothing: it should
    count the same.
    """
    verdict = Verdict()
    for what, version in new["versions"].items():
        if version != old["versions"].get(what):
            verdict.notes.append(f"the {what} is {version!r} here and {old['versions'].get(what)!r} in the table")
    other_compiler = new["versions"]["compiler"] != old["versions"].get("compiler")
    if other_compiler:
        verdict.notes.append("so totals are shown and not judged; BFMMLA counts are")
    for name, case in new["cases"].items():
        if name not in old["cases"]:
            verdict.faults.append(f"{name}: not in the table")
            continue
        before = old["cases"][name]
        if case["minimum_bfmmla"] != before["minimum_bfmmla"]:
            verdict.faults.append(
                f"{name}: the minimum is {case['minimum_bfmmla']:,} BFMMLA, the table's {before['minimum_bfmmla']:,}: "
                "another routing or shape"
            )
        for phase in PHASES:
            now, then = bfmmla(case["phases"][phase]), bfmmla(before["phases"][phase])
            if now != then:
                verdict.faults.append(f"{name}: {phase} has {now:,} BFMMLA, the table {then:,}")
        now, then = total(whole_call(case)), total(whole_call(before))
        change = now / then - 1
        if abs(change) > TOTAL_TOLERANCE:
            changed = [
                f"{phase} {total(case['phases'][phase]) - total(before['phases'][phase]):+,}"
                for phase in PHASES
                if total(case["phases"][phase]) != total(before["phases"][phase])
            ]
            text = f"{name}: {now:,} instructions, the table {then:,} ({change:+.2%}; {', '.join(changed)})"
            (verdict.notes if other_compiler else verdict.faults).append(text)
    return verdict


def missed_goals(document: Document, yardstick: str) -> list[str]:
    """What the counts fall short of: BFMMLA near the minimum, the yardstick's total and its phases' budgets."""
    missed = []
    for name, case in document["cases"].items():
        minimum = case["minimum_bfmmla"]
        used = bfmmla(whole_call(case))
        if used < minimum:
            missed.append(f"{name}: {used:,} BFMMLA are fewer than the minimum {minimum:,}: something is not computed")
        if re.search(r"\b64 tokens", name) and used > MOST_OVER_MINIMUM * minimum:
            missed.append(f"{name}: {used / minimum:.3f} of the minimum BFMMLA, limit {MOST_OVER_MINIMUM}")
    if yardstick in document["cases"]:
        case = document["cases"][yardstick]
        minimum = case["minimum_bfmmla"]
        ratio = total(whole_call(case)) / minimum
        if ratio > YARDSTICK_LIMIT:
            missed.append(f"{yardstick}: {ratio:.3f} instructions per minimum BFMMLA, limit {YARDSTICK_LIMIT}")
        for phase, budget in YARDSTICK_BUDGET.items():
            ratio = total(case["phases"][phase]) / minimum
            if ratio > budget:
                missed.append(f"{yardstick}: {phase} takes {ratio:.4f} per minimum BFMMLA, budget {budget}")
    return missed


def not_fewer_than_peers(document: Document) -> list[str]:
    """Cases in which a peer's call takes no more instructions than ours."""
    return [
        f"{name}: {total(whole_call(document['cases'][name])):,} instructions, {peer} {total(classes):,}"
        for peer, counted in document.get("peers", {}).items()
        for name, classes in counted["cases"].items()
        if name in document["cases"] and total(whole_call(document["cases"][name])) >= total(classes)
    ]


def for_report(document: Document) -> Document:
    """The document with what `nox -s report` shows (reports/README.md), made from the counts."""
    peers = document.get("peers", {})
    columns: list[Any] = [
        "case",
        *({"name": phase, "unit": "instructions"} for phase in PHASES),
        {"name": "total", "unit": "instructions"},
        "BFMMLA",
        "BFMMLA / minimum",
        "total / minimum BFMMLA",
        *(
            column
            for peer in peers
            for column in ({"name": peer, "unit": "instructions"}, f"{peer} BFMMLA", f"{peer} / ours")
        ),
    ]
    rows = []
    for name, case in document["cases"].items():
        summed, minimum = whole_call(case), case["minimum_bfmmla"]
        phases = [total(case["phases"][phase]) for phase in PHASES]
        ratios = [round(bfmmla(summed) / minimum, 4), round(total(summed) / minimum, 4)]
        theirs: list[float | None] = []
        for peer in peers.values():
            classes = peer["cases"].get(name)
            theirs += (
                [total(classes), bfmmla(classes), round(total(classes) / total(summed), 4)] if classes else [None] * 3
            )
        rows.append([name, *phases, total(summed), bfmmla(summed), *ratios, *theirs])
    notes = [f"{peer}: {counted['note']} {_listed(counted['versions'])}." for peer, counted in peers.items()]
    return {
        "moelab_table": 1,
        "kind": "counts",
        "title": "Retired instructions per call, neon_bf16",
        "about": ABOUT,
        "columns": columns,
        "rows": rows,
        "tool": _listed(document["versions"]),
        "notes": notes,
        "command": ["nox", "-s", "counts"],
        **{key: document[key] for key in ("versions", "cases", "peers") if key in document},
    }


def read(path: Path) -> Document:
    """Raises FileNotFoundError, or ValueError where rows and counts disagree (the file was edited by hand)."""
    document: Document = json.loads(path.read_text())
    if for_report(document) != document:
        raise ValueError(f"{path.name}: its rows are not its counts; `nox -s counts -- --update` writes both")
    return document


def write(path: Path, document: Document) -> None:
    """The JSON file and beside it the same as Markdown."""
    text = json.dumps(for_report(document), indent=1, ensure_ascii=False)
    innermost = re.compile(r"([{\[])\n\s*([^{}\[\]]*?)\n\s*([}\]])")
    text = innermost.sub(lambda found: found[1] + re.sub(r"\n\s*", " ", found[2]) + found[3], text)
    path.write_text(text + "\n")
    path.with_suffix(".md").write_text(markdown(document))


def markdown(document: Document) -> str:
    table = for_report(document)
    per_class = {name: whole_call(case) for name, case in document["cases"].items()}
    classes = sorted({key for counts in per_class.values() for key in counts}, key=lambda key: -_sum(per_class, key))
    names = [column if isinstance(column, str) else column["name"] for column in table["columns"]]
    parts = [
        "# Retired instructions per call\n",
        f"{ABOUT}\n",
        f"Written by `nox -s counts -- --update`; {table['tool']}.\n",
        _table(names, table["rows"]),
        *(f"{note}\n" for note in table["notes"]),
        "## By class\n",
        _table(
            ["case", *classes],
            [[name, *(counts.get(key, 0) for key in classes)] for name, counts in per_class.items()],
        ),
    ]
    return "\n".join(parts)


def _sum(per_class: Mapping[str, Mapping[str, int]], key: str) -> int:
    return sum(counts.get(key, 0) for counts in per_class.values())


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{what} {version}" for what, version in versions.items())


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def shown(cell: Any) -> str:
        if cell is None:
            return "–"
        return f"{cell:,}" if isinstance(cell, int) else f"{cell:.3f}" if isinstance(cell, float) else str(cell)

    lines = ["| " + " | ".join(names) + " |", "|---" + "|--:" * (len(names) - 1) + "|"]
    lines += ["| " + " | ".join(shown(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
