"""`pytest harness/benchmarks -p moelab.plugin`: what `nox -s bench` runs."""

from __future__ import annotations

from moelab.suite import test_fused_moe

__all__ = ["test_fused_moe"]
