"""Input sets as files for the workers: every timed call gets tokens and expert ids that no call had before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moelab import exchange
from moelab.workloads import Case, Inputs, make_inputs

# Sets that are never timed lie far away from those that are.
UNTIMED = 1_000_000


@dataclass(frozen=True)
class InputFiles:
    """The sets of one sample, and one for the untimed call before it: other tokens, the same routing."""

    first_index: int
    sets: tuple[Inputs, ...]
    paths: tuple[str, ...]
    untimed: str | None


def write(case: Case, first_index: int, count: int, folder: Path, *, untimed: bool) -> InputFiles:
    """Makes the sets first_index … first_index + count - 1."""
    sets = tuple(make_inputs(case, first_index + i) for i in range(count))
    paths = [folder / f"input-{i}" for i in range(count)]
    for one, path in zip(sets, paths, strict=True):
        exchange.write_inputs(path, one)
    other = None
    if untimed:
        other = folder / "input-untimed"
        x = make_inputs(case, UNTIMED + first_index).x
        exchange.write_inputs(other, Inputs(x, sets[0].topk_weights, sets[0].topk_ids))
    return InputFiles(first_index, sets, tuple(map(str, paths)), None if other is None else str(other))
