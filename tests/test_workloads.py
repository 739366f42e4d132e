"""Workloads: names, sizes, and that the same seed gives the same bits everywhere."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from moelab import bf16, routing
from moelab.weights import Weights, make_weights, materialise, open_weights
from moelab.workloads import LAYERS, Case, Inputs, Layer, bytes_needed, layer_by_name, make_inputs

TINY = LAYERS["tiny"]

WEIGHTS, X, IDS = "b53e92d5eb24dfff", "2d01f2576b21fd66", "fc2716cd56165721"
ROUTER = [0.6149774789810181, 0.38502249121665955]


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()[:16]


def test_the_table_has_the_published_shapes():
    shapes = {n: (e.num_experts, e.topk, e.hidden, e.intermediate, e.activation) for n, e in LAYERS.items()}
    assert shapes["gpt-oss-20b"] == (32, 4, 2880, 2880, "swigluoai")
    assert shapes["gpt-oss-120b"] == (128, 4, 2880, 2880, "swigluoai")
    assert shapes["gemma-4-26b-a4b"] == (128, 8, 2816, 704, "gelu_tanh")
    assert shapes["qwen3-30b-a3b"] == (128, 8, 2048, 768, "silu")
    assert shapes["mixtral-8x7b"] == (8, 2, 4096, 14336, "silu")
    assert shapes["deepseek-v2-lite"] == (64, 6, 2048, 1408, "silu")
    assert {n for n, e in LAYERS.items() if e.bias} == {"gpt-oss-20b", "gpt-oss-120b"}
    assert {n for n, e in LAYERS.items() if e.gate_up == "interleaved"} == {"gpt-oss-20b", "gpt-oss-120b"}


def test_a_reduced_layer_says_so_in_its_name():
    layer = layer_by_name("mixtral-8x7b/E4/I1792")
    assert (layer.name, layer.num_experts, layer.intermediate) == ("mixtral-8x7b/E4/I1792", 4, 1792)
    assert (layer.hidden, layer.topk, layer.activation) == (4096, 2, "silu")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mixtral", "unknown"),
        ("mixtral-8x7b/E9", "does not reduce"),
        ("mixtral-8x7b/E8", "does not reduce"),
        ("mixtral-8x7b/E0", "no reduction"),
        ("mixtral-8x7b/K1", "no reduction"),
        ("mixtral-8x7b/E4/E2", "no reduction"),
        ("mixtral-8x7b/E1", "topk 2 exceeds"),
        ("", "unknown"),
    ],
)
def test_a_wrong_name_is_an_error_that_says_why(name: str, says: str):
    with pytest.raises(ValueError, match=says):
        layer_by_name(name)


def test_bytes_needed_counts_every_copy():
    weights = make_weights(layer_by_name("gpt-oss-20b/E4/H64/I32"))
    held = [weights.w13, weights.w2, weights.w13_bias, weights.w2_bias]
    total = sum(a.nbytes for a in held if a is not None)
    layer = layer_by_name("gpt-oss-20b/E4/H64/I32")
    assert layer.weight_bytes == total
    assert bytes_needed(layer) == 2 * total
    assert bytes_needed(layer, packed_copies=8) == 9 * total


def test_case_ids_are_stable_and_tell_cases_apart():
    layer = LAYERS["gpt-oss-20b"]
    assert Case(layer, 16, "uniform", 2).id == "gpt-oss-20b/t16/uniform/2T"
    assert Case(layer, 16, "uniform", 2, seed=7).id == "gpt-oss-20b/t16/uniform/2T/s7"
    assert Case(layer, 16, "trace:some/where/gpt.npz", 2).id == "gpt-oss-20b/t16/trace:gpt/2T"
    assert Case(layer_by_name("mixtral-8x7b/E4"), 1).id == "mixtral-8x7b/E4/t1/uniform/1T"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tokens": -1}, "tokens is -1"),
        ({"tokens": 1, "threads": 0}, "threads is 0"),
        ({"tokens": 1, "routing": "zipf"}, "routing 'zipf' is unknown"),
        ({"tokens": 1, "routing": "trace:"}, "unknown"),
    ],
)
def test_a_wrong_case_is_an_error(arguments: dict[str, object], says: str):
    with pytest.raises(ValueError, match=says):
        Case(TINY, **arguments)  # type: ignore[arg-type]


# ---- the same bits everywhere ----------------------------------------------------------------------------


def test_weights_and_inputs_have_the_recorded_bits():
    """Recorded once: results name a seed, and it must mean the same numbers on other machines and in other years."""
    weights = make_weights(layer_by_name("gpt-oss-20b/E4/H64/I32"), seed=3)
    assert weights.w13_bias is not None
    assert weights.w2_bias is not None
    inputs = make_inputs(Case(TINY, 5, "skewed", seed=3), index=2)
    assert digest(weights.w13, weights.w2, weights.w13_bias, weights.w2_bias) == WEIGHTS
    assert digest(inputs.x) == X
    assert digest(inputs.topk_ids) == IDS
    np.testing.assert_allclose(inputs.topk_weights[0], ROUTER, rtol=1e-6)  # exp may differ in its last bit


def test_materialised_weights_are_those_in_memory_and_shared(tmp_path: Path):
    layer = layer_by_name("gpt-oss-20b/E4/H64/I32")
    path = materialise(layer, 5, tmp_path)
    written = path.stat().st_mtime_ns
    assert materialise(layer, 5, tmp_path) == path
    assert path.stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [path]
    mapped, made = open_weights(path), make_weights(layer, 5)
    for name in ("w13", "w2", "w13_bias", "w2_bias"):
        np.testing.assert_array_equal(getattr(mapped, name), getattr(made, name))
    assert mapped.digest == made.digest
    mapped.w13[0, 0, 0] ^= 1  # whoever writes to the mapping writes to a page of its own
    np.testing.assert_array_equal(open_weights(path).w13, made.w13)


def test_another_seed_or_layer_is_another_file(tmp_path: Path):
    names = ("tiny", "tiny/E4", "tiny/I32")
    paths = {materialise(layer_by_name(name), seed, tmp_path) for name in names for seed in (0, 1)}
    assert len(paths) == 6


def test_a_file_that_is_no_weights_file_is_refused(tmp_path: Path):
    other = tmp_path / "other"
    other.write_bytes(b"\0" * 5000)
    with pytest.raises(ValueError, match="not a weights file"):
        open_weights(other)


def test_no_room_is_an_error_that_names_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match=r"no room for the \d+ bytes of tiny"):
        materialise(TINY, 0, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_digest_sees_every_bit():
    weights = make_weights(TINY)
    changed = weights.w2.copy()
    changed[-1, -1, -1] ^= 1
    assert Weights(weights.w13, changed, None, None).digest != weights.digest
    assert Weights(weights.w13.copy(), weights.w2, None, None).digest == weights.digest


# ---- weights and inputs ----------------------------------------------------------------------------------


def test_weights_are_normal_with_variance_one_over_depth():
    layer = layer_by_name("qwen3-30b-a3b/E8/H512/I384")
    weights = make_weights(layer)
    for bits, depth in ((weights.w13, layer.hidden), (weights.w2, layer.intermediate)):
        values = bf16.to_float64(bits)
        spread = values.std() * depth**0.5
        assert abs(spread - 1) < 0.01
        assert abs(values.mean()) < 0.01 * values.std()
        assert np.isfinite(values).all()


def test_biases_are_bf16_numbers():
    weights = make_weights(layer_by_name("gpt-oss-20b/E4/H64/I32"))
    for bias in (weights.w13_bias, weights.w2_bias):
        assert bias is not None
        np.testing.assert_array_equal(bf16.to_float32(bf16.to_bits(bias)), bias)


def test_input_sets_of_a_pool_differ_and_threads_do_not_matter():
    sets = [make_inputs(Case(TINY, 16), index) for index in range(4)]
    assert len({digest(one.x) for one in sets}) == 4
    assert len({digest(one.topk_ids) for one in sets}) == 4
    assert digest(make_inputs(Case(TINY, 16, threads=8), 1).x) == digest(sets[1].x)


def test_no_tokens_give_empty_inputs():
    for kind in routing.KINDS:
        inputs = make_inputs(Case(TINY, 0, kind))
        assert inputs.x.shape == (0, 128)
        assert inputs.topk_ids.shape == inputs.topk_weights.shape == (0, 2)


# ---- routing ---------------------------------------------------------------------------------------------


def routed(kind: str, tokens: int = 4096, experts: int = 64, topk: int = 6, index: int = 0) -> Inputs:
    layer = Layer("made-up", experts, topk, 2, 2, "silu")
    return make_inputs(Case(layer, tokens, kind), index)


@pytest.mark.parametrize("kind", routing.KINDS)
def test_a_tokens_experts_are_distinct_and_its_weights_sum_to_one(kind: str):
    inputs = routed(kind)
    ids = np.sort(inputs.topk_ids, axis=1)
    assert (np.diff(ids, axis=1) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < 64
    np.testing.assert_allclose(inputs.topk_weights.sum(axis=1), 1, rtol=1e-6)
    assert (np.diff(inputs.topk_weights, axis=1) <= 0).all()
    assert (inputs.topk_weights > 0).all()


def test_uniform_routing_uses_every_expert_alike():
    counts = np.bincount(routed("uniform").topk_ids.ravel(), minlength=64)
    mean = counts.mean()
    assert abs(counts - mean).max() < 5 * mean**0.5


def test_skewed_routing_has_the_same_hot_experts_in_every_input_set():
    first, second = (np.bincount(routed("skewed", index=i).topk_ids.ravel(), minlength=64) for i in (0, 1))
    assert first.max() > 4 * first.mean()
    assert first.min() < first.mean() / 4
    assert np.argmax(first) == np.argmax(second)
    assert np.corrcoef(first, second)[0, 1] > 0.99


def test_one_hot_routing_sends_all_tokens_to_the_same_experts():
    inputs = routed("one-hot")
    assert (inputs.topk_ids == inputs.topk_ids[0]).all()
    assert len(np.unique(inputs.topk_weights[:, 0])) > 1000
    assert (routed("one-hot", index=1).topk_ids[0] != inputs.topk_ids[0]).any()


def a_trace(tokens: int = 10, experts: int = 8) -> routing.Trace:
    ids = np.stack((np.arange(tokens) % experts, (np.arange(tokens) + 1) % experts), axis=1).astype(np.int32)
    weights = np.linspace(0.1, 0.9, 2 * tokens, dtype=np.float32).reshape(tokens, 2)
    return routing.Trace(ids, weights, "a-model", 3, "made up")


def test_a_trace_is_replayed_row_by_row(tmp_path: Path):
    path, trace = tmp_path / "trace.npz", a_trace()
    routing.save_trace(path, trace)
    assert routing.load_trace(path).source == "made up"
    case = Case(TINY, 4, f"trace:{path}")
    for index, rows in ((0, [0, 1, 2, 3]), (2, [8, 9, 0, 1])):
        inputs = make_inputs(case, index)
        np.testing.assert_array_equal(inputs.topk_ids, trace.topk_ids[rows])
        np.testing.assert_array_equal(inputs.topk_weights, trace.topk_weights[rows])


def test_a_trace_that_does_not_fit_the_layer_is_refused(tmp_path: Path):
    path = tmp_path / "trace.npz"
    routing.save_trace(path, a_trace(tokens=20, experts=16))
    with pytest.raises(ValueError, match=r"expert ids 0\.\.15, the layer has 8"):
        make_inputs(Case(TINY, 4, f"trace:{path}"))
    with pytest.raises(ValueError, match="2 experts per token, the layer has 4"):
        make_inputs(Case(layer_by_name("gpt-oss-20b/H64/I32"), 4, f"trace:{path}"))


def test_a_damaged_trace_is_refused(tmp_path: Path):
    path = tmp_path / "trace.npz"
    np.savez(path, topk_ids=np.zeros((2, 2), np.int32))
    with pytest.raises(ValueError, match="layer, model, source, topk_weights missing"):
        routing.load_trace(path)
    good = a_trace()
    with pytest.raises(ValueError, match="int64"):
        routing.Trace(good.topk_ids.astype(np.int64), good.topk_weights, "m", 0, "s")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="float64"):
        routing.Trace(good.topk_ids, good.topk_weights.astype(np.float64), "m", 0, "s")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no token"):
        routing.Trace(good.topk_ids[:0], good.topk_weights[:0], "m", 0, "s")


# ---- BF16 ------------------------------------------------------------------------------------------------


def test_rounding_to_bf16_agrees_with_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    raw[:70_000] &= 0xFFFF8000  # exact numbers and ties
    values = raw.view(np.float32)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(bf16.to_bits(values), expected)


def test_fp64_is_rounded_once():
    """Just above a tie between two BF16 numbers: by way of fp32 it would land on the tie and go to the even one."""
    tie = 1 + 2.0**-8
    values = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, -tie - 2.0**-40, tie + 2.0**-7, tie + 2.0**-7 - 2.0**-40])
    expected = np.array([1.0, 1 + 2.0**-7, 1.0, -1 - 2.0**-7, 1 + 2.0**-6, 1 + 2.0**-7])
    np.testing.assert_array_equal(bf16.round_float(values), expected)


def test_special_values_survive_rounding():
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, 3.39e38, 1e300, 2.0**-133, 2.0**-135, 1e-300])
    got = bf16.round_float(values)
    assert np.isnan(got[0])
    np.testing.assert_array_equal(got[1:3], [np.inf, -np.inf])
    np.testing.assert_array_equal(np.signbit(got[3:5]), [False, True])
    np.testing.assert_array_equal(got[5:8], [np.inf, 255 * 2.0**120, np.inf])
    np.testing.assert_array_equal(got[8:], [2.0**-133, 0, 0])


def test_ulp_is_the_distance_to_the_next_bf16():
    bits = np.arange(0, 0x7F7F, dtype=np.uint16)  # all finite numbers but the largest
    steps = bf16.to_float64((bits + 1).astype(np.uint16)) - bf16.to_float64(bits)
    np.testing.assert_array_equal(bf16.ulp(bf16.to_float64(bits)), steps)
