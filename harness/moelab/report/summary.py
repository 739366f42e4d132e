"""Numbers over many cells: geometric means with all wins and losses counted, never without the rows they come from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moelab.report.load import machine_key
from moelab.report.model import Cell, Comparison, Interval, Machine, Setting
from moelab.report.palette import backend_order

MachineKey = tuple[str, bool, bool]


@dataclass(frozen=True, slots=True)
class Group:
    """The cells of one machine under one setting."""

    key: MachineKey
    machine: Machine
    setting: Setting
    cells: tuple[Cell, ...]

    @property
    def synthetic(self) -> bool:
        return self.key[1]

    @property
    def emulated(self) -> bool:
        return self.key[2]


@dataclass(frozen=True, slots=True)
class Standing:
    """Ours against one backend over the cells where both were timed; broken measurements are counted, not averaged.

    `mean`: geometric mean; its ends are the geometric means of the lower and of the upper ends, which are right however
    the errors of the cells hang together (narrower intervals would need them to be independent).
    """

    against: str
    mean: Interval
    lowest: float
    highest: float
    cells: int
    faster: int
    same: int
    undecided: int
    slower: int
    broken: int


def groups(cells: Iterable[Cell]) -> list[Group]:
    """All (machine, setting) groups: measured before emulated before synthetic, then by cells, then by verdicts."""
    found: dict[tuple[MachineKey, Setting], list[Cell]] = {}
    for cell in cells:
        found.setdefault((machine_key(cell.result), cell.setting), []).append(cell)
    made = [Group(key, own[0].result.machine, setting, tuple(own)) for (key, setting), own in found.items()]
    totals: dict[MachineKey, int] = {}
    decided: dict[MachineKey, int] = {}
    for group in made:
        totals[group.key] = totals.get(group.key, 0) + len(group.cells)
        verdicts = sum(c.verdict in ("faster", "same", "slower") for _, c in comparisons(group.cells))
        decided[group.key] = decided.get(group.key, 0) + verdicts

    def order(group: Group) -> tuple[bool, bool, int, int, str, int, str]:
        key = group.key
        return key[1], key[2], -totals[key], -decided[key], key[0], -len(group.cells), group.setting.label

    return sorted(made, key=order)


def comparisons(cells: Iterable[Cell]) -> list[tuple[Cell, Comparison]]:
    """Every comparison of ours with another backend, in the order of the cells."""
    return [
        (cell, cell.ours.comparisons[name])
        for cell in cells
        if cell.ours
        for name in sorted(cell.ours.comparisons, key=backend_order)
    ]


def standings(cells: Sequence[Cell]) -> list[Standing]:
    """One row per backend that ours was compared with, the baseline's order first."""
    rows: dict[str, list[Comparison]] = {}
    for _, comparison in comparisons(cells):
        rows.setdefault(comparison.against, []).append(comparison)
    return [_standing(name, rows[name]) for name in sorted(rows, key=backend_order)]


def _standing(against: str, rows: Sequence[Comparison]) -> Standing:
    good = [row for row in rows if row.verdict != "broken"]
    ratios = [row.ratio for row in good]
    values = [ratio.value for ratio in ratios]
    ends = all(ratio.has_ends for ratio in ratios)
    counted = {word: sum(row.verdict == word for row in rows) for word in ("faster", "same", "undecided", "slower")}
    return Standing(
        against=against,
        mean=Interval(
            geometric_mean(values),
            geometric_mean([ratio.low for ratio in ratios]) if ends else math.nan,
            geometric_mean([ratio.high for ratio in ratios]) if ends else math.nan,
        ),
        lowest=min(values, default=math.nan),
        highest=max(values, default=math.nan),
        cells=len(good),
        broken=len(rows) - len(good),
        **counted,
    )


def geometric_mean(values: Sequence[float]) -> float:
    """NaN for no values."""
    return math.exp(math.fsum(math.log(value) for value in values) / len(values)) if values else math.nan


def models(cells: Iterable[Cell]) -> list[str]:
    return sorted({cell.case.workload for cell in cells})


def baseline_of(cells: Sequence[Cell]) -> str:
    """The baseline that most cells name; "" where none does."""
    names = [cell.baseline for cell in cells if cell.baseline]
    return max(sorted(set(names)), key=names.count, default="")
