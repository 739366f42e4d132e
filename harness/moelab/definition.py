"""The layer, word for word in fp64: slow, and meant to be read. `moelab.oracle` computes the same fast.

out[t] = sum over the token's slots s, e = topk_ids[t, s], of
         topk_weights[t, s] * (w2[e] @ (activation(gate, up)) + w2_bias[e]),    [gate; up] = w13[e] @ x[t] + w13_bias[e]
"""

from __future__ import annotations

import math

import numpy as np

from moelab import bf16
from moelab.weights import Weights
from moelab.workloads import SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT, Inputs, Layer


def activation(kind: str, gate: float, up: float) -> float:
    if kind == "silu":
        return gate / (1 + math.exp(-gate)) * up
    if kind == "gelu":
        return 0.5 * gate * (1 + math.erf(gate / math.sqrt(2))) * up
    if kind == "gelu_tanh":
        return 0.5 * gate * (1 + math.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up
    gate = min(gate, SWIGLUOAI_LIMIT)
    up = max(-SWIGLUOAI_LIMIT, min(up, SWIGLUOAI_LIMIT))
    return gate / (1 + math.exp(-SWIGLUOAI_ALPHA * gate)) * (up + 1)


def moe(weights: Weights, layer: Layer, inputs: Inputs) -> bf16.Float64:
    """The output [M, H] in fp64. Slots with expert id -1 are skipped; an id that occurs twice counts twice."""
    x = bf16.to_float64(inputs.x)
    out = np.zeros_like(x)
    for token, slot in np.argwhere(inputs.topk_ids >= 0):
        expert = inputs.topk_ids[token, slot]
        both = bf16.to_float64(weights.w13[expert]) @ x[token]
        if weights.w13_bias is not None:
            both = both + weights.w13_bias[expert]
        split = layer.gate_up == "split"
        gate = both[: layer.intermediate] if split else both[0::2]
        up = both[layer.intermediate :] if split else both[1::2]
        inner = np.array([activation(layer.activation, g, u) for g, u in zip(gate, up, strict=True)])
        y = bf16.to_float64(weights.w2[expert]) @ inner
        if weights.w2_bias is not None:
            y = y + weights.w2_bias[expert]
        out[token] += float(inputs.topk_weights[token, slot]) * y
    return out
