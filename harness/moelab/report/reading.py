"""Typed, forgiving access to JSON of unknown origin: the wrong type reads as absent, never as an exception."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from moelab.report.text import clean

_LARGEST = 1e30


class Node:
    """One JSON value. Navigation never fails: what is not there is a Node of None."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: str) -> Node:
        return Node(self.value.get(key) if isinstance(self.value, dict) else None)

    def __bool__(self) -> bool:
        return self.value is not None

    def items(self) -> Iterator[Node]:
        """The elements of a list; nothing for anything else."""
        return (Node(value) for value in (self.value if isinstance(self.value, list) else ()))

    def pairs(self) -> Iterator[tuple[str, Node]]:
        """The members of an object with clean keys; nothing for anything else."""
        return ((clean(k, 200), Node(v)) for k, v in (self.value.items() if isinstance(self.value, dict) else ()))

    def text(self, default: str = "", limit: int = 500) -> str:
        """Clean text of a string or number; the default for anything else."""
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            return default
        return clean(self.value, limit)

    def number(self, default: float = math.nan) -> float:
        """A number up to 1e30 in size (what is measured here is far below it); the default for anything else."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            return default
        return float(self.value) if abs(self.value) <= _LARGEST else default

    def positive(self, default: float = math.nan) -> float:
        """A number from 1e-30 up; the default for anything else."""
        number = self.number()
        return number if number >= 1 / _LARGEST else default

    def integer(self, default: int = 0) -> int:
        """A whole number between 0 and 2^53; the default for anything else."""
        number = self.number()
        return int(number) if math.isfinite(number) and 0 <= number <= 2**53 and number == int(number) else default

    def flag(self) -> bool | None:
        """True, False, or None where the file does not say."""
        return self.value if isinstance(self.value, bool) else None

    def texts(self, most: int = 200, limit: int = 500) -> tuple[str, ...]:
        """The non-empty texts of a list."""
        return tuple(text for node in list(self.items())[:most] if (text := node.text(limit=limit)))

    def integers(self) -> tuple[int, ...]:
        return tuple(node.integer() for node in self.items())
