"""What any fused MoE should do, as statements that hold or do not: run it on any backend with --backend NAME."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moelab import bf16
from property_driver import Driver, Problem, assert_same_bits, bits, floats, make_problem

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swigluoai")
ODD = (1, 7, 31, 33, 127, 176)

# derandomize: the same examples in every run, so that a failure in CI can be repeated; the deadline is the machine's.
search = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    experts = draw(st.integers(1, 9))
    problem = make_problem(
        experts=experts,
        hidden=draw(st.integers(1, 100)),
        intermediate=draw(st.integers(1, 100)),
        tokens=draw(st.integers(1, 30)),
        topk=draw(st.integers(1, min(experts, 4))),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        bias=draw(st.booleans()),
        gate_up=draw(st.sampled_from(("split", "interleaved"))),
        seed=draw(st.integers(0, 1000)),
    )
    # No repeated experts here: their errors are equal, and the statistical part of the check takes them as independent.
    weights = problem.inputs.topk_weights.copy()
    weights[:: draw(st.integers(1, 5))] *= draw(st.sampled_from([1.0, 0.0, -3.0]))
    return problem.with_inputs(topk_weights=weights)


@search
@given(problem=problems(), threads=st.integers(1, 4))
def test_any_layer_is_right(driver: Driver, problem: Problem, threads: int) -> None:
    driver.check(problem, threads=threads)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gate_up", ["split", "interleaved"])
def test_aligned_layers_are_right(driver: Driver, activation: str, bias: bool, gate_up: str) -> None:
    driver.check(
        make_problem(hidden=128, intermediate=128, tokens=40, activation=activation, bias=bias, gate_up=gate_up)
    )


@pytest.mark.parametrize("size", ODD)
def test_odd_hidden_sizes(driver: Driver, size: int) -> None:
    driver.check(make_problem(hidden=size))


@pytest.mark.parametrize("size", ODD)
def test_odd_intermediate_sizes(driver: Driver, size: int) -> None:
    driver.check(make_problem(intermediate=size, activation="swigluoai", bias=True, gate_up="interleaved"))


def test_no_tokens(driver: Driver) -> None:
    assert driver.output(make_problem(tokens=0)).shape == (0, 64)


@pytest.mark.parametrize("expert", [0, 3])
def test_all_tokens_to_one_expert(driver: Driver, expert: int) -> None:
    problem = make_problem(topk=1, tokens=33)
    driver.check(problem.with_inputs(topk_ids=np.full((33, 1), expert, np.int32)))


def test_same_expert_twice_counts_twice(driver: Driver) -> None:
    problem = make_problem(tokens=7, topk=2)
    ids = problem.inputs.topk_ids.copy()
    ids[::2, 1] = ids[::2, 0]
    driver.check(problem.with_inputs(topk_ids=ids))


def test_id_minus_one_skips_the_slot(driver: Driver) -> None:
    problem = make_problem(tokens=8)
    ids = problem.inputs.topk_ids.copy()
    ids[::2, 1] = -1
    driver.check(problem.with_inputs(topk_ids=ids))
    ids[3] = -1
    changed = problem.with_inputs(topk_ids=ids)
    assert not floats(driver.output(changed))[3].any(), "a token without experts is not zero"


@pytest.mark.parametrize("bad", [4, 1000, -2])
def test_ids_out_of_range_are_refused(driver: Driver, bad: int) -> None:
    problem = make_problem(tokens=5)
    ids = problem.inputs.topk_ids.copy()
    ids[2, 1] = bad
    with pytest.raises((ValueError, IndexError, RuntimeError), match=str(bad)):
        driver.output(problem.with_inputs(topk_ids=ids))


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e30, 1e-30])
def test_router_weights_of_any_size(driver: Driver, scale: float) -> None:
    problem = make_problem()
    driver.check(problem.with_inputs(topk_weights=np.float32(scale) * problem.inputs.topk_weights))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e4])
def test_activations_saturate_as_defined(driver: Driver, activation: str, scale: float) -> None:
    # Gates far below and above zero: clamps, tails and overflow of the exponential.
    problem = make_problem(activation=activation, tokens=6)
    x = bf16.to_bits(bf16.to_float32(problem.inputs.x) * scale)
    driver.check(problem.with_inputs(x=x))


@pytest.mark.parametrize("value", [0x7FC0, 0x7F80, 0xFF80], ids=["nan", "inf", "minus_inf"])
def test_nan_and_infinity_stay_in_their_row(driver: Driver, value: int) -> None:
    problem = make_problem(tokens=12)
    x = problem.inputs.x.copy()
    x[5, 17] = value
    clean, poisoned = driver.outputs(problem, problem.with_inputs(x=x))
    others = np.arange(12) != 5
    assert_same_bits(clean[others], poisoned[others], "rows beside the poisoned one")
    assert not np.isfinite(floats(poisoned)[5]).any(), "the poisoned row has finite outputs"


def test_inputs_stay_as_they_are(driver: Driver) -> None:
    assert driver.changed(make_problem(bias=True, tokens=20)) == []


def test_run_to_run_the_same_bits(driver: Driver) -> None:
    first, *others = driver.outputs(make_problem(tokens=33), repeat=10)
    for other in others:
        assert_same_bits(first, other, "the same call again")


@pytest.mark.parametrize(("hidden", "intermediate"), [(64, 96), (320, 96), (1024, 512)])
def test_a_token_has_the_same_bits_in_any_batch(driver: Driver, hidden: int, intermediate: int) -> None:
    problem = make_problem(hidden=hidden, tokens=40, intermediate=intermediate)
    parts = [[t] for t in range(0, 40, 7)] + [list(range(n)) for n in (2, 3, 5, 8, 13, 21, 34)]
    whole, *found = driver.outputs(problem, *(problem.rows(part) for part in parts))
    for part, out in zip(parts, found, strict=True):
        assert_same_bits(out, whole[part], f"{len(part)} tokens alone and in a batch of 40")


def test_a_token_has_the_same_bits_at_any_position(driver: Driver) -> None:
    problem = make_problem(tokens=40)
    order = np.random.default_rng(1).permutation(40)
    whole, shuffled = driver.outputs(problem, problem.rows(order))
    assert_same_bits(shuffled, whole[order], "shuffled tokens")


def test_any_number_of_threads_gives_the_same_bits(driver: Driver) -> None:
    problem = make_problem(tokens=40, hidden=96)
    one = driver.output(problem, threads=1)
    for threads in (2, 3, 5, 8):
        assert_same_bits(driver.output(problem, threads=threads), one, f"{threads} threads")


@search
@given(problem=problems(), data=st.data())
def test_any_layer_is_batch_invariant(driver: Driver, problem: Problem, data: st.DataObject) -> None:
    tokens = len(problem.inputs.x)
    rows = data.draw(st.lists(st.integers(0, tokens - 1), min_size=1, max_size=tokens), label="rows")
    whole, part = driver.outputs(problem, problem.rows(rows))
    assert np.array_equal(bits(part), bits(whole)[rows])
