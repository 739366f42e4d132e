"""The result in three sentences, with its uncertainty and its losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from moelab.report.model import OURS, Cell
from moelab.report.provenance import level, runs
from moelab.report.summary import Group, Standing, baseline_of, models, standings
from moelab.report.text import count, percent, ratio, ratio_interval, significant

# For a reader who has not yet come to who was compared.
SHORT = {
    "torch_loop": "PyTorch's loop over experts",
    "torch_grouped_mm": "PyTorch's grouped matrix product",
}


def sentences(groups: Sequence[Group]) -> list[str]:
    """At most three, about the machine and setting with most cells; what is not known is left out."""
    if not groups:
        return []
    main = groups[0]
    rows = standings(main.cells)
    baseline = baseline_of(main.cells)
    found = [_warning(main) + _headline(main, rows, baseline), _peers(rows, baseline), _limits(main.cells)]
    return [sentence for sentence in found if sentence]


def _warning(main: Group) -> str:
    """Kept in the sentence itself, which may be quoted without its page."""
    return "SYNTHETIC, not measured: " if main.synthetic else "EMULATED, no speed: " if main.emulated else ""


def _headline(main: Group, rows: Sequence[Standing], baseline: str) -> str:
    place = f"On {main.machine.name} with {main.setting.label}"
    good = [row for row in rows if row.cells]
    row = next((row for row in good if row.against == baseline), good[0] if good else None)
    if row is None:
        why = "every comparison is broken" if rows else f"{OURS} was compared with no other backend"
        return f"{place}, {count(len(main.cells), 'cell')} were timed, but {why}."
    names = models(main.cells)
    about = names[0] if len(names) == 1 else f"the MoE layers of {len(names)} models"
    interval = f" ({level(runs(main.cells))} interval {_ends(row)})" if row.mean.has_ends else ""
    what = f", {SHORT[row.against]}" if row.against in SHORT else ""
    unsure = " That decides nothing: the interval holds 1." if row.mean.low <= 1 <= row.mean.high else ""
    return (
        f"{place}, {OURS} runs {about} at {ratio(row.mean.value)} the speed of {row.against}{what}{interval}: the "
        f"geometric mean of {count(row.cells, 'cell')} (a model at a number of tokens), which range from "
        f"{ratio(row.lowest)} to {ratio(row.highest)}.{unsure}"
    )


def _peers(rows: Sequence[Standing], baseline: str) -> str:
    if not rows:
        return ""
    total = sum(row.cells for row in rows)
    faster, same, undecided, slower = (
        sum(getattr(row, word) for row in rows) for word in ("faster", "same", "undecided", "slower")
    )
    said = [f"faster in {faster or 'none'}"]
    said += [f"the same in {same}"] if same else []
    said += [f"undecided in {undecided}"] if undecided else []
    lost = f"slower in {slower}, listed below" if slower else "slower in none"
    others = [row for row in rows if row.against != baseline and row.cells]
    means = ", ".join(
        f"{ratio(row.mean.value)} over {row.against}" + (f" ({_ends(row)})" if row.mean.has_ends else "")
        for row in others
    )
    tail = f"; geometric means: {means}" if means else ""
    return (
        f"Of {count(total, 'comparison')} with {count(len(rows), 'backend')}, {OURS} is {', '.join(said)} and "
        f"{lost}{tail}."
    )


def _ends(row: Standing) -> str:
    return ratio_interval(row.mean.low, row.mean.high)


def _limits(cells: Sequence[Cell]) -> str:
    ours = [cell.ours for cell in cells if cell.ours and not cell.ours.broken]
    fractions = sorted(m.roofline.fraction.value for m in ours if math.isfinite(m.roofline.fraction.value))
    errors = [m.correctness.worst for m in ours if m.correctness.passed and math.isfinite(m.correctness.worst)]
    parts = []
    if fractions:
        middle = fractions[len(fractions) // 2]
        parts.append(
            f"it reaches {percent(middle)} of its roofline in the median cell ({percent(fractions[0])} to "
            f"{percent(fractions[-1])})"
        )
    if errors and len(errors) == len(ours):
        parts.append(f"every output is inside its error bound (at most {significant(max(errors), 2)} of it)")
    sentence = ", and ".join(parts)
    return sentence[:1].upper() + sentence[1:] + "." if sentence else ""
