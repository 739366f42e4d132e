"""Compares sampled rows of many outputs with the oracle in few passes over the weights.

A pass goes over every expert, which costs the same for one row as for a hundred: so rows are collected first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from moelab import bounds
from moelab.bounds import Reference
from moelab.check import check
from moelab.exchange import Output
from moelab.measurement import Check
from moelab.rounding import Rounding
from moelab.weights import Weights
from moelab.workloads import Inputs, Layer

Key = tuple[str, int]
"""Case id and index of the input set."""


def take_rows(inputs: Inputs, rows: npt.NDArray[np.intp]) -> Inputs:
    """The inputs of some tokens alone: a token's output depends on no other token."""
    return Inputs(inputs.x[rows], inputs.topk_weights[rows], inputs.topk_ids[rows])


@dataclass
class RowChecks:
    """Rows to check, by input set, and what each backend made of them."""

    weights: Weights
    layer: Layer
    inputs: dict[Key, Inputs] = field(default_factory=dict)
    outputs: dict[str, dict[Key, Output]] = field(default_factory=dict)
    _references: dict[Rounding, dict[Key, Reference]] = field(default_factory=dict)

    def add(self, key: Key, rows: Inputs) -> None:
        """Rows of an input set that will be looked at."""
        self.inputs[key] = rows
        self._references.clear()

    def record(self, label: str, key: Key, output_rows: Output) -> None:
        """What a backend answered in these rows."""
        self.outputs.setdefault(label, {})[key] = output_rows

    def compute(self, roundings: Iterable[Rounding]) -> None:
        """The right answers for all rows, for several sets of rounding points at once."""
        wanted = tuple(dict.fromkeys(roundings))
        if not self.inputs or not wanted:
            return
        keys = list(self.inputs)
        joined = Inputs(
            x=np.concatenate([self.inputs[k].x for k in keys]),
            topk_weights=np.concatenate([self.inputs[k].topk_weights for k in keys]),
            topk_ids=np.concatenate([self.inputs[k].topk_ids for k in keys]),
        )
        ends = np.cumsum([len(self.inputs[k].x) for k in keys])
        for rounding, whole in zip(wanted, bounds.references(self.weights, self.layer, joined, wanted), strict=True):
            parts = (slice(end - len(self.inputs[k].x), end) for k, end in zip(keys, ends, strict=True))
            self._references[rounding] = {k: _rows_of(whole, part) for k, part in zip(keys, parts, strict=True)}

    def reference(self, key: Key, rounding: Rounding) -> Reference:
        """The right rows of one input set, after `compute`."""
        return self._references[rounding][key]

    def verdict(self, label: str, case: str, rounding: Rounding) -> tuple[Check, str | None]:
        """Check of all rows that a backend gave for a case, and why they are wrong (None: they are right)."""
        answers = {key: out for key, out in self.outputs.get(label, {}).items() if key[0] == case}
        references = self._references[rounding]
        if not answers:
            return Check(), None
        output = np.concatenate(list(answers.values()))
        return compare(output, _joined([references[key] for key in answers]))


def compare(output: Output, reference: Reference) -> tuple[Check, str | None]:
    """Check of rows [n, H] (BF16 bits or float32) against their reference."""
    result = check(output, reference)
    bound = None if result.worst_index is None else float(reference.bound[result.worst_index])
    summary = Check(
        rows=len(output),
        max_error=_finite(result.max_err),
        bound=bound,
        worst=_finite(result.max_err_over_bound),
        flips=result.flips,
        flip_limit=result.flip_limit,
    )
    return summary, None if result.ok else result.reason


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rows_of(reference: Reference, part: slice) -> Reference:
    r = reference
    return replace(r, output=r.output[part], bound=r.bound[part], variance=r.variance[part])


def _joined(parts: list[Reference]) -> Reference:
    return replace(
        parts[0],
        output=np.concatenate([p.output for p in parts]),
        bound=np.concatenate([p.bound for p in parts]),
        variance=np.concatenate([p.variance for p in parts]),
    )
