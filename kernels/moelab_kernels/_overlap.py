"""Whether an output shares elements with an input."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.exceptions import TooHardError

# Where a two-dimensional array lies: (address, rows, columns, row stride, column stride, bytes of an element), strides
# in elements. A plain tuple: one is made per operand of every call that brings its own out.
Place: TypeAlias = tuple[int, int, int, int, int, int]

# Enough for any pair of two-dimensional arrays; a pair that needs more is taken to overlap.
_MAX_WORK = 1_000_000


class _Strided:
    """A Place as an object that numpy can wrap, for questions of address only."""

    def __init__(self, place: Place) -> None:
        address, rows, columns, row_stride, column_stride, itemsize = place
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{itemsize}",
            "shape": (rows, columns),
            "strides": (row_stride * itemsize, column_stride * itemsize),
            "data": (address, True),
        }


def _extent(place: Place) -> tuple[int, int]:
    address, rows, columns, row_stride, column_stride, itemsize = place
    down, across = (rows - 1) * row_stride, (columns - 1) * column_stride
    low = high = address
    if down < 0:
        low += down * itemsize
    else:
        high += down * itemsize
    if across < 0:
        low += across * itemsize
    else:
        high += across * itemsize
    return low, high + itemsize


# Cached: buffers that are used again and again give the same addresses, and the answer depends on nothing else.
@lru_cache(maxsize=1024)
def first_overlap(out: Place, inputs: tuple[Place, ...]) -> int | None:
    """Index of the first input that has a byte in common with `out`.

    Exact where the extents meet: out may be the other half of a buffer whose rows also hold x.
    """
    if not out[1] or not out[2]:
        return None
    low, high = _extent(out)
    for i, place in enumerate(inputs):
        other_low, other_high = _extent(place)
        if low < other_high and other_low < high and place[1] and place[2] and _share(out, place):
            return i
    return None


def _share(a: Place, b: Place) -> bool:
    first: Any = np.asarray(_Strided(a))
    second: Any = np.asarray(_Strided(b))
    max_work: Any = _MAX_WORK  # numpy's own annotation allows two of its values only
    try:
        return bool(np.shares_memory(first, second, max_work=max_work))
    except TooHardError:
        return True
