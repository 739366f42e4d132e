"""The benchmark suite: one test per backend and case. harness/benchmarks/ collects it for pytest."""

from __future__ import annotations

from moelab.measurement import BackendRun


def test_fused_moe(fused_moe: BackendRun) -> None:
    """The timed outputs of this backend in this case were right (a wrong one fails in the fixture)."""
    assert fused_moe.samples_checked >= len(fused_moe.samples) > 0
