"""The error bound fits: honest implementations pass and use a good part of it, and its model predicts their errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulated_moe import LAYERS, STEPS, all_wanted, cut, emulate, rounded, setting
from moelab import bf16
from moelab.activations import ACTIVATIONS
from moelab.bounds import reference, references
from moelab.check import check
from moelab.error_model import SPREAD, Approximate, accumulation
from moelab.rounding import FUSED, Rounding
from moelab.weights import make_weights
from moelab.workloads import Case, layer_by_name, make_inputs

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


def test_rounding_to_zero_has_four_times_the_square_of_rounding_to_nearest():
    values = np.random.default_rng(0).standard_normal(200_000)
    zero = np.zeros_like(values)
    model = Approximate(values, zero, zero, zero).rounded(to_zero=True)
    error = cut(values) - values.astype(np.float32)
    assert (np.abs(error) <= model.worst).all()
    assert np.mean(error**2 / model.variance) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("name", LAYERS)
def test_cutting_off_passes_for_no_rounding_to_nearest(name: str):
    weights, layer, inputs = setting(name, 48)
    cutting = emulate(weights, layer, inputs, Rounding(to="zero"))
    assert not check(cutting, all_wanted(name, 48)["fused"]).ok
    # What rounds better than it says passes: the limits are upper ones.
    assert check(emulate(weights, layer, inputs, FUSED), all_wanted(name, 48)["to zero"]).ok


@pytest.mark.parametrize(
    "more", [{"gemm1": True}, {"expert": "weighted"}, {"activation": "steps"}, {"combine": "bf16"}]
)
def test_rounding_to_zero_more_often_than_is_modelled_is_refused(more: dict[str, Any]):
    with pytest.raises(ValueError, match="to: 'zero' goes with no rounding points but activation and output"):
        Rounding(to="zero", **more)


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
