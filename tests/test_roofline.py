"""Work of a call and the roof it runs under, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moelab import roofline
from moelab.measurement import BackendRun, Sample, Setting
from moelab.workloads import LAYERS, Layer

COLD = Setting(2, [0, 1], "", "cold", "", False, 100)
WARM = replace(COLD, cache="warm")
LAYER = Layer("hand", num_experts=4, topk=2, hidden=10, intermediate=20, activation="silu")


def test_work_of_a_routing_by_hand() -> None:
    """Experts 0, 2 and 3 have rows, 5 rows in all: w13 is 2*20*10 BF16, w2 10*20 BF16."""
    ids = np.array([[0, 2], [2, 3], [-1, 2]], dtype=np.int32)
    work = roofline.work(LAYER, ids)
    assert work.experts == 3
    assert work.bytes == 3 * (2 * 20 * 10 + 10 * 20) * 2 + 2 * (3 * 10) * 2
    assert work.flops == 5 * 2 * (2 * 20 * 10 + 10 * 20)


def test_biases_count_and_nothing_routed_is_no_weight() -> None:
    layer = replace(LAYER, bias=True)
    one = np.array([[1, 1]], dtype=np.int32)
    assert roofline.work(layer, one).bytes - roofline.work(LAYER, one).bytes == 4 * (2 * 20 + 10)
    none = roofline.work(layer, np.full((2, 2), -1, dtype=np.int32))
    assert (none.experts, none.flops, none.bytes) == (0, 0, 2 * 2 * 10 * 2)


def test_gpt_oss_at_one_token_is_four_experts_of_its_published_size() -> None:
    """3 * 2880 * 2880 weights per expert, 2 bytes each, 4 experts: 199 MB."""
    layer = LAYERS["gpt-oss-20b"]
    work = roofline.work(layer, np.array([[0, 1, 2, 3]], dtype=np.int32))
    assert work.bytes == pytest.approx(199e6, rel=0.01)


def run_of(
    seconds: float,
    *,
    moved: float = 1e9,
    flops: float = 1e9,
    bandwidth: float = 50e9,
    peak: float = 400e9,
    spread: float = 0.0,
) -> BackendRun:
    run = BackendRun("b", "b", "candidate")
    rng = np.random.default_rng(0)
    for i in range(20):
        noise = rng.lognormal(0, spread)
        run.samples.append(Sample(i // 5, i % 5, 0, i, 1, seconds * noise, moved, flops, 4, bandwidth, peak))
    return run


def test_memory_and_compute_bounds() -> None:
    memory = roofline.roof(run_of(0.04), COLD)
    assert memory.limit == "memory"
    assert memory.bound_seconds == pytest.approx(0.02)
    assert memory.fraction == pytest.approx(0.5)
    compute = roofline.roof(run_of(0.04, flops=12e9), COLD)
    assert compute.limit == "compute"
    assert compute.fraction == pytest.approx(0.75)
    assert not memory.broken
    assert not compute.broken


def test_above_the_roof_is_broken() -> None:
    roof = roofline.roof(run_of(0.01), COLD)
    assert roof.broken
    assert roof.reason is not None
    assert "200%" in roof.reason
    assert "20 ms" in roof.reason


def test_just_above_the_roof_or_within_noise_is_not() -> None:
    assert not roofline.roof(run_of(0.0195), COLD).broken
    assert not roofline.roof(run_of(0.019, spread=0.3), COLD).broken


def test_a_bandwidth_that_switches_between_probe_and_sample_is_no_broken_measurement() -> None:
    """Half of the probes met a slow spell that the samples beside them missed."""
    run = run_of(0.021)
    run.samples = [replace(s, probe_read=25e9) if i < 15 else s for i, s in enumerate(run.samples)]
    roof = roofline.roof(run, COLD)
    assert roof.fraction is not None
    assert roof.fraction > 1.5
    assert not roof.broken


def test_warm_weights_that_may_lie_in_the_cache_are_not_counted() -> None:
    half = replace(WARM, last_level_bytes=500_000_000)
    assert roofline.roof(run_of(0.011), half).bound_seconds == pytest.approx(0.01)
    assert not roofline.roof(run_of(0.011), half).broken
    everything = replace(WARM, last_level_bytes=2_000_000_000)
    assert roofline.roof(run_of(0.011), everything).limit == "compute"


def test_without_probes_nothing_is_known() -> None:
    run = run_of(0.01)
    run.samples = [replace(s, probe_read=None, probe_bf16=None) for s in run.samples]
    roof = roofline.roof(run, COLD)
    assert roof.limit == "unknown"
    assert roof.fraction is None
    assert not roof.broken


def test_code_that_may_use_amx_is_not_held_to_the_peak_of_ours() -> None:
    fast = run_of(0.02, flops=40e9)
    assert roofline.roof(fast, COLD).broken
    fast.uses_amx, fast.gemm_peak = None, 3e12
    amx = roofline.roof(fast, COLD)
    assert not amx.broken
    assert amx.peak == pytest.approx(3e12)
    assert "AMX" in amx.peak_source
    fast.probe_isa, fast.gemm_peak = "amx_bf16", 3e12
    assert roofline.roof(fast, COLD).broken, "a probe that has AMX itself is a roof"
    fast.probe_isa = None
    fast.gemm_peak = None
    assert roofline.roof(fast, COLD).limit == "memory"
