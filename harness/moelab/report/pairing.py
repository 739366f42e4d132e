"""Ours against every backend of its cell, from the raw samples, where the run itself judged only its baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from moelab import statistics
from moelab.report.model import OURS, Cell, Comparison, Interval, Samples

# A bootstrap takes 5 to 25 ms; past this many, the page shows the paired median without an interval and says so.
MOST_BOOTSTRAPS = 800


def paired_ratios(ours: Samples, other: Samples) -> tuple[float, ...]:
    """other's time / ours for every (process, round) that both were timed in; empty without such places."""
    return tuple(theirs / own for own, theirs, _ in _pairs(ours, other))


def compare_with_peers(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The same cells, with ours compared with each backend timed beside it.

    Ratios and verdicts follow moelab.statistics: the cells of one file share what they know of the scatter against a
    peer, and verdicts are corrected over all comparisons that are added to that file. Beyond MOST_BOOTSTRAPS
    comparisons the rest get the paired median alone, undecided.
    """
    groups: dict[tuple[str, str], dict[int, statistics.Pairs]] = {}
    for place, cell in enumerate(cells):
        for peer in _not_judged(cell):
            assert cell.ours is not None
            if pairs := _pairs(cell.ours.samples, cell.measurements[peer].samples):
                own, theirs, process = zip(*pairs, strict=True)
                groups.setdefault((cell.result.digest, peer), {})[place] = statistics.Pairs(theirs, own, process)
    left = MOST_BOOTSTRAPS
    added: dict[int, dict[str, Comparison]] = {}
    judged: dict[str, list[tuple[int, str, statistics.Verdict]]] = {}
    for (digest, peer), group in groups.items():
        whole = dict(list(group.items())[: max(0, left)])
        left -= len(group)
        level = cells[next(iter(group))].result.level
        ratios = dict(zip(whole, statistics.paired_ratios(list(whole.values()), level=level), strict=True))
        for place, sides in group.items():
            comparison, verdict = _compare(cells[place], peer, sides, ratios.get(place))
            added.setdefault(place, {})[peer] = comparison
            if verdict is not None:
                judged.setdefault(digest, []).append((place, peer, verdict))
    for found in judged.values():
        corrected = statistics.judge_table([verdict for _, _, verdict in found])
        for (place, peer, _), verdict in zip(found, corrected, strict=True):
            added[place][peer] = replace(added[place][peer], verdict=verdict.table)
    return tuple(_with(cell, added.get(place, {})) for place, cell in enumerate(cells))


def _not_judged(cell: Cell) -> list[str]:
    ours = cell.ours
    return [name for name in cell.measurements if name != OURS and name not in ours.comparisons] if ours else []


def _pairs(ours: Samples, other: Samples) -> list[tuple[float, float, int]]:
    places = dict(zip(zip(ours.process, ours.round, strict=True), ours.seconds, strict=False))
    found = []
    for process, turn, seconds in zip(other.process, other.round, other.seconds, strict=False):
        own = places.get((process, turn), math.nan)
        if math.isfinite(own) and math.isfinite(seconds):
            found.append((own, seconds, process))
    return found


def _compare(
    cell: Cell, peer: str, pairs: statistics.Pairs, ratio: statistics.Ratio | None
) -> tuple[Comparison, statistics.Verdict | None]:
    """`ratio` None: the paired median alone."""
    assert cell.ours is not None
    broken = cell.ours.broken or cell.measurements[peer].broken
    if ratio is None:
        middle = sorted(a / b for a, b in zip(pairs.baseline, pairs.backend, strict=True))[len(pairs.process) // 2]
        verdict = "broken" if broken else "undecided"
        return Comparison(peer, Interval(middle), verdict, len(pairs.process), "samples"), None
    comparison = Comparison(
        against=peer,
        ratio=Interval(ratio.value, ratio.low, ratio.high),
        verdict="broken" if broken else "undecided",
        pairs=ratio.pairs,
        source="samples",
        minimum_detectable=ratio.minimum_detectable,
    )
    return comparison, None if broken else statistics.judge(ratio, _control(cell), margin=cell.result.margin)


def _control(cell: Cell) -> statistics.Ratio | None:
    if cell.control is None or not cell.control.ratio.has_ends:
        return None
    r = cell.control.ratio
    return statistics.Ratio(r.value, r.low, r.high, cell.result.level, 0, cell.processes, math.inf, math.nan)


def _with(cell: Cell, comparisons: dict[str, Comparison]) -> Cell:
    if not comparisons or cell.ours is None:
        return cell
    ours = replace(cell.ours, comparisons={**cell.ours.comparisons, **comparisons})
    return replace(cell, measurements={**cell.measurements, OURS: ours})
