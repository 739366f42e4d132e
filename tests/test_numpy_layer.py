"""The layer on numpy arrays, without torch, against the fp64 oracle and its bounds.

These tests also run on the Arm build under an emulator (ci/arm.py): they import numpy, scipy and the two packages.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

import moelab_kernels as mk
from moelab.activations import ACTIVATIONS
from moelab.bf16 import Bits
from moelab.bounds import reference
from moelab.check import check
from moelab.rounding import FUSED
from moelab.weights import Weights, make_weights
from moelab.workloads import SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT, Case, Inputs, Layer, make_inputs

pytestmark = pytest.mark.emulated

ISAS = mk.isas()


def packed(weights: Weights, layer: Layer, isa: str) -> mk.PackedExperts:
    return mk.pack(
        weights.w13,
        weights.w2,
        w13_bias=weights.w13_bias,
        w2_bias=weights.w2_bias,
        activation=layer.activation,
        gate_up=layer.gate_up,
        alpha=SWIGLUOAI_ALPHA,
        limit=SWIGLUOAI_LIMIT,
        isa=isa,
        bf16_as_uint16=True,
    )


def output(experts: mk.PackedExperts, inputs: Inputs, threads: int = 2) -> Bits:
    out: Bits = mk.fused_moe(
        inputs.x, experts, inputs.topk_weights, inputs.topk_ids, num_threads=threads, bf16_as_uint16=True
    )
    return out


def assert_right(layer: Layer, tokens: int, isa: str) -> None:
    weights, inputs = make_weights(layer), make_inputs(Case(layer, tokens))
    result = check(output(packed(weights, layer, isa), inputs), reference(weights, layer, inputs, FUSED))
    assert result.ok, result.reason


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_every_activation(activation: str, bias: bool, isa: str):
    layer = Layer("grid", 8, 2, 128, 128, activation, bias=bias)  # type: ignore[arg-type]
    for tokens in (1, 64):
        assert_right(layer, tokens, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("hidden", "intermediate"), [(2880, 128), (128, 2880), (704, 176), (129, 75)])
def test_sizes_of_real_models(hidden: int, intermediate: int, isa: str):
    layer = Layer("sizes", 2, 1, hidden, intermediate, "swigluoai", bias=True, gate_up="interleaved")
    assert_right(layer, 3, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_a_token_has_the_same_bits_in_every_batch(isa: str):
    layer = Layer("batches", 2, 2, 96, 48, "silu", bias=True)  # both experts get every token
    weights, inputs = make_weights(layer), make_inputs(Case(layer, 29))
    experts = packed(weights, layer, isa)
    alone = np.concatenate(
        [
            output(experts, Inputs(inputs.x[t : t + 1], inputs.topk_weights[t : t + 1], inputs.topk_ids[t : t + 1]))
            for t in range(29)
        ]
    )
    for tokens in (2, 3, 5, 8, 12, 13, 29):
        part = Inputs(inputs.x[:tokens], inputs.topk_weights[:tokens], inputs.topk_ids[:tokens])
        for threads in (1, 3):
            assert np.array_equal(output(experts, part, threads), alone[:tokens]), (tokens, threads)


def test_instruction_sets_that_this_cpu_lacks_are_refused():
    """And with MOELAB_EXPECTED_ISAS the CPU has exactly those, best first: so an emulated CPU is the one meant."""
    built = mk.build_info()["isas"]
    expected = os.environ.get("MOELAB_EXPECTED_ISAS")
    if expected is not None:
        assert expected.split(",") == ISAS
    layer = replace(Layer("refused", 1, 1, 16, 16, "silu"))
    weights = make_weights(layer)
    for isa in sorted(set(built) - set(ISAS)):
        feature = isa.rpartition("_")[2]  # the last word is what the weaker instruction sets lack: bf16, avx512
        with pytest.raises(RuntimeError, match=rf"'{isa}'.*lacks .*{feature}"):
            packed(weights, layer, isa)
