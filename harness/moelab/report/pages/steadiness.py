"""What disturbed a run, in few lines: the same words with other numbers are one line with their range."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moelab.report.model import Result
from moelab.report.text import count

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def disturbances(result: Result) -> list[str]:
    """'case: the rate varied by 9%' for many cases becomes 'the rate varied by 5% to 47%, in 12 cells'."""
    cases = sorted(result.cases, key=len, reverse=True)
    found: dict[str, list[str]] = {}
    for text in result.conditions:
        said = _without_case(text, cases)
        found.setdefault(_NUMBER.sub("#", said, count=1), []).append(said)
    return [_one(group) for group in found.values()]


def _without_case(text: str, cases: Sequence[str]) -> str:
    """Without the name of its case, which may hold anything; in a file that lists no cases, a word before a colon."""
    named = next((case for case in cases if text.startswith(f"{case}: ")), None)
    if named is not None:
        return text[len(named) + 2 :]
    head, _, said = text.partition(": ")
    return said if said and " " not in head else text


def _one(group: Sequence[str]) -> str:
    if len(group) == 1 or not (first := _NUMBER.search(group[0])):
        return group[0] + (f", {len(group)} times" if len(group) > 1 else "")
    numbers = sorted((match[0] for text in group if (match := _NUMBER.search(text))), key=float)
    unit = "%" if group[0][first.end() : first.end() + 1] == "%" else ""
    span = numbers[0] if numbers[0] == numbers[-1] else f"{numbers[0]}{unit} to {numbers[-1]}"
    return f"{group[0][: first.start()]}{span}{group[0][first.end() :]}, in {count(len(group), 'cell')}"
