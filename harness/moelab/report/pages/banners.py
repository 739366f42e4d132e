"""What must not be overlooked, above everything else on the page."""

from __future__ import annotations

from collections import Counter

from moelab.report.blocks import Banner
from moelab.report.load import Loaded
from moelab.report.pages.steadiness import disturbances
from moelab.report.text import count

_MOST = 12


def banners(loaded: Loaded) -> list[Banner]:
    """Synthetic and emulated data, damaged files, broken measurements, unstable machines; loudest first."""
    made: list[Banner] = []
    synthetic = [result.name for result in loaded.results if result.synthetic]
    if synthetic:
        lines: tuple[str, ...] = (f"{len(synthetic)} of {count(len(loaded.results), 'file')}: {_few(synthetic)}",)
        alone = len(synthetic) == len(loaded.results)
        title = "SYNTHETIC DATA: invented by a test, nothing here was measured"
        made.append(Banner("danger", title if alone else "SYNTHETIC DATA beside measured data", lines))
    emulated = [result.name for result in loaded.results if result.emulated]
    if emulated:
        lines = (f"{_few(emulated)}: correctness only; times under emulation are no speed.",)
        made.append(Banner("danger", "EMULATED: no speed was measured", lines))
    broken = [
        f"{cell.case.workload}, {cell.case.tokens} tokens, {m.backend}: {m.broken}"
        for cell in loaded.cells
        for m in cell.measurements.values()
        if m.broken
    ]
    broken += [
        f"{check.variant}, {check.engine}: {check.failure or 'wrong logits'}"
        for run in loaded.model_runs
        for check in run.checks
        if check.passed is False
    ]
    if broken:
        title = f"{count(len(broken), 'broken measurement')}, left out of every summary"
        made.append(Banner("danger", title, _first(broken)))
    if loaded.problems:
        lines = _first([f"{problem.name}: {problem.reason}" for problem in loaded.problems])
        made.append(Banner("warning", f"{count(len(loaded.problems), 'file')} not used", lines))
    unsteady = [f"{result.name}: {'; '.join(disturbances(result))}" for result in loaded.results
                if result.conditions]  # fmt: skip
    if unsteady:
        made.append(Banner("warning", "The machine was not steady during the run", _first(unsteady)))
    notes = [f"{result.name}: {text}" for result in loaded.results for text in result.notes]
    notes += [
        f"{r.name}: the tree differed from its commit; revision {r.revision_label}" for r in loaded.results if r.dirty
    ]
    again = Counter(cell.result.digest for cell in loaded.superseded)
    notes += [
        f"{r.name}: {count(again[r.digest], 'cell')} measured again by a newer file, which is shown instead, as a whole"
        for r in loaded.results
        if again[r.digest]
    ]
    notes += [f"{result.name}: a quick run, few samples per point" for result in loaded.results if result.quick]
    if notes:
        made.append(Banner("info", "Notes on the files", _first(notes)))
    return made


def _first(lines: list[str]) -> tuple[str, ...]:
    rest = len(lines) - _MOST
    return (*lines[:_MOST], *([f"and {rest} more"] if rest > 0 else []))


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
