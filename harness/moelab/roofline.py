"""The least time that a call can take on this machine at this moment, from its work and from probes beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from moelab import statistics
from moelab.measurement import BackendRun, Sample, Setting
from moelab.workloads import Layer

# How much of the time may be missing to the roof before a fast result is called impossible: the probes are loops of
# ours, and a loop that reads a little faster than they do is no broken measurement.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Work:
    """Least traffic and arithmetic of one call."""

    bytes: int
    flops: int
    experts: int


@dataclass(frozen=True)
class Roof:
    """Summary over the samples of one backend. `fraction` is bound / time: 1 is the roof."""

    limit: Literal["memory", "compute", "unknown"]
    bound_seconds: float | None
    fraction: float | None
    low: float | None
    high: float | None
    bytes: float
    flops: float
    experts: float
    bandwidth: float | None
    peak: float | None
    peak_source: str
    broken: bool
    reason: str | None


def work(layer: Layer, topk_ids: npt.NDArray[np.integer]) -> Work:
    """Bytes and FLOPs of a call with this routing [tokens, topk]; ids of -1 cost nothing.

    Bytes: the weights of each expert that has a token, once, and x and the output, once each. Intermediate values can
    stay in a cache, so they are not counted: this is a lower bound.
    """
    routed = topk_ids[topk_ids >= 0]
    experts = int(np.unique(routed).size)
    per_expert = 6 * layer.intermediate * layer.hidden + layer.bias_bytes_per_expert
    activations = 2 * 2 * len(topk_ids) * layer.hidden
    flops = 6 * layer.intermediate * layer.hidden * int(routed.size)
    return Work(bytes=experts * per_expert + activations, flops=flops, experts=experts)


def resident_bytes(setting: Setting) -> int:
    """Bytes that may still lie in the last-level cache when a call begins: none when weights were evicted."""
    return setting.last_level_bytes if setting.cache == "warm" else 0


def roof(run: BackendRun, setting: Setting) -> Roof:
    """Bound, fraction of it reached, and whether the result is impossible.

    Impossible (`broken`) is a result whose interval lies above the roof by more than the tolerance, and that also
    beats the best probes seen anywhere in the case: a bandwidth that changed between probe and sample is no fault.
    """
    samples = run.samples
    peaks, source = _peaks(run)
    bounds = [_bound(s, s.probe_read, peak, setting) for s, peak in zip(samples, peaks, strict=True)]
    middle = {name: float(np.median([getattr(s, name) for s in samples])) for name in ("bytes", "flops", "experts")}
    bandwidth = _median([s.probe_read for s in samples])
    peak = _median(peaks)
    known = [(s, b) for s, b in zip(samples, bounds, strict=True) if b is not None and b[0] > 0]
    if not known:
        return Roof("unknown", None, None, None, None, **middle, bandwidth=bandwidth, peak=peak, peak_source=source,
                    broken=False, reason="no probe, or all weights may lie in the last-level cache")  # fmt: skip
    process = [s.process for s, _ in known]
    fraction = statistics.interval([b[0] / s.seconds for s, b in known], process)
    bound = float(np.median([b[0] for _, b in known]))
    memory = sum(b[1] for _, b in known) * 2 >= len(known)
    reason = None
    if fraction.low > 1 + TOLERANCE and _beats_best_probes(run, peaks, setting):
        reason = (
            f"{fraction.median:.0%} of the roof [{fraction.low:.0%}, {fraction.high:.0%}]: "
            f"the least time for this work is {bound * 1e3:.4g} ms"
        )
    return Roof(
        limit="memory" if memory else "compute",
        bound_seconds=bound,
        fraction=fraction.median,
        low=fraction.low,
        high=fraction.high,
        **middle,
        bandwidth=bandwidth,
        peak=peak,
        peak_source=source,
        broken=reason is not None,
        reason=reason,
    )


def _peaks(run: BackendRun) -> tuple[list[float | None], str]:
    """The compute peak for each sample. A probe without AMX is no roof for code that may use it."""
    own = [s.probe_bf16 for s in run.samples]
    isa = run.probe_isa or "unknown"
    if run.uses_amx is False or "amx" in isa:
        return own, f"probe_bf16 ({isa})"
    if run.gemm_peak is None:
        return [None] * len(own), f"none: may use AMX, which the probe ({isa}) does not"
    peak = run.gemm_peak
    return [max(peak, p or 0.0) for p in own], "large BF16 matrix product of the same library: may use AMX"


def _bound(sample: Sample, bandwidth: float | None, peak: float | None, setting: Setting) -> tuple[float, bool] | None:
    """(least seconds, whether memory sets it), or None where no probe says anything."""
    moved = max(0.0, sample.bytes - resident_bytes(setting))
    memory = moved / bandwidth if bandwidth else None
    compute = sample.flops / peak if peak else None
    if memory is None and compute is None:
        return None
    return max(memory or 0.0, compute or 0.0), (memory or 0.0) >= (compute or 0.0)


def _beats_best_probes(run: BackendRun, peaks: Sequence[float | None], setting: Setting) -> bool:
    bandwidth = max((s.probe_read for s in run.samples if s.probe_read), default=None)
    peak = max((p for p in peaks if p), default=None)
    fractions = []
    for sample in run.samples:
        bound = _bound(sample, bandwidth, peak, setting)
        if bound is not None:
            fractions.append(bound[0] / sample.seconds)
    return bool(fractions) and float(np.median(fractions)) > 1 + TOLERANCE


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return float(np.median(known)) if known else None
