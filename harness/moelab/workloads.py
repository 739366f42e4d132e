"""What is measured: the MoE layers of real models, and cases (layer x tokens x routing x threads x seed).

To add a workload, add a line to `LAYERS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from moelab import bf16, routing
from moelab.random_bits import normal_table, uint16_stream

Activation = Literal["silu", "gelu", "gelu_tanh", "swigluoai"]
GateUp = Literal["split", "interleaved"]

SWIGLUOAI_ALPHA = 1.702
SWIGLUOAI_LIMIT = 7.0


@dataclass(frozen=True)
class Layer:
    """Shape of one MoE layer. Weights are w13 [E, 2I, H] (gate and up) and w2 [E, H, I].

    `gate_up`: "split" (rows 0..I-1 gate, I..2I-1 up) or "interleaved" (even rows gate, odd rows up).
    """

    name: str
    num_experts: int
    topk: int
    hidden: int
    intermediate: int
    activation: Activation
    bias: bool = False
    gate_up: GateUp = "split"

    def __post_init__(self) -> None:
        for field in ("num_experts", "topk", "hidden", "intermediate"):
            if getattr(self, field) < 1:
                raise ValueError(f"layer {self.name}: {field} is {getattr(self, field)}, must be at least 1")
        if self.topk > self.num_experts:
            raise ValueError(f"layer {self.name}: topk {self.topk} exceeds num_experts {self.num_experts}")

    @property
    def weight_bytes(self) -> int:
        """Bytes of the BF16 weights and fp32 biases of the whole layer."""
        return self.num_experts * (6 * self.intermediate * self.hidden + self.bias_bytes_per_expert)

    @property
    def bias_bytes_per_expert(self) -> int:
        return 4 * (2 * self.intermediate + self.hidden) if self.bias else 0


LAYERS: dict[str, Layer] = {
    layer.name: layer
    for layer in (
        Layer("gpt-oss-20b", 32, 4, 2880, 2880, "swigluoai", bias=True, gate_up="interleaved"),
        Layer("gpt-oss-120b", 128, 4, 2880, 2880, "swigluoai", bias=True, gate_up="interleaved"),
        Layer("gemma-4-26b-a4b", 128, 8, 2816, 704, "gelu_tanh"),
        Layer("qwen3-30b-a3b", 128, 8, 2048, 768, "silu"),
        Layer("mixtral-8x7b", 8, 2, 4096, 14336, "silu"),
        Layer("deepseek-v2-lite", 64, 6, 2048, 1408, "silu"),
        Layer("tiny", 8, 2, 128, 64, "silu"),
    )
}

_REDUCTION = re.compile(r"([EHI])([1-9][0-9]*)")
_REDUCED_FIELD = {"E": "num_experts", "H": "hidden", "I": "intermediate"}


def layer_by_name(name: str) -> Layer:
    """A layer of the table, or a reduced variant whose name says so: `mixtral-8x7b/E4`, `gpt-oss-20b/E8/I512`.

    `/E4` keeps 4 experts, `/H256` and `/I512` cut the hidden and intermediate size. The variant keeps the name it
    was asked by, so that a reduced result can never pass for the model's. Raises ValueError for anything else.
    """
    base, *reductions = name.split("/")
    if base not in LAYERS:
        raise ValueError(f"workload {name!r} is unknown; known: {', '.join(LAYERS)}")
    layer = LAYERS[base]
    sizes: dict[str, int] = {}
    for reduction in reductions:
        match = _REDUCTION.fullmatch(reduction)
        if match is None or _REDUCED_FIELD[match[1]] in sizes:
            raise ValueError(f"workload {name!r}: {reduction!r} is no reduction; one each of E<n>, H<n>, I<n>")
        field, size = _REDUCED_FIELD[match[1]], int(match[2])
        if size >= getattr(layer, field):
            raise ValueError(f"workload {name!r}: {field} {size} does not reduce {getattr(layer, field)}")
        sizes[field] = size
    return replace(
        layer,
        name=name,
        num_experts=sizes.get("num_experts", layer.num_experts),
        hidden=sizes.get("hidden", layer.hidden),
        intermediate=sizes.get("intermediate", layer.intermediate),
    )


def bytes_needed(layer: Layer, packed_copies: int = 1) -> int:
    """Memory that a run of this layer takes: the shared weights and one packed copy per backend held at once.

    Activations and scratch are small beside them and not counted.
    """
    return layer.weight_bytes * (1 + packed_copies)


@dataclass(frozen=True)
class Case:
    """One cell of a table: everything that decides the bits of weights, inputs and routing.

    `routing` is "uniform", "skewed", "one-hot" or "trace:FILE.npz" (see `moelab.routing`).
    """

    layer: Layer
    tokens: int
    routing: str = "uniform"
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"tokens is {self.tokens}, must be at least 0")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}, must be at least 1")
        routing.check_name(self.routing)

    @property
    def id(self) -> str:
        """`gpt-oss-20b/t16/uniform/2T`; a seed other than 0 is appended as `/s7`, a trace shows its file's stem."""
        kind = self.routing
        if kind.startswith(routing.TRACE_PREFIX):
            kind = routing.TRACE_PREFIX + Path(kind[len(routing.TRACE_PREFIX) :]).stem
        seed = f"/s{self.seed}" if self.seed else ""
        return f"{self.layer.name}/t{self.tokens}/{kind}/{self.threads}T{seed}"


@dataclass(frozen=True)
class Inputs:
    """One call's inputs: x uint16 BF16 bits [M, H], topk_weights fp32 [M, K], topk_ids int32 [M, K]."""

    x: bf16.Bits
    topk_weights: npt.NDArray[np.float32]
    topk_ids: npt.NDArray[np.int32]


def make_inputs(case: Case, index: int = 0) -> Inputs:
    """Input set number `index` of the case's pool: each has tokens and expert ids of its own.

    x is standard normal. The same (layer, tokens, routing, seed, index) gives the same bits on every machine and
    with every thread count.
    """
    layer = case.layer
    key = ("inputs", layer.name, case.tokens, case.routing, case.seed, index)
    raw = uint16_stream((*key, "x"), case.tokens * layer.hidden)
    x = normal_table(1.0)[raw].reshape(case.tokens, layer.hidden)
    ids, weights = routing.route(
        case.routing, tokens=case.tokens, num_experts=layer.num_experts, topk=layer.topk, seed=case.seed, index=index
    )
    return Inputs(x=x, topk_weights=weights, topk_ids=ids)
