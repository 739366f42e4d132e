"""The fp64 oracle against the definition written out word for word, and references kept on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moelab import bf16, reference_cache
from moelab.activations import ACTIVATIONS, sigmoid
from moelab.bounds import reference
from moelab.check import check
from moelab.definition import activation as defined_activation
from moelab.definition import moe
from moelab.oracle import oracle
from moelab.reference_cache import cached_references
from moelab.rounding import FUSED, Rounding
from moelab.weights import Weights, make_weights
from moelab.workloads import LAYERS, Case, Inputs, Layer, layer_by_name, make_inputs

TINY = LAYERS["tiny"]


def small_layer(activation: str, *, bias: bool, gate_up: str) -> Layer:
    return Layer("small", 5, 3, 24, 17, activation, bias=bias, gate_up=gate_up)  # type: ignore[arg-type]


def setting(layer: Layer, tokens: int = 9) -> tuple[Weights, Inputs]:
    return make_weights(layer, 1), make_inputs(Case(layer, tokens, seed=1))


@pytest.mark.parametrize("gate_up", ["split", "interleaved"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_the_oracle_computes_the_definition(activation: str, bias: bool, gate_up: str):
    layer = small_layer(activation, bias=bias, gate_up=gate_up)
    weights, inputs = setting(layer)
    np.testing.assert_allclose(oracle(weights, layer, inputs), moe(weights, layer, inputs), rtol=1e-12, atol=1e-14)


def test_the_reference_holds_the_oracles_output():
    layer = small_layer("swigluoai", bias=True, gate_up="interleaved")
    weights, inputs = setting(layer)
    expected = oracle(weights, layer, inputs)
    np.testing.assert_allclose(reference(weights, layer, inputs, FUSED).output, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activations_at_points_where_they_are_known(name: str):
    """Far out they are 0 or the identity; sigmoid(0) = 1/2 gives the slope at 0; clamps hold."""
    function = ACTIVATIONS[name]
    gates = np.array([-40.0, -1.5, -0.0, 0.0, 0.25, 3.0, 6.99, 40.0])
    ups = np.array([-9.0, -0.5, 1.0, 2.0, 7.5, 3.0, 1.0, 1.0])
    got = function.value(gates) * function.up_factor(ups)
    expected = [defined_activation(name, float(g), float(u)) for g, u in zip(gates, ups, strict=True)]
    np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-17)
    limit = min(40.0, function.gate_limit)
    assert function.value(np.array([40.0]))[0] == pytest.approx(limit, rel=1e-4)
    assert function.slope(np.array([0.0]))[0] == pytest.approx(0.5, rel=1e-12)


def test_sigmoid_keeps_its_relative_accuracy_on_both_sides():
    np.testing.assert_allclose(sigmoid(np.array([-700.0, -30.0])), np.exp([-700.0, -30.0]), rtol=1e-12)
    assert sigmoid(np.array([800.0]))[0] == 1.0
    assert sigmoid(np.array([-800.0]))[0] == 0.0


def test_a_skipped_slot_adds_nothing_and_an_id_given_twice_counts_twice():
    weights, inputs = setting(TINY, tokens=3)
    ids, router = inputs.topk_ids.copy(), inputs.topk_weights
    ids[0], ids[1], ids[2] = (-1, 4), (4, 4), (-1, -1)
    out = oracle(weights, TINY, replace(inputs, topk_ids=ids))
    alone = np.array([[4]] * 3, np.int32)
    expert = oracle(weights, TINY, Inputs(inputs.x, np.ones((3, 1), np.float32), alone))
    np.testing.assert_allclose(out[0], router[0, 1].astype(float) * expert[0], rtol=1e-12)
    np.testing.assert_allclose(out[1], router[1].astype(float).sum() * expert[1], rtol=1e-12)
    np.testing.assert_array_equal(out[2], 0)


def test_a_token_does_not_depend_on_the_others():
    weights, inputs = setting(TINY, tokens=40)
    whole = oracle(weights, TINY, inputs)
    rows = np.array([3, 17, 39])
    part = oracle(weights, TINY, Inputs(inputs.x[rows], inputs.topk_weights[rows], inputs.topk_ids[rows]))
    np.testing.assert_allclose(part, whole[rows], rtol=1e-12, atol=1e-15)


def test_many_rows_of_one_expert_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch):
    layer = small_layer("silu", bias=True, gate_up="split")
    weights, inputs = setting(layer, tokens=23)
    whole = oracle(weights, layer, inputs)
    monkeypatch.setattr("moelab.oracle.ROWS_AT_ONCE", 4)
    np.testing.assert_allclose(oracle(weights, layer, inputs), whole, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(reference(weights, layer, inputs, FUSED).output, whole, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("bad", [8, -2, 2**30])
def test_an_id_outside_the_layer_is_an_error_with_its_place(bad: int):
    weights, inputs = setting(TINY, tokens=3)
    ids = inputs.topk_ids.copy()
    ids[2, 1] = bad
    with pytest.raises(ValueError, match=rf"topk_ids\[2, 1\] is {bad}"):
        oracle(weights, TINY, replace(inputs, topk_ids=ids))


def test_nan_and_infinity_stay_in_their_row():
    weights, inputs = setting(TINY, tokens=4)
    x = inputs.x.copy()
    x[1, 5], x[2, 7] = bf16.to_bits(np.nan), bf16.to_bits(np.inf)
    clean = reference(weights, TINY, inputs, FUSED)
    dirty = reference(weights, TINY, replace(inputs, x=x), FUSED)
    assert not np.isfinite(dirty.output[1:3]).any()
    np.testing.assert_array_equal(dirty.output[[0, 3]], clean.output[[0, 3]])
    np.testing.assert_array_equal(dirty.bound[[0, 3]], clean.bound[[0, 3]])
    out = bf16.to_bits(dirty.output)
    assert check(out, dirty).ok
    out[1, 0] = 0
    assert not check(out, dirty).ok
    assert not check(bf16.to_bits(dirty.output), clean).ok


def test_nan_in_one_experts_weights_reaches_its_tokens_alone():
    weights, inputs = setting(TINY, tokens=16)
    w2 = weights.w2.copy()
    w2[4, 9, 3] = bf16.to_bits(np.nan)
    dirty = reference(replace(weights, w2=w2), TINY, inputs, FUSED)
    touched = (inputs.topk_ids == 4).any(axis=1)
    assert touched.any()
    assert not touched.all()
    np.testing.assert_array_equal(np.isnan(dirty.output), touched[:, None] & (np.arange(128) == 9))
    assert check(bf16.to_bits(dirty.output), dirty).ok


# ---- references on disk ----------------------------------------------------------------------------------

STEPS = Rounding(gemm1=True, activation="steps", expert="unweighted")


def test_a_reference_comes_back_from_disk_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    weights, inputs = setting(TINY)
    made = cached_references(tmp_path, weights, TINY, inputs, (FUSED, STEPS))

    def forbidden(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(reference_cache, "references", forbidden)
    found = cached_references(tmp_path, weights, TINY, inputs, (STEPS, FUSED))
    for before, after in zip(made, reversed(found), strict=True):
        assert after.rounding == before.rounding
        np.testing.assert_array_equal(after.output, before.output)
        np.testing.assert_allclose(after.bound, before.bound, rtol=1e-6)
        np.testing.assert_allclose(after.variance, before.variance, rtol=1e-6)
        assert after.freedom == before.freedom


def test_whatever_changes_the_answer_changes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    weights, inputs = setting(TINY)
    w2, x = weights.w2.copy(), inputs.x.copy()
    w2[0, 0, 0] ^= 1
    x[0, 0] ^= 1
    other_ids = np.roll(inputs.topk_ids, 1, axis=0)
    variants = [
        (weights, TINY, inputs, FUSED),
        (replace(weights, w2=w2), TINY, inputs, FUSED),
        (weights, TINY, replace(inputs, x=x), FUSED),
        (weights, TINY, replace(inputs, topk_ids=other_ids), FUSED),
        (weights, replace(TINY, activation="gelu"), inputs, FUSED),
        (weights, replace(TINY, gate_up="interleaved"), inputs, FUSED),
        (weights, TINY, inputs, STEPS),
    ]
    for weights_, layer, inputs_, rounding in variants:
        cached_references(tmp_path, weights_, layer, inputs_, (rounding,))
    assert len(list(tmp_path.glob("*.npz"))) == len(variants)
    monkeypatch.setattr(reference_cache, "_sources_digest", lambda: "another version of the oracle")
    cached_references(tmp_path, weights, TINY, inputs, (FUSED,))
    assert len(list(tmp_path.glob("*.npz"))) == len(variants) + 1


def test_a_layer_renamed_finds_the_same_reference(tmp_path: Path):
    weights, inputs = setting(TINY)
    for layer in (TINY, replace(TINY, name="another name"), layer_by_name("tiny")):
        cached_references(tmp_path, weights, layer, inputs, (FUSED,))
    assert len(list(tmp_path.iterdir())) == 1
