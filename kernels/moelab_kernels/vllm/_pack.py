"""Packing a vLLM layer's experts without holding them twice."""

from __future__ import annotations

from typing import Any

from moelab_kernels._gate import Gate
from moelab_kernels._pack import Packer
from moelab_kernels._packed import PackedExperts
from moelab_kernels._release import Discarder


def pack_and_release(layer: Any, gate: Gate) -> PackedExperts:
    """Packs w13_weight [E, 2I, H], w2_weight [E, H, I] and their biases; the weights' memory reads zeros afterwards.

    vLLM holds the weights under several names while it calls this, and replaces them all right after.
    """
    w13, w2 = layer.w13_weight.detach(), layer.w2_weight.detach()
    biases = [getattr(layer, name, None) for name in ("w13_bias", "w2_bias")]
    has_bias = biases[0] is not None
    discarders = [Discarder(weight, sole_owner=True) for weight in (w13, w2)]
    experts, hidden, intermediate = w2.shape
    packer = Packer(
        experts,
        hidden,
        intermediate,
        activation=gate.activation,
        gate_up=gate.gate_up,
        bias=has_bias,
        alpha=gate.alpha,
        limit=gate.limit,
    )
    for e in range(experts):
        packer.add(e, w13[e], w2[e], *(bias[e].detach() for bias in biases if bias is not None))
        for discarder in discarders:
            discarder.discard(e)
    return packer.finish()
