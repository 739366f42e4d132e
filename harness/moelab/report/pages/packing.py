"""What loading costs: packing, the memory that it needs, and the time until a first result."""

from __future__ import annotations

from collections.abc import Sequence

from moelab.report.blocks import Block, Bullets, Section, Table, Text, Value
from moelab.report.figures import packing as figures
from moelab.report.figures.canvas import Drawn
from moelab.report.model import OURS, Cell, Interval, Measurement, Packing, Result, spread
from moelab.report.pages.context import Context, group_name
from moelab.report.palette import backend_order
from moelab.report.provenance import origin
from moelab.report.summary import Group
from moelab.report.text import significant

TITLE = "Packing and the first result"
MOST_ROWS = 40
_ABOUT = (
    "Packing brings the weights into the order that a backend reads. It happens once, when a model is loaded, and is "
    "in none of the times of a call. Some backends pack during their first call, or not at all, so what compares is "
    "the time until a first result: packing and first call together."
)


def packings(cells: Sequence[Cell]) -> list[tuple[Cell, Measurement]]:
    """One measurement per layer and backend, all of a layer from the newest run that tells of packing.

    A right one where there is one: packing that leads to a wrong output is no result.
    """
    telling = [cell for cell in cells if any(m.packing.seconds for m in cell.measurements.values())]
    newest: dict[str, Result] = {}
    for cell in telling:
        known = newest.setdefault(cell.case.workload, cell.result)
        if (cell.result.started, cell.result.digest) > (known.started, known.digest):
            newest[cell.case.workload] = cell.result
    found: dict[tuple[str, str], tuple[Cell, Measurement]] = {}
    for cell in telling:
        if cell.result is not newest[cell.case.workload]:
            continue
        for m in cell.measurements.values():
            key = (cell.case.workload, m.backend)
            if m.packing.seconds and (key not in found or (_wrong(found[key][1]) and not _wrong(m))):
                found[key] = (cell, m)
    return [found[key] for key in sorted(found, key=lambda key: (key[0], backend_order(key[1])))]


def _wrong(m: Measurement) -> bool:
    return m.correctness.passed is False


def packing_section(context: Context, group: Group) -> Section:
    """Of the front page: what it means, who is first, and all rows."""
    found = packings(group.cells)
    blocks: list[Block] = []
    if found:
        blocks += [Text(_ABOUT), *_first(found)]
        caption = f"Packing on {group.machine.name}, {group.setting.label}"
        blocks.append(packing_table(context, group, found, caption))
    return Section(TITLE, blocks, brief=True)


def _first(found: Sequence[tuple[Cell, Measurement]]) -> list[Block]:
    """Per layer the backend that has a result first, and ours where that is another."""
    lines = []
    for workload in dict.fromkeys(cell.case.workload for cell, _ in found):
        times = {
            m.backend: spread(m.packing.first_result)
            for cell, m in found
            if cell.case.workload == workload and m.packing.first_result and not _wrong(m)
        }
        if OURS in times and len(times) > 1:
            lines.append(f"{workload}: {_order(times)}")
    return [Bullets(tuple(lines))] if lines else []


def _order(times: dict[str, Interval]) -> str:
    first = min(times, key=lambda name: times[name].value)
    ours = times[OURS]
    next_to = min((name for name in times if name != OURS), key=lambda name: times[name].value)
    second = next_to if first == OURS else OURS
    apart = ours.high < times[next_to].low or times[next_to].high < ours.low
    sure = "" if apart else " The ranges of their processes overlap: which of the two is first is not decided."
    return (
        f"{first} has a result first, after {significant(times[first].value)} s; {second} after "
        f"{significant(times[second].value)} s.{sure}"
    )


def packing_table(
    context: Context, group: Group, found: Sequence[tuple[Cell, Measurement]], caption: str, most: int = MOST_ROWS
) -> Table:
    """Rows of `found`, one per layer and backend, with their data beside them."""
    rows = [_row(cell.case.workload, m) for cell, m in found[:most]]
    name = group_name(group, "packing-table", "-".join(dict.fromkeys(cell.case.workload for cell, _ in found)))
    data = [row for cell, m in found for row in figures.data_rows(cell.case.workload, [(m.backend, m.packing)])]
    note = (
        "Medians over the processes, below them the least and the largest. GB/s: bytes of the weights as given (BF16, "
        "biases fp32) plus bytes of the packed ones, per second. Extra memory: at the peak of packing, beside the "
        "packed weights. The first call is of whatever case came first in a process, the same for all backends."
    )
    if len(found) > most:
        note = f"The first {most} of {len(found)}; the data and the pages of the models have the rest. {note}"
    columns = (
        "layer, backend", "packing [s]", "packing [GB/s]", "packed [MiB]", "extra memory [MiB]", "first call [s]",
        "first result [s]", "processes", "what it packs",
    )  # fmt: skip
    return Table(caption, columns, rows, frozenset(range(1, 8)), note, context.data(name, figures.COLUMNS, data))


def _row(workload: str, m: Measurement) -> list[str | Value]:
    p = m.packing
    wrong = Value(f"{workload}, {m.backend}", "wrong outputs: no result", "bad") if _wrong(m) else None
    return [
        wrong or f"{workload}, {m.backend}",
        _seconds(p.seconds),
        significant(p.bytes_per_second / 1e9),
        significant(p.packed_bytes / 2**20),
        significant(spread(p.extra_bytes).value / 2**20),
        _seconds(p.first_call),
        _seconds(p.first_result),
        str(len(p.seconds)),
        p.method or "–",
    ]


def _seconds(values: Sequence[float]) -> Value:
    middle = spread(values)
    under = f"{significant(middle.low)}–{significant(middle.high)}" if len(values) > 1 else ""
    return Value(significant(middle.value), under)


def packing_chart(group: Group, workload: str) -> Drawn | None:
    """Of one layer, for its model's page."""
    found = [(cell, m) for cell, m in packings(group.cells) if cell.case.workload == workload and not _wrong(m)]
    if not found:
        return None
    packed: list[tuple[str, Packing]] = [(m.backend, m.packing) for _, m in found]
    sizes = sorted({len(p.seconds) for _, p in packed})
    samples = f"n = {' to '.join(str(n) for n in dict.fromkeys((sizes[0], sizes[-1])))} processes"
    result = found[0][0].result
    about = origin([result], "Seconds, median over processes, on a log axis", samples, [group.setting.label],
                   intervals="lines: from the least to the largest")  # fmt: skip
    title = f"{workload}: packing and the first result"
    return figures.packing(group_name(group, "packing", workload), title, about, workload, packed)


def model_block(context: Context, group: Group, workload: str) -> list[Block]:
    """The table of one layer, for its model's page."""
    found = [(cell, m) for cell, m in packings(group.cells) if cell.case.workload == workload]
    caption = f"{workload} on {group.machine.name}: packing and the first result"
    return [packing_table(context, group, found, caption, len(found))] if found else []
