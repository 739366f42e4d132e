"""Tables that more than one page shows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from moelab.report.blocks import Link, Table, Value
from moelab.report.model import OURS, Cell, Comparison, Measurement, Missing
from moelab.report.pages.context import machine_page, model_page
from moelab.report.palette import backend_order
from moelab.report.provenance import level, margin, runs, sample_size
from moelab.report.summary import Group, comparisons, standings
from moelab.report.text import count, milliseconds, percent, ratio, ratio_interval, significant

TONES = {"faster": "good", "slower": "bad", "broken": "bad", "undecided": "warn", "same": "muted"}


def standing_table(cells: Sequence[Cell], caption: str) -> Table | None:
    """Ours against each backend over many cells; None where nothing was compared."""
    rows: list[list[str | Value]] = [
        [
            standing.against,
            Value(ratio(standing.mean.value), ratio_interval(standing.mean.low, standing.mean.high)),
            f"{ratio(standing.lowest)} to {ratio(standing.highest)}",
            str(standing.faster),
            str(standing.same),
            Value(str(standing.undecided), tone="warn" if standing.undecided else ""),
            Value(str(standing.slower), tone="bad" if standing.slower else ""),
            str(standing.cells) + (f" (+{standing.broken} broken)" if standing.broken else ""),
        ]
        for standing in standings(cells)
    ]
    if not rows:
        return None
    columns = ("against", "geometric mean", "from … to", "faster", "same", "undecided", "slower", "cells")
    return Table(caption, columns, rows, frozenset(range(1, 8)), note=(
        f"Speed of {OURS} over each backend, time of the other / time of ours. The interval under a mean runs from the "
        "mean of the lower ends to the mean of the upper ends. Broken measurements (faster than their roofline, or "
        "wrong) are counted and left out of the means."
    ))  # fmt: skip


def what_undecided_means(cells: Sequence[Cell]) -> str:
    """What the run could have seen where it decided nothing; "" where everything is decided or no file says."""
    limits = sorted(
        c.minimum_detectable
        for _, c in comparisons(cells)
        if c.verdict == "undecided" and math.isfinite(c.minimum_detectable)
    )
    if not limits:
        return ""
    middle, low, high = (ratio(1 + limit) for limit in (limits[len(limits) // 2], limits[0], limits[-1]))
    span = f" (median; {low} to {high})" if len(limits) > 1 else ""
    return (
        f"Undecided is not equal. In {count(len(limits), 'such comparison')} the smallest speedup that this run sees "
        f"four times in five is {middle}{span}. The intervals say what is possible; more processes or a longer budget "
        "narrow them."
    )


def ratio_rows(group: Group, caption: str) -> Table | None:
    """One row per case: ours in milliseconds, then the speedup over each backend with interval and verdict."""
    peers = sorted({c.against for _, c in comparisons(group.cells)}, key=backend_order)
    if not peers:
        return None
    rows: list[list[str | Value]] = []
    for cell in group.cells:
        if cell.ours is None:
            continue
        first = Value(f"{cell.case.workload}, {cell.case.tokens}", link=Link("", page=model_page(cell.case.workload)))
        row: list[str | Value] = [first, time_value(cell.ours)]
        row += [comparison_value(cell.ours.comparisons.get(peer)) for peer in peers]
        rows.append(row)
    columns = ("layer, tokens", f"{OURS} [ms]", *(f"vs {peer}" for peer in peers))
    return Table(
        caption, columns, rows, frozenset(range(1, len(columns))),
        note=f"{sample_size(group.cells)}. {_legend(group.cells)}{detectable(group.cells)}",
    )  # fmt: skip


def detectable(cells: Sequence[Cell]) -> str:
    """The differences that the run could have seen; "" where no file says."""
    found = sorted(c.minimum_detectable for _, c in comparisons(cells) if math.isfinite(c.minimum_detectable))
    if not found:
        return ""
    return (
        f" A difference of {percent(found[len(found) // 2])} would have been seen four times in five in the median "
        f"comparison ({percent(found[0])} to {percent(found[-1])})."
    )


def _legend(cells: Sequence[Cell]) -> str:
    made = runs(cells)
    return (
        f"Under each value its {level(made)} interval, then the verdict (margin {margin(made)}, corrected for the "
        "number of cells)."
    )


def time_value(m: Measurement) -> Value:
    """Milliseconds with the interval below."""
    under = f"{milliseconds(m.time.low)}–{milliseconds(m.time.high)}" if m.time.has_ends else ""
    return Value(milliseconds(m.time.value), under, "bad" if m.broken else "")


def comparison_value(c: Comparison | None) -> Value:
    """A speedup with interval and verdict below; a dash where the two were not compared."""
    if c is None:
        return Value("–", tone="muted")
    ends = ratio_interval(c.ratio.low, c.ratio.high)
    return Value(ratio(c.ratio.value), f"{ends}, {c.verdict}" if c.ratio.has_ends else c.verdict, TONES[c.verdict])


def losses(cells: Sequence[Cell]) -> Table | None:
    """Every cell where ours is decided slower than some backend, worst first; None where there is none."""
    found = sorted(
        (c.ratio.value, i, cell, c) for i, (cell, c) in enumerate(comparisons(cells)) if c.verdict == "slower"
    )
    if not found:
        return None
    rows: list[list[str | Value]] = []
    for _, _, cell, c in found:
        assert cell.ours is not None
        machine = cell.result.machine
        rows.append(
            [
                Value(f"{cell.case.workload}, {cell.case.tokens}", link=Link("", page=model_page(cell.case.workload))),
                c.against,
                comparison_value(c),
                time_value(cell.ours),
                time_value(cell.measurements[c.against]) if c.against in cell.measurements else "–",
                f"{machine.name}, {cell.setting.label}",
            ]
        )
    columns = ("layer, tokens", "slower than", f"speed of {OURS}", f"{OURS} [ms]", "other [ms]", "on")
    return Table(f"Where {OURS} is slower", columns, rows, frozenset({2, 3, 4}))


def times_table(cells: Sequence[Cell], caption: str) -> Table:
    """Milliseconds of every backend, tokens down, with the percent of the roofline."""
    backends = sorted({name for cell in cells for name in cell.measurements}, key=backend_order)
    rows: list[list[str | Value]] = []
    for cell in cells:
        row: list[str | Value] = [str(cell.case.tokens)]
        for name in backends:
            m = cell.measurements.get(name)
            if m is None:
                row.append(Value("–", tone="muted"))
                continue
            value = time_value(m)
            of_roof = f"; {percent(m.roofline.fraction.value)}" if math.isfinite(m.roofline.fraction.value) else ""
            row.append(Value(value.text, value.under + of_roof, value.tone))
        bound = cell.ours.roofline if cell.ours else next(iter(cell.measurements.values())).roofline
        row.append(Value(milliseconds(bound.bound_seconds), bound.limit if math.isfinite(bound.bound_seconds) else ""))
        rows.append(row)
    columns = ("tokens", *(f"{name} [ms]" for name in backends), "roofline bound [ms]")
    note = f"Median; below it the {level(runs(cells))} interval and the percent of the roofline. {sample_size(cells)}."
    return Table(caption, columns, rows, frozenset(range(1, len(columns))), note)


def correctness_table(cells: Sequence[Cell], caption: str) -> Table:
    """The worst cell of every backend and model: largest error beside its bound."""
    worst: dict[tuple[str, str], tuple[Cell, Measurement]] = {}
    for cell in cells:
        for m in cell.measurements.values():
            key = (cell.case.workload, m.backend)
            if key not in worst or _severity(m) > _severity(worst[key][1]):
                worst[key] = (cell, m)
    rows: list[list[str | Value]] = []
    for workload, name in sorted(worst, key=lambda key: (key[0], backend_order(key[1]))):
        cell, m = worst[(workload, name)]
        c = m.correctness
        word, tone = {True: ("passed", "good"), False: ("WRONG", "bad"), None: ("not checked", "warn")}[c.passed]
        rows.append(
            [
                f"{workload}, {name}",
                Value(word, c.failure, tone),
                significant(c.max_error),
                significant(c.worst * c.bound),
                significant(c.bound),
                significant(c.worst),
                f"{significant(c.flips)} / {significant(c.flip_limit)}",
                m.rounding or "–",
                f"{cell.case.tokens} tokens, {c.samples_checked} samples",
            ]
        )
    columns = ("layer, backend", "outputs", "largest error", "worst element: error", "its bound", "error / bound",
               "flips / limit", "rounds to BF16", "worst of")  # fmt: skip
    return Table(caption, columns, rows, frozenset({2, 3, 4, 5, 6}), note=(
        "Against an fp64 reference, before the timing and on sampled rows of the timed outputs. Every element has a "
        "bound of its own, from the points at which the backend rounds; the worst element is the nearest to its bound, "
        "and the largest error may be another one's, whose bound is wider. Flips: share of elements more than one "
        "BF16 step from the rounded reference."
    ))  # fmt: skip


def _severity(m: Measurement) -> tuple[bool, float]:
    c = m.correctness
    return (c.passed is False, c.worst if math.isfinite(c.worst) else -1.0)


def missing_table(missing: Sequence[tuple[str, Missing]], caption: str) -> Table | None:
    """What did not run and why; the same reason for many cases is one row."""
    grouped: dict[tuple[str, str, str, str], list[str]] = {}
    for where, item in missing:
        grouped.setdefault((item.backend, item.kind, item.reason, where), []).append(item.case)
    rows = [
        [backend, kind, reason, _cases(cases), where]
        for (backend, kind, reason, where), cases in sorted(
            grouped.items(), key=lambda i: (backend_order(i[0][0]), i[0])
        )
    ]
    return Table(caption, ("backend", "what", "why", "cases", "on"), rows) if rows else None


def _cases(cases: Sequence[str]) -> str:
    distinct = sorted(dict.fromkeys(cases), key=_by_number)
    return ", ".join(distinct[:3]) + (f" and {len(distinct) - 3} more" if len(distinct) > 3 else "")


def _by_number(text: str) -> list[tuple[int, str]]:
    """Sort key: t4 before t16."""
    return [(int(part), "") if part.isdecimal() and len(part) < 19 else (-1, part) for part in re.split(r"(\d+)", text)]


def machine_link(group: Group) -> Link:
    return Link(group.machine.name, page=machine_page(group.key, group.machine.name))
