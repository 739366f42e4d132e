"""Fits and explanations on data whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from moelab import statistics
from moelab.e2e import fit
from moelab.e2e.analysis import amdahl, cell_entries, full_depth
from moelab.e2e.cells import Cell, cells, lengths, token_ids
from moelab.e2e.models import Variant
from moelab.e2e.run import EngineOnVariant, Outcome, Sample, VariantRun
from moelab.statistics import Interval

EXACT = [Interval(m, m, m) for m in (0.5, 0.9)]


def test_a_line_without_noise_is_exact() -> None:
    found = fit.line([2, 4], EXACT, 24)
    assert found.fixed.median == pytest.approx(0.1)
    assert found.per_layer.median == pytest.approx(0.2)
    assert found.at.median == pytest.approx(4.9)
    assert found.at.high - found.at.low == pytest.approx(0)


def test_three_depths_are_fitted_by_least_squares() -> None:
    times = [Interval(m, m, m) for m in (1.0, 2.2, 2.9)]
    found = fit.line([1, 2, 3], times, 10)
    slope, fixed = np.polyfit([1, 2, 3], [1.0, 2.2, 2.9], 1)
    assert found.per_layer.median == pytest.approx(slope)
    assert found.at.median == pytest.approx(fixed + 10 * slope)


def test_the_full_depth_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Fixed 30 ms, 15 ms a layer, 48 layers: 750 ms, from noisy samples of two depths."""
    rng = np.random.default_rng(3)
    held = 0
    for trial in range(200):
        times = []
        for depth in (1, 2):
            seconds = (0.030 + 0.015 * depth) * np.exp(0.03 * rng.standard_normal(12))
            times.append(statistics.interval(list(seconds), [0] * 6 + [1] * 6, seed=trial))
        at = fit.line([1, 2], times, 48).at
        held += at.low <= 0.750 <= at.high
    assert held >= 180  # of a nominal 190


def test_noise_grows_with_the_distance_of_extrapolation() -> None:
    noisy = [Interval(1.0, 0.9, 1.1), Interval(1.5, 1.4, 1.6)]
    near, far = (fit.line([2, 4], noisy, n).at for n in (4, 40))
    assert far.high - far.low > 10 * (near.high - near.low)


def test_a_single_depth_is_no_line() -> None:
    with pytest.raises(ValueError, match="two different ones"):
        fit.line([2, 2], EXACT, 24)


def test_a_quotient_that_noise_has_no_end_for_says_so() -> None:
    ratio = fit.quotient(Interval(2.0, -0.5, 4.0), Interval(1.0, 0.9, 1.1))
    assert ratio is not None
    assert ratio.median == 2.0
    assert ratio.low == 0.0
    assert fit.quotient(Interval(-1.0, -2.0, 0.5), Interval(1.0, 0.9, 1.1)) is None
    exact = fit.quotient(Interval(3.0, 3.0, 3.0), Interval(1.5, 1.5, 1.5))
    assert exact is not None
    assert (exact.low, exact.high) == (2.0, 2.0)


def _samples(seconds: float, inside: float | None, spread: float = 0.01, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    found = []
    for process in range(2):
        for number in range(4):
            factor = math.exp(spread * rng.standard_normal())
            part = None if inside is None else inside * factor
            found.append(Sample(process, number, 0, seconds * factor, None, seconds * factor, part))
    return found


def test_a_gain_of_the_experts_alone_is_explained() -> None:
    """80 % in the experts, which become 4 times as fast: 1 / (0.2 + 0.8 / 4) = 2.5."""
    measured = statistics.paired_ratio([1.0] * 8, [0.4] * 8, [0] * 4 + [1] * 4)
    found = amdahl(
        _samples(1.0, 0.8),
        _samples(0.4, 0.2, seed=1),
        Interval(measured.value, 2.45, 2.55),
        names=("eager", "moelab"),
    )
    assert found is not None
    assert found["predicted"]["median"] == pytest.approx(2.5, rel=0.02)
    assert found["baseline_share"] == pytest.approx(0.8)
    assert found["layer_ratio"] == pytest.approx(4, rel=0.03)
    assert found["rest_ratio"] == pytest.approx(1, rel=0.03)
    assert found["explained"] is True


def test_a_loss_outside_of_the_experts_is_named() -> None:
    """The same experts, but everything else takes twice as long: 1.67 instead of the predicted 2.5."""
    found = amdahl(_samples(1.0, 0.8), _samples(0.6, 0.2, seed=1), Interval(1.667, 1.6, 1.7), names=("eager", "moelab"))
    assert found is not None
    assert found["explained"] is False
    assert "outside the experts moelab takes 100% more time than eager" in found["reason"]


def _outcome(fixed: float, layer: dict[str, float], experts: dict[str, float]) -> Outcome:
    outcome = Outcome()
    for depth in (2, 4):
        facts = {"layers": depth, "full_layers": 48, "layer_kinds": ["a", "b"] * (depth // 2), "full_kinds": ["a", "b"]}
        run = VariantRun(Variant("qwen3-30b-a3b", depth), facts)
        for name, seconds in layer.items():
            whole, inside = fixed + depth * seconds, depth * experts[name]
            run.engines[name] = EngineOnVariant(
                samples={"decode/b1": _samples(whole, None, 0.002)},
                profiles={"decode/b1": _samples(whole, inside, 0.002, seed=1)},
            )
        outcome.runs.append(run)
    return outcome


def test_full_depth_follows_from_both_depths() -> None:
    outcome = _outcome(0.1, {"eager": 0.05, "moelab": 0.02}, {"eager": 0.04, "moelab": 0.01})
    chosen = cells((), (1,), False, 0)
    entries = cell_entries(outcome, chosen, 0)
    assert [e["layers"] for e in entries] == [2, 4]
    (deep,) = full_depth(entries, outcome.runs, chosen)
    assert deep["extrapolated"] is True
    assert deep["engines"]["eager"]["seconds"]["median"] == pytest.approx(0.1 + 48 * 0.05, rel=0.02)
    assert deep["engines"]["moelab"]["fixed"]["median"] == pytest.approx(0.1, rel=0.1)
    (ratio,) = deep["ratios"]
    assert ratio["low"] < 2.5 / 1.06 < ratio["high"]
    assert deep["engines"]["moelab"]["experts_share"] == pytest.approx(0.48 / 1.06, rel=0.05)
    assert deep["note"] is None
    # At two layers the fixed part weighs more, and the ratio is smaller.
    assert entries[0]["ratios"][0]["value"] == pytest.approx(0.2 / 0.14, rel=0.02)
    assert entries[0]["ratios"][0]["amdahl"]["explained"] is True


def test_layers_mixed_otherwise_than_in_the_whole_model_are_noted() -> None:
    outcome = _outcome(0.1, {"eager": 0.05, "moelab": 0.02}, {"eager": 0.04, "moelab": 0.01})
    chosen = cells((), (1,), False, 0)
    for run in outcome.runs:
        run.facts["full_kinds"] = ["a", "a", "a", "b"]
    (deep,) = full_depth(cell_entries(outcome, chosen, 0), outcome.runs, chosen)
    assert deep["note"] == "the layers per which time is fitted are 1 a, 1 b; those of the whole model are 3 a, 1 b"


def test_the_mixed_run_has_the_lengths_that_it_states() -> None:
    prompts, outputs = lengths(500, 1)
    assert min(prompts) >= 16
    assert max(prompts) <= 192
    assert 55 < np.median(prompts) < 75
    assert min(outputs) >= 4
    assert max(outputs) <= 48
    assert lengths(8, 1) == lengths(8, 1) != lengths(8, 2)


def test_tokens_of_a_sample() -> None:
    assert Cell("prefill", (512,), (1,)).tokens == 512
    assert Cell("decode", (32, 32), (6, 6)).tokens == 2
    assert Cell("mixed", (10, 20), (3, 4)).tokens == 37


def test_token_ids_exist_in_the_vocabulary_and_differ_between_rounds() -> None:
    first, second = (token_ids(50, (2, 100), 0, 1, number) for number in (0, 1))
    assert first.min() >= 3
    assert first.max() < 50
    assert (first != second).any()
