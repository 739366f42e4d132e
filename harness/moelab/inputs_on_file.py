"""Input sets as files for the workers: every timed call gets tokens and expert ids that no call had before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moelab import exchange
from moelab.workloads import Case, Inputs, make_inputs

# Added to the number of a timed set; they are drawn below it, so no timed one has this number.
UNTIMED = 1 << 41


@dataclass(frozen=True)
class InputFiles:
    """The sets of one sample, and one for the untimed call before it: other tokens, the same experts as often.

    Tokens and slots are in the opposite order there: what somebody remembers of those ids is of no use with these.
    """

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
        exchange.write_inputs(other, Inputs(x, sets[0].topk_weights[::-1, ::-1], sets[0].topk_ids[::-1, ::-1]))
    return InputFiles(first_index, sets, tuple(map(str, paths)), None if other is None else str(other))
