"""How speeds moved over the committed results of one kind of CPU, and where they jumped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from moelab import comparison, results

FEWEST = 6  # points; a jump between two runs is for `compare` to judge


@dataclass(frozen=True)
class Point:
    """One result of a series: speed relative to the baseline, with its interval."""

    date: str
    commit: str
    file: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """Results of one backend in one case on one kind of CPU, oldest first."""

    cpu: str
    case: str
    label: str
    context: tuple[tuple[str, str], ...]
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Step:
    """A jump of a series at `point`: medians of the stretch before and of the one that begins there."""

    series: Series
    point: Point
    before: float
    after: float


def series_of(paths: Iterable[Path]) -> list[Series]:
    """Every series that the result files hold. ValueError names a file that is no result."""
    found: dict[tuple[tuple[tuple[str, str], ...], str, str], list[Point]] = {}
    for path in sorted(paths):
        document = results.load(path)
        block = document["moelab"]
        for entry in comparison.entries(document).values():
            if entry.speed is None:
                continue
            point = Point(
                date=block["run"]["started"],
                commit=str(block["source"]["commit"] or "unknown")[:12],
                file=path.name,
                value=entry.speed.value,
                low=entry.speed.low,
                high=entry.speed.high,
            )
            context = (*entry.context, ("baseline", str(block["run"]["baseline"])))
            found.setdefault((context, entry.case, entry.label), []).append(point)
    return [
        Series(dict(context)["CPU part"], case, label, context, tuple(sorted(points, key=lambda p: (p.date, p.file))))
        for (context, case, label), points in found.items()
    ]


def steps(series: Series) -> list[Step]:
    """Where the series jumps: segments around medians, by PELT; absolute deviations, so one outlier is no step.

    A segment has three results at least and must save 3 log n in units of the noise.
    """
    import ruptures  # only the history needs it

    points = series.points
    if len(points) < FEWEST:
        return []
    logs = np.log([p.value for p in points])
    signal = (logs / _noise(points, logs)).reshape(-1, 1)
    found = ruptures.Pelt(model="l1", min_size=3, jump=1).fit(signal).predict(pen=3 * math.log(len(points)))
    edges = [0, *found]
    middles = [float(np.exp(np.median(logs[a:b]))) for a, b in pairwise(edges)]
    return [Step(series, points[edge], *around) for edge, around in zip(edges[1:-1], pairwise(middles), strict=True)]


def _noise(points: Sequence[Point], logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Standard deviation of one point: from neighbours, and no less than their own intervals say."""
    own = float(np.median([math.log(p.high / p.low) / 3.92 for p in points]))
    neighbours = float(np.median(np.abs(np.diff(logs)))) / 0.954  # of |difference of two normals|
    return max(own, neighbours, 1e-4)
