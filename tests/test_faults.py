"""The check finds faults: each of these is the smallest of its kind, put into an otherwise honest implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from emulated_moe import LAYERS, ROUNDINGS, STEPS, all_wanted, emulate, rounded, setting, wanted_of
from moelab import bf16
from moelab.bounds import reference
from moelab.check import check
from moelab.rounding import FUSED, Rounding
from moelab.weights import Weights
from moelab.workloads import Inputs, Layer

Fault = Callable[[Weights, Layer, Inputs], tuple[Weights, Inputs]]


def dropped_slot(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    """The last slot of one token, the one with the smallest router weight."""
    ids = inputs.topk_ids.copy()
    ids[3, -1] = -1
    return weights, replace(inputs, topk_ids=ids)


def wrong_expert(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    ids = inputs.topk_ids.copy()
    ids[3, -1] = next(e for e in range(layer.num_experts) if e not in ids[3])
    return weights, replace(inputs, topk_ids=ids)


def swapped_gate_and_up(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    axis = 2 if layer.gate_up == "interleaved" else 1
    halves = (layer.intermediate, 2) if axis == 2 else (2, layer.intermediate)
    pairs = weights.w13.reshape(layer.num_experts, *halves, layer.hidden)
    return replace(weights, w13=np.flip(pairs, axis).reshape(weights.w13.shape)), inputs


def other_layout(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    halves = weights.w13.reshape(layer.num_experts, 2, layer.intermediate, layer.hidden)
    return replace(weights, w13=halves.transpose(0, 2, 1, 3).reshape(weights.w13.shape)), inputs


def lost_first_tail(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    x = inputs.x.copy()
    x[:, -1] = 0
    return weights, replace(inputs, x=x)


def lost_second_tail(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    w2 = weights.w2.copy()
    w2[:, :, -1] = 0
    return replace(weights, w2=w2), inputs


def rolled_router(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    """Each slot takes the weight of the one before."""
    return weights, replace(inputs, topk_weights=np.roll(inputs.topk_weights, 1, axis=1))


def coarse_router(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    return weights, replace(inputs, topk_weights=rounded(inputs.topk_weights))


def coarse_weights(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    """Seven significant bits in place of eight."""
    return replace(weights, w13=fewer_bits(weights.w13), w2=fewer_bits(weights.w2)), inputs


def coarse_x(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    return weights, replace(inputs, x=fewer_bits(inputs.x))


def fewer_bits(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    return ((bits + (bits >> 1 & 1)) & 0xFFFE).astype(np.uint16)


def other_tokens(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    return weights, replace(inputs, x=np.roll(inputs.x, 1, axis=0))


def one_wrong_weight(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    """One element of the second matrix of one expert has the wrong sign."""
    w2 = weights.w2.copy()
    expert = inputs.topk_ids[0, 0]
    row = int(np.argmax(w2[expert, :, 5] & 0x7FFF))
    w2[expert, row, 5] ^= 0x8000
    return replace(weights, w2=w2), inputs


def no_first_bias(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    assert weights.w13_bias is not None
    return replace(weights, w13_bias=np.zeros_like(weights.w13_bias)), inputs


def no_second_bias(weights: Weights, layer: Layer, inputs: Inputs) -> tuple[Weights, Inputs]:
    assert weights.w2_bias is not None
    return replace(weights, w2_bias=np.zeros_like(weights.w2_bias)), inputs


FAULTS = (
    dropped_slot,
    wrong_expert,
    swapped_gate_and_up,
    other_layout,
    lost_first_tail,
    lost_second_tail,
    rolled_router,
    other_tokens,
    one_wrong_weight,
)


@pytest.mark.parametrize("rounding", [FUSED, STEPS], ids=["fused", "steps"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", ["gpt-oss-20b/E8/H384/I256", "qwen3-30b-a3b/E9/I256"])
def test_a_fault_exceeds_the_bound(name: str, fault: Fault, rounding: Rounding):
    weights, layer, inputs = setting(name, 32)
    bad_weights, bad_inputs = fault(weights, layer, inputs)
    result = check(emulate(bad_weights, layer, bad_inputs, rounding), wanted_of(name, rounding))
    assert not result.ok
    assert result.max_err_over_bound > 1, result


@pytest.mark.parametrize("rounding", [FUSED, STEPS], ids=["fused", "steps"])
@pytest.mark.parametrize("fault", [no_first_bias, no_second_bias], ids=lambda fault: fault.__name__)
def test_a_missing_bias_exceeds_the_bound(fault: Fault, rounding: Rounding):
    name = "gpt-oss-20b/E8/H384/I256"
    weights, layer, inputs = setting(name, 32)
    bad_weights, bad_inputs = fault(weights, layer, inputs)
    assert check(emulate(bad_weights, layer, bad_inputs, rounding), wanted_of(name, rounding)).max_err_over_bound > 1


@pytest.mark.parametrize("fault", [coarse_router, coarse_weights, coarse_x], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", LAYERS[1:4])
def test_inputs_of_lower_precision_are_found(name: str, fault: Fault):
    """As small as one rounding more: the spread tells, if not a single element."""
    weights, layer, inputs = setting(name, 48)
    bad_weights, bad_inputs = fault(weights, layer, inputs)
    result = check(emulate(bad_weights, layer, bad_inputs, FUSED), all_wanted(name, 48)["fused"])
    assert not result.ok, result


@pytest.mark.parametrize("change", [{"activation": "silu"}, {"activation": "gelu"}])
def test_another_activation_exceeds_the_bound(change: dict[str, str]):
    name = "gpt-oss-20b/E8/H384/I256"
    weights, layer, inputs = setting(name, 32)
    other = replace(layer, **change)  # type: ignore[arg-type]
    assert check(emulate(weights, other, inputs, FUSED), wanted_of(name, FUSED)).max_err_over_bound > 1


@pytest.mark.parametrize("label", ["steps", "weighted expert", "bias afterwards", "bf16 sum"])
def test_more_rounding_than_declared_is_found(label: str):
    for name in LAYERS[1:4]:
        weights, layer, inputs = setting(name, 32)
        result = check(emulate(weights, layer, inputs, ROUNDINGS[label]), wanted_of(name, FUSED))
        assert not result.ok, (name, result)


def test_an_accumulator_in_bf16_exceeds_the_bound():
    name = "qwen3-30b-a3b/E9/I256"
    weights, layer, inputs = setting(name, 32)
    first, second = (replace(weights, w13=w13) for w13 in halves_of(weights.w13))
    total = np.zeros(inputs.x.shape, np.float32)
    for part in (first, second):  # the first product in two halves of k, each rounded: the least there can be
        total += bf16.to_float32(emulate(part, layer, inputs, FUSED))  # type: ignore[arg-type]
    assert check(bf16.to_bits(total), wanted_of(name, FUSED)).max_err_over_bound > 1


def halves_of(w13: npt.NDArray[np.uint16]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    left, right = w13.copy(), w13.copy()
    middle = w13.shape[2] // 2
    left[:, :, middle:], right[:, :, :middle] = 0, 0
    return left, right


def test_one_wrong_output_is_found_and_named():
    wanted = wanted_of("tiny", FUSED)
    out = bf16.to_bits(wanted.output)
    out[20, 100] = out[20, 101]
    result = check(out, wanted)
    assert not result.ok
    assert result.worst_index == (20, 100)
    assert "output[20, 100]" in result.reason
    assert "1 of 4096 outputs" in result.reason


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_output_that_is_not_finite_is_found(value: float):
    wanted = wanted_of("tiny", FUSED)
    out = bf16.to_bits(wanted.output)
    out[7, 7] = bf16.to_bits(value)
    assert check(out, wanted).worst_index == (7, 7)
    assert not check(out, wanted).ok


def test_an_output_of_another_shape_is_an_error():
    with pytest.raises(ValueError, match=r"\[32, 127\], must be \[32, 128\]"):
        check(np.zeros((32, 127), np.uint16), wanted_of("tiny", FUSED))


def test_all_slots_skipped_must_give_zeros():
    weights, layer, inputs = setting("tiny", 32)
    nothing = replace(inputs, topk_ids=np.full_like(inputs.topk_ids, -1))
    wanted = reference(weights, layer, nothing, FUSED)
    out = np.zeros(inputs.x.shape, np.uint16)
    assert check(out, wanted).ok
    out[0, 0] = bf16.to_bits(1e-30)
    assert not check(out, wanted).ok


def test_an_output_beyond_bf16_may_be_infinite():
    wanted = wanted_of("tiny", FUSED)
    huge = replace(wanted, output=wanted.output.copy(), bound=wanted.bound.copy())
    huge.output[0, :2], huge.bound[0, :2] = (3.5e38, -3.3895e38), (2e36, 2e36)
    out = bf16.to_bits(huge.output)
    out[0, :2] = bf16.to_bits([np.inf, -np.inf])
    assert check(out, huge).ok
    out[0, 0] = bf16.to_bits(-np.inf)
    assert not check(out, huge).ok
