"""The error bound is neither loose nor tight: honest implementations pass, small faults of every kind do not.

`emulate` is an implementation in numpy with the rounding points it is asked for. It accumulates in fp32 as BLAS does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pytest

from moelab import bf16
from moelab.activations import ACTIVATIONS
from moelab.bounds import Reference, reference, references
from moelab.check import check
from moelab.error_model import SPREAD, Approximate, accumulation
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
    return bf16.to_bits(out) if rounding.output else out


def with_bias(result: Float32, bias: Float32 | None, expert: int, rounding: Rounding) -> Float32:
    if bias is None:
        return result
    return rounded(rounded(result) + bias[expert]) if rounding.bias == "bf16" else result + bias[expert]


def activated(name: str, gate: Float32, up: Float32, rounding: Rounding) -> Float32:
    step = rounded if rounding.activation == "steps" else np.float32
    if name == "swigluoai":
        gate, up = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7))
        sigmoid = step(1 / (1 + np.exp(-step(np.float32(1.702) * gate))))
        return rounded(step(up + 1) * step(gate * sigmoid))
    table = name == "gelu_tanh" and rounding.gelu_tanh == "fp16-table"
    if table:
        gate = through_fp16(gate)
    value = ACTIVATIONS[name].value(gate.astype(np.float64)).astype(np.float32)
    return rounded(step(through_fp16(value) if table else value) * up)


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


# ---- honest implementations pass -------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
def test_every_set_of_rounding_points_passes_its_own_check(name: str):
    for tokens in (1, 48):
        weights, layer, inputs = setting(name, tokens)
        for label, wanted in all_wanted(name, tokens).items():
            result = check(emulate(weights, layer, inputs, wanted.rounding), wanted)
            assert result.ok, (name, tokens, label, result.reason)


@pytest.mark.parametrize("label", ["fused", "steps", "weighted expert", "fp32 output", "gelu table"])
def test_the_model_predicts_spread_and_flips(label: str):
    """Not only an upper bound: what it says about size and frequency of errors is what is seen."""
    for name in LAYERS[:4]:
        weights, layer, inputs = setting(name, 48)
        wanted = all_wanted(name, 48)[label]
        result = check(emulate(weights, layer, inputs, wanted.rounding), wanted)
        assert 0.9 < result.spread < 1.06, (name, result)
        assert result.flips == pytest.approx(result.flips_predicted, rel=0.15, abs=0.01), (name, result)


def test_the_bound_is_a_few_times_the_largest_error():
    """Sharp enough to be worth having: an honest output uses a good part of it, at every depth."""
    for name in LAYERS[:4]:
        weights, layer, inputs = setting(name, 48)
        for label in ("fused", "steps"):
            wanted = all_wanted(name, 48)[label]
            ratio = check(emulate(weights, layer, inputs, wanted.rounding), wanted).max_err_over_bound
            assert 1 / 3 < ratio <= 1, (name, label, ratio)


def test_the_correctly_rounded_output_passes_every_check():
    for wanted in all_wanted("tiny", 48).values():
        result = check(bf16.to_bits(wanted.output), replace(wanted, rounding=replace(wanted.rounding, output=True)))
        assert result.ok
        assert result.flips == 0


def test_roundings_computed_together_or_alone_are_the_same():
    weights, layer, inputs = setting("gpt-oss-20b/E4/H33/I7", 48)
    together = references(weights, layer, inputs, (FUSED, STEPS))
    for one in together:
        alone = reference(weights, layer, inputs, one.rounding)
        np.testing.assert_array_equal(alone.bound, one.bound)
        np.testing.assert_array_equal(alone.variance, one.variance)


def test_flushed_denormals_are_allowed():
    """An instruction may take a denormal for zero: here whole rows of products vanish."""
    layer = layer_by_name("tiny")
    weights, inputs = make_weights(layer), make_inputs(Case(layer, 8))
    tiny_x = bf16.to_bits(bf16.to_float64(inputs.x) * 2.0**-127)
    inputs = replace(inputs, x=tiny_x)
    wanted = reference(weights, layer, inputs, FUSED)
    assert np.abs(wanted.output).max() > 0
    flushed = np.where((tiny_x & 0x7F80) == 0, 0, tiny_x).astype(np.uint16)
    assert check(emulate(weights, layer, replace(inputs, x=flushed), FUSED), wanted).ok
    assert check(np.zeros_like(tiny_x), wanted).ok


# ---- faults do not ---------------------------------------------------------------------------------------

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
    shift = 1 if layer.gate_up == "interleaved" else layer.intermediate
    w13 = (
        np.roll(weights.w13, shift, axis=1)
        if shift > 1
        else weights.w13.reshape(layer.num_experts, layer.intermediate, 2, layer.hidden)[:, :, ::-1].reshape(
            weights.w13.shape
        )
    )
    return replace(weights, w13=w13), inputs


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


# ---- the model's own parts -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_slopes_and_curvatures_are_those_of_the_functions(name: str):
    function = ACTIVATIONS[name]
    step = 1e-4
    gates = np.arange(-30, min(function.gate_limit, 30) - 2 * step, 1e-3)
    before, here, after = (function.value(gates + shift) for shift in (-step, 0.0, step))
    np.testing.assert_allclose(function.slope(gates), (after - before) / (2 * step), atol=1e-7)
    curvature = np.abs(after - 2 * here + before).max() / step**2
    assert 0.98 * function.curvature < curvature < 1.001 * function.curvature


def test_accumulation_bound_is_the_published_one_and_covers_fp32_chains():
    bound, variance = accumulation(2880, np.array(3.0))
    assert bound == pytest.approx((2880 / 2 + 1) * 2.0**-23 * 3.0)
    assert SPREAD * variance**0.5 < bound
    rng = np.random.default_rng(0)
    for depth in (1, 2, 7, 64, 1000):
        a, b = (rounded(rng.standard_normal((200, depth))) for _ in range(2))
        chain = np.zeros(200, np.float32)
        for k in range(depth):
            chain = chain + a[:, k] * b[:, k]
        error = np.abs(chain - np.einsum("ik,ik->i", a.astype(np.float64), b.astype(np.float64)))
        magnitude = np.abs(a.astype(np.float64) * b).sum(axis=1)
        bound, variance = accumulation(depth, magnitude)
        assert (error <= np.minimum(bound, SPREAD * np.sqrt(variance))).all()


def test_rounding_variance_is_that_of_rounding():
    values = np.random.default_rng(0).standard_normal(200_000)
    zero = np.zeros_like(values)
    model = Approximate(values, zero, zero, zero).rounded()
    error = bf16.round_float(values) - values
    assert (np.abs(error) <= model.worst).all()
    assert np.mean(error**2 / model.variance) == pytest.approx(1, abs=0.02)


def test_products_and_functions_carry_random_errors_on():
    """Monte Carlo: the variance that the rules give is the variance that is seen, and `worst` is never exceeded."""
    rng = np.random.default_rng(0)
    count = 200_000
    exact_a, exact_b = np.full(count, 1.3), np.full(count, -0.7)
    half_a, half_b = 0.02, 0.05
    zero = np.zeros(count)
    a = Approximate(exact_a, zero, zero, zero).with_random(zero + half_a, zero + half_a**2 / 3)
    b = Approximate(exact_b, zero, zero, zero).with_random(zero + half_b, zero + half_b**2 / 3)
    seen_a = exact_a + rng.uniform(-half_a, half_a, count)
    seen_b = exact_b + rng.uniform(-half_b, half_b, count)
    function = ACTIVATIONS["silu"]
    through = a.through(function.value(exact_a), function.slope(exact_a), function.curvature)
    for model, seen in ((a.times(b), seen_a * seen_b), (through, function.value(seen_a)), (a.plus(b), seen_a + seen_b)):
        error = seen - model.value
        assert (np.abs(error) <= model.worst).all()
        assert np.var(error) == pytest.approx(model.variance[0], rel=0.02)
        assert abs(error.mean()) <= model.systematic[0] + 4 * (model.variance[0] / count) ** 0.5


def test_few_terms_are_bounded_by_their_worst_case():
    """With two or three roundings in all, eight standard deviations would claim more than they can do together."""
    weights, layer, inputs = setting("gpt-oss-20b/E4/H33/I7", 48)
    wanted = reference(weights, layer, inputs, FUSED)
    half = bf16.ulp(np.abs(wanted.output) + wanted.bound) / 2
    assert (wanted.bound - half <= SPREAD * np.sqrt(wanted.variance) * 1.01).all()
    one = layer_by_name("tiny/H2/I1")
    small = reference(make_weights(one), one, make_inputs(Case(one, 64)), FUSED)
    half = bf16.ulp(np.abs(small.output) + small.bound) / 2
    assert (small.bound - half < 0.7 * SPREAD * np.sqrt(small.variance)).all()
