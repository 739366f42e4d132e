"""The right answer: the layer in fp64, written from its definition and independent of every kernel.

It goes expert by expert, so that fp64 copies of no more than one expert's weights exist at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from moelab import bf16
from moelab.activations import ACTIVATIONS
from moelab.weights import Weights
from moelab.workloads import Inputs, Layer

ROWS_AT_ONCE = 512
"""Rows of one expert that are held in fp64 at a time."""

Index = npt.NDArray[np.intp]
Element = TypeVar("Element", bound=np.generic)


@dataclass(frozen=True)
class Expert:
    """One expert's weights: bits13 uint16 [2I, H] with gate rows first, bits2 uint16 [H, I], biases fp64 or None."""

    bits13: bf16.Bits
    bits2: bf16.Bits
    bias13: bf16.Float64 | None
    bias2: bf16.Float64 | None

    @cached_property
    def w13(self) -> bf16.Float64:
        return bf16.to_float64(self.bits13)

    @cached_property
    def w2(self) -> bf16.Float64:
        return bf16.to_float64(self.bits2)


@dataclass(frozen=True)
class Stage:
    """Part of a call: n (token, slot) pairs that go through one expert.

    tokens, slots intp [n]; x fp64 [n, H]; gate, up, inner fp64 [n, I]; y fp64 [n, H], not weighted; router fp64 [n].
    """

    expert: Expert
    tokens: Index
    slots: Index
    x: bf16.Float64
    gate: bf16.Float64
    up: bf16.Float64
    inner: bf16.Float64
    y: bf16.Float64
    router: bf16.Float64


def used_experts(layer: Layer, inputs: Inputs) -> list[int]:
    """Experts that some token uses, ascending. ValueError for an expert id outside [-1, num_experts)."""
    check_ids(inputs.topk_ids, layer.num_experts)
    return [int(number) for number in np.unique(inputs.topk_ids) if number >= 0]


def stages(weights: Weights, layer: Layer, inputs: Inputs, number: int) -> Iterator[Stage]:
    """The stages of one expert, at most ROWS_AT_ONCE rows each."""
    activation = ACTIVATIONS[layer.activation]
    expert = _expert(weights, layer, number)
    all_tokens, all_slots = np.nonzero(inputs.topk_ids == number)
    for start in range(0, len(all_tokens), ROWS_AT_ONCE):
        tokens, slots = (index[start : start + ROWS_AT_ONCE] for index in (all_tokens, all_slots))
        x = bf16.to_float64(inputs.x[tokens])
        with np.errstate(over="ignore", invalid="ignore"):  # NaN and infinity are results like others
            both = x @ expert.w13.T
            if expert.bias13 is not None:
                both += expert.bias13
            gate, up = both[:, : layer.intermediate], both[:, layer.intermediate :]
            inner = activation.value(gate) * activation.up_factor(up)
            y = inner @ expert.w2.T
            if expert.bias2 is not None:
                y += expert.bias2
        router = inputs.topk_weights[tokens, slots].astype(np.float64)
        yield Stage(expert, tokens, slots, x, gate, up, inner, y, router)


def _expert(weights: Weights, layer: Layer, number: int) -> Expert:
    bias13 = bias2 = None
    if weights.w13_bias is not None and weights.w2_bias is not None:
        bias13 = gate_rows_first(weights.w13_bias[number], layer).astype(np.float64)
        bias2 = weights.w2_bias[number].astype(np.float64)
    return Expert(gate_rows_first(weights.w13[number], layer), weights.w2[number], bias13, bias2)


def oracle(weights: Weights, layer: Layer, inputs: Inputs) -> bf16.Float64:
    """The output fp64 [M, H]. Slots with id -1 are skipped; an id that occurs twice counts twice.

    Raises ValueError for an expert id outside [-1, num_experts).
    """
    out = np.zeros(inputs.x.shape)
    for number in used_experts(layer, inputs):
        for stage in stages(weights, layer, inputs, number):
            add_rows(out, stage.tokens, stage.router[:, None] * stage.y)
    return out


def add_rows(total: bf16.Float64, rows: Index, values: bf16.Float64) -> None:
    """total[rows[i]] += values[i]. A token that has the same expert twice has two rows."""
    if len(np.unique(rows)) == len(rows):
        total[rows] += values
    else:
        np.add.at(total, rows, values)


def gate_rows_first(rows: npt.NDArray[Element], layer: Layer) -> npt.NDArray[Element]:
    """[2I, ...] in the layer's own order to gate rows, then up rows."""
    if layer.gate_up == "split":
        return rows
    return np.concatenate((rows[0::2], rows[1::2]))


def check_ids(topk_ids: npt.NDArray[np.int32], num_experts: int) -> None:
    bad = np.argwhere((topk_ids < -1) | (topk_ids >= num_experts))
    if len(bad):
        token, slot = bad[0]
        raise ValueError(
            f"topk_ids[{token}, {slot}] is {topk_ids[token, slot]}, must be -1 or an expert in [0, {num_experts})"
        )
