"""The README's results and the index of the evidence, written from the committed result files and from nothing else."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moelab.e2e import readme as e2e
from moelab.e2e.document import is_e2e
from moelab.report.blocks import Table, Value
from moelab.report.figures import canvas
from moelab.report.figures.canvas import Drawn
from moelab.report.load import Loaded, ReportError, load
from moelab.report.markdown import code, escape, table
from moelab.report.model import OURS, Cell
from moelab.report.pages import tables
from moelab.report.pages.charts import ratio_charts
from moelab.report.pages.sentences import sentences
from moelab.report.provenance import level, runs
from moelab.report.summary import Group, baseline_of, comparisons, groups, models, standings
from moelab.report.text import count, ratio

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NOTHING = (
    "No result file is committed yet, so there is no number here. `./ci/lab bench` measures on your machine and writes "
    "a report."
)
MOST_MACHINES = 4
PICTURE = "reports/overview.svg"
INDEX = "reports/evidence/README.md"
_MARKS = {"same": " (same)", "undecided": " (undecided)", "broken": " (broken)"}


@dataclass(frozen=True, slots=True)
class Written:
    """What belongs into the repository: path relative to its root -> text."""

    files: dict[str, str]


def compose(root: Path) -> Written:
    """README, index of the evidence and picture as they should be. Raises ReportError for evidence that is none."""
    everything = sorted((root / "reports" / "evidence").rglob("*.json"))
    e2e_results = [(path.name, json.loads(path.read_text())) for path in everything if is_e2e(path)]
    evidence = [path for path in everything if not is_e2e(path)]
    readme = (root / "README.md").read_text(encoding="utf-8")
    if e2e.BEGIN in readme:
        readme = _between_marks(readme, e2e.block(e2e_results), (e2e.BEGIN, e2e.END))
    if not evidence:
        return Written(
            {"README.md": _between_marks(readme, NOTHING), INDEX: _index(None, root) + _e2e_index(e2e_results)}
        )
    loaded = load(evidence)
    _refuse_what_is_no_evidence(loaded)
    made = groups(loaded.cells)
    if not made:
        raise ReportError("reports/evidence holds no timed case")
    files = {"README.md": _between_marks(readme, _results(made)), INDEX: _index(loaded, root) + _e2e_index(e2e_results)}
    if picture := _picture(made):
        files[PICTURE] = picture
    return Written(files)


def outdated(root: Path, wanted: Written) -> list[str]:
    """Which of the files differ from what they should be.

    The picture is compared by its texts (numbers, result files), since each matplotlib draws a bit differently.
    """
    found = []
    for name, text in wanted.files.items():
        path = root / name
        present = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (_described(present) != _described(text)) if name == PICTURE else (present != text):
            found.append(name)
    if PICTURE not in wanted.files and (root / PICTURE).exists():
        found.append(PICTURE)
    return found


def _refuse_what_is_no_evidence(loaded: Loaded) -> None:
    reasons = [f"{problem.name}: {problem.reason}" for problem in loaded.problems]
    reasons += [f"{result.name}: synthetic, not measured" for result in loaded.results if result.synthetic]
    reasons += [f"{result.name}: emulated, no speed" for result in loaded.results if result.emulated]
    if reasons:
        raise ReportError("not to be published: " + "; ".join(reasons))


def _between_marks(readme: str, text: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    begin, end = marks
    if readme.count(begin) != 1 or readme.count(end) != 1 or readme.index(begin) > readme.index(end):
        raise ReportError(f"README.md must hold {begin} and, after it, {end}, once each")
    head, rest = readme.split(begin)
    return f"{head}{begin}\n{text.strip()}\n{end}{rest.split(end)[1]}"


def _results(made: Sequence[Group]) -> str:
    lines = ["<!-- Written by ci/readme_results.py from reports/evidence. -->", ""]
    baseline = baseline_of(made[0].cells)
    if _picture_of(made):
        lines += [f"![{escape(_picture_alt(made))}]({PICTURE})", ""]
    lines += [escape(sentence) + "\n" for sentence in sentences(made)]
    for group in made[:MOST_MACHINES]:
        place = escape(f"{group.machine.name}, {group.setting.label}")
        over = escape(baseline_of(group.cells) or "nothing")
        lines += [f"**{place}**, speed of {OURS} over {over}:", "", table(_speeds(group)), ""]
        if block := tables.standing_table(group.cells, ""):
            lines += ["Against every backend:", "", table(block), ""]
    if len(made) > MOST_MACHINES:
        lines += [f"{len(made) - MOST_MACHINES} more machines and settings are in [the evidence]({INDEX}).", ""]
    lost = [cell for group in made for cell, c in comparisons(group.cells) if c.verdict == "slower"]
    if block := tables.losses([cell for group in made for cell in group.cells]):
        lines += [f"Slower than a peer in {count(len(lost), 'comparison')}:", "", table(block), ""]
    found = runs([cell for group in made for cell in group.cells])
    newest = found[0]
    about = (
        f"Ratios are medians of paired rounds, means are geometric, intervals are {level(found)}; "
        f"{escape(baseline)} is the baseline of the run. Result files and the commands that repeat them: "
        f"[{INDEX}]({INDEX}). The newest: {code(newest.command)}, revision {escape(newest.revision_label)}."
    )
    lines.append(about)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _speeds(group: Group) -> Table:
    """Models down, tokens across."""
    baseline = baseline_of(group.cells)
    tokens = sorted({cell.case.tokens for cell in group.cells})
    rows: list[list[str | Value]] = []
    for name in models(group.cells):
        found = {cell.case.tokens: cell for cell in group.cells if cell.case.workload == name}
        row: list[str | Value] = [name]
        for number in tokens:
            ours = found[number].ours if number in found else None
            c = ours.comparisons.get(baseline) if ours else None
            row.append("–" if c is None else ratio(c.ratio.value) + _MARKS.get(c.verdict, ""))
        rows.append(row)
    columns = ("tokens", *(str(number) for number in tokens))
    return Table("", columns, rows, frozenset(range(1, len(columns))))


def _picture_of(made: Sequence[Group]) -> Drawn | None:
    baseline = baseline_of(made[0].cells)
    return ratio_charts(made[0], [baseline])[0] if baseline else None


def _picture_alt(made: Sequence[Group]) -> str:
    drawn = _picture_of(made)
    return drawn.alt if drawn else ""


def _picture(made: Sequence[Group]) -> str:
    drawn = _picture_of(made)
    return canvas.standalone_svg(drawn) if drawn else ""


def _described(svg: str) -> str:
    """What an SVG of ours says about itself: title, description and the texts that it shows."""
    return "\n".join(re.findall(r"<(?:title|desc|text)\b[^>]*>([^<]*)<", svg))


def _index(loaded: Loaded | None, root: Path) -> str:
    lines = [
        "# Evidence",
        "",
        "Result files of real runs. Every number in the README comes from them. Written by `ci/readme_results.py`.",
        "",
    ]
    if loaded is None:
        return "\n".join([*lines, "None is committed yet."]) + "\n"
    rows: list[list[str | Value]] = []
    order = sorted(loaded.results, key=lambda r: (r.machine.part, r.machine.name, r.started), reverse=True)
    for result in order:
        path = loaded.paths[result.digest].relative_to(root / "reports" / "evidence").as_posix()
        cells = [cell for cell in (*loaded.cells, *loaded.superseded) if cell.result.digest == result.digest]
        rows.append(
            [
                Value(path, under=f"sha256 {result.digest[:12]}"),
                Value(result.machine.part, under=f"{result.machine.name}, {result.machine.cpus} CPUs"),
                result.revision_label,
                result.started[:10],
                str(len(cells)),
                _means(cells),
                result.command,
            ]
        )
    columns = ("file", "CPU part", "revision", "started", "cells", f"{OURS}, geometric means", "command")
    return "\n".join([*lines, table(Table("", columns, rows, frozenset({4})))]) + "\n"


def _e2e_index(results: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """A table of the end-to-end results; nothing without one."""
    if not results:
        return ""
    rows: list[list[str | Value]] = [
        [
            name,
            found["machine"]["cpu"]["part"],
            str(found["source"]["commit"] or "unknown")[:12],
            found["run"]["started"][:10],
            str(len(found["cells"])),
            shlex.join(found["run"]["command"]),
        ]
        for name, found in results
    ]
    columns = ("file", "CPU part", "revision", "started", "cells", "command")
    return f"\nWhole results, end to end:\n\n{table(Table('', columns, rows, frozenset({4})))}\n"


def _means(cells: Sequence[Cell]) -> str:
    return ", ".join(f"{row.against} {ratio(row.mean.value)}" for row in standings(cells) if row.cells) or "–"
