"""What this build and this CPU can do."""

from __future__ import annotations

import json
from ctypes import byref, c_double
from typing import Any, Literal, TypeAlias

from moelab_kernels import _openmp
from moelab_kernels._lib import PEAK_KINDS, check, isa_index, isa_name, lib

PHASES = ("route", "pack", "gemm1", "gemm2", "combine", "wait")

PeakKind: TypeAlias = Literal["bf16", "fp32", "read"]


def isas() -> list[str]:
    """Names of the instruction sets that this CPU can run, best first."""
    return [isa_name(i) for i in reversed(range(lib.moelab_isa_count())) if not lib.moelab_isa_missing(i)]


def build_info() -> dict[str, Any]:
    """Version, git commit, compiler, flags, ISAs built; at run time the CPU features and the OpenMP runtimes loaded.

    More than one name under "openmp" means that another library brought a runtime of its own: its threads and ours
    then compete for the same cores.
    """
    info: dict[str, Any] = json.loads(lib.moelab_build_info())
    info["openmp"] = _openmp.loaded()
    return info


def peak(kind: PeakKind, *, isa: str | None = None, num_threads: int | None = None, seconds: float = 0.03) -> float:
    """Measured peak: "bf16" or "fp32" in FLOP/s of the ISA's own multiply instruction, "read" in bytes/s.

    "read" takes the best of several read patterns over a buffer on huge pages that is kept between calls, so that a
    probe between two samples is cheap. isa: a name out of `isas()`, None for the best. num_threads: None takes the
    process's OpenMP or torch setting. seconds: how long to measure, about.

    Raises ValueError for an unknown kind or a length that is not positive, RuntimeError for an ISA that this CPU lacks.
    """
    if kind not in PEAK_KINDS:
        raise ValueError(f"kind: {kind!r}, expected one of {', '.join(PEAK_KINDS)}")
    if not 0 < seconds <= 60:
        raise ValueError(f"seconds: {seconds}, expected more than 0 and at most 60")
    rate = c_double()
    index = isa_index(isa)
    check(lib.moelab_peak(PEAK_KINDS.index(kind), index, _openmp.resolve(num_threads), seconds, byref(rate)))
    return rate.value


def last_profile() -> dict[str, float]:
    """Seconds of this thread's last `fused_moe`, by phase: what MOELAB_PROFILE=1 in the environment records.

    route, pack, gemm1, gemm2, combine: how long a thread of the team was busy with it, in the mean over the threads;
    wait: how long it waited for the others. Together they are the time of the C call. All zero without the variable.
    """
    seconds = (c_double * len(PHASES))()
    lib.moelab_last_profile(seconds)
    return dict(zip(PHASES, seconds, strict=True))
