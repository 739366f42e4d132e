"""An implementation in numpy that rounds to BF16 where it is asked to, and settings to try it on.

It accumulates in fp32, as BLAS does.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from moelab import bf16
from moelab.activations import ACTIVATIONS
from moelab.bounds import Reference, reference, references
from moelab.rounding import FUSED, Rounding
from moelab.weights import Weights, make_weights
from moelab.workloads import Case, Inputs, Layer, layer_by_name, make_inputs

STEPS = Rounding(gemm1=True, activation="steps", expert="unweighted")
ROUNDINGS = {
    "fused": FUSED,
    "steps": STEPS,
    "weighted expert": Rounding(expert="weighted"),
    "bias afterwards": Rounding(gemm1=True, bias="bf16", activation="steps", expert="unweighted"),
    "bf16 sum": Rounding(gemm1=True, expert="weighted", combine="bf16"),
    "fp32 output": Rounding(output=False),
    "gelu table": Rounding(output=False, gelu_tanh="fp16-table"),
    "to zero": Rounding(to="zero"),
}
LAYERS = (
    "tiny",
    "gpt-oss-20b/E8/H384/I256",
    "gemma-4-26b-a4b/E12/H256/I200",
    "qwen3-30b-a3b/E16/H256/I320",
    "gpt-oss-20b/E4/H33/I7",
)
Float32 = npt.NDArray[np.float32]


def rounded(values: npt.ArrayLike) -> Float32:
    return bf16.to_float32(bf16.to_bits(np.asarray(values, np.float32)))


def cut(values: npt.ArrayLike) -> Float32:
    """The lower half of each fp32 cut off: rounded to BF16 towards zero."""
    return (np.asarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def stored(values: npt.ArrayLike, rounding: Rounding) -> Float32:
    return cut(values) if rounding.to == "zero" else rounded(values)


def through_fp16(values: Float32) -> Float32:
    return values.astype(np.float16).astype(np.float32)


def emulate(weights: Weights, layer: Layer, inputs: Inputs, rounding: Rounding) -> npt.NDArray[np.uint16] | Float32:
    out = np.zeros(inputs.x.shape, np.float32)
    x = bf16.to_float32(inputs.x)
    for expert in np.unique(inputs.topk_ids[inputs.topk_ids >= 0]):
        tokens, slots = np.nonzero(inputs.topk_ids == expert)
        both = with_bias(x[tokens] @ bf16.to_float32(weights.w13[expert]).T, weights.w13_bias, expert, rounding)
        if rounding.gemm1:
            both = rounded(both)
        if layer.gate_up == "interleaved":
            gate, up = both[:, 0::2], both[:, 1::2]
        else:
            gate, up = both[:, : layer.intermediate], both[:, layer.intermediate :]
        inner = activated(layer.activation, gate, up, rounding)
        y = with_bias(inner @ bf16.to_float32(weights.w2[expert]).T, weights.w2_bias, expert, rounding)
        if rounding.expert == "unweighted":
            y = rounded(y)
        y = y * inputs.topk_weights[tokens, slots][:, None]
        if rounding.expert == "weighted":
            y = rounded(y)
        out[tokens] += y  # experts of a token are distinct
        if rounding.combine == "bf16":
            out = rounded(out)
    return bf16.to_bits(stored(out, rounding)) if rounding.output else out


def with_bias(result: Float32, bias: Float32 | None, expert: int, rounding: Rounding) -> Float32:
    if bias is None:
        return result
    return rounded(rounded(result) + bias[expert]) if rounding.bias == "bf16" else result + bias[expert]


def activated(name: str, gate: Float32, up: Float32, rounding: Rounding) -> Float32:
    step = rounded if rounding.activation == "steps" else np.float32
    if name == "swigluoai":
        gate, up = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7))
        sigmoid = step(1 / (1 + np.exp(-step(np.float32(1.702) * gate))))
        return stored(step(up + 1) * step(gate * sigmoid), rounding)
    table = name == "gelu_tanh" and rounding.gelu_tanh == "fp16-table"
    if table:
        gate = through_fp16(gate)
    value = ACTIVATIONS[name].value(gate.astype(np.float64)).astype(np.float32)
    return stored(step(through_fp16(value) if table else value) * up, rounding)


@lru_cache(maxsize=16)
def setting(name: str, tokens: int) -> tuple[Weights, Layer, Inputs]:
    layer = layer_by_name(name)
    return make_weights(layer, 1), layer, make_inputs(Case(layer, tokens, seed=1))


@lru_cache(maxsize=16)
def all_wanted(name: str, tokens: int) -> dict[str, Reference]:
    """References for all of ROUNDINGS."""
    weights, layer, inputs = setting(name, tokens)
    return dict(zip(ROUNDINGS, references(weights, layer, inputs, tuple(ROUNDINGS.values())), strict=True))


@lru_cache(maxsize=8)
def wanted_of(name: str, rounding: Rounding) -> Reference:
    weights, layer, inputs = setting(name, 32)
    return reference(weights, layer, inputs, rounding)
