"""What a run produces before any statistics: samples, checks and facts, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from moelab.conditions import Disturbance
from moelab.workloads import Case

Role = Literal["baseline", "candidate", "control"]
Kind = Literal["unavailable", "unsuited", "skipped", "failed"]


@dataclass(frozen=True)
class Sample:
    """One timed sample: `calls` calls in a row, each with inputs of its own; `seconds` is per call.

    `bytes` and `flops` per call follow from the routing of these inputs; the probes ran right before the sample.
    """

    process: int
    round: int
    position: int
    input: int
    calls: int
    seconds: float
    bytes: float
    flops: float
    experts: float
    probe_read: float | None
    probe_bf16: float | None
    phases: dict[str, float] | None = None
    """Seconds of the last call of the sample by phase, where they were asked for and the backend can tell."""


@dataclass(frozen=True)
class Spent:
    """Seconds of a sample beside the timed ones; bind, result and cpu per call.

    bind: until the backend had its inputs. result: until the harness had its output. cpu: CPU time of the whole process
    while the clock ran. unexplained: by the engine's clock, neither timed nor told of by the worker nor, by the
    kernel's account, spent waiting for a CPU.
    """

    bind: float
    result: float
    cpu: float
    unexplained: float


@dataclass
class Check:
    """Comparison of output rows with the oracle. `worst` is the largest error over its bound, above 1 is wrong."""

    rows: int = 0
    max_error: float | None = None
    bound: float | None = None
    worst: float | None = None
    flips: float | None = None
    flip_limit: float | None = None


@dataclass
class BackendRun:
    """Everything measured of one backend in one case. `failure` says why its samples are no result."""

    name: str
    label: str
    role: Role
    version: str = ""
    isa: str | None = None
    rounding: dict[str, str | bool] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    environment: dict[str, object] = field(default_factory=dict)
    packing_seconds: list[float] = field(default_factory=list)
    packing_extra_bytes: list[int] = field(default_factory=list)
    """Per process: the most private memory while packing, beyond the packed weights."""
    first_call_seconds: list[float] = field(default_factory=list)
    """Per process: the first call after packing, of any case; with the packing, the time to a first result."""
    packed_bytes: int = 0
    uses_amx: bool | None = False
    gemm_peak: float | None = None
    """FLOP/s of a large BF16 matrix product of the same library, for code that has instructions ours lacks."""
    probe_isa: str | None = None
    """Whose multiply instruction probe_bf16 measured."""
    before: Check = field(default_factory=Check)
    after: Check = field(default_factory=Check)
    samples_checked: int = 0
    samples: list[Sample] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)
    """Of each sample, what happened around the clock."""
    failure: str | None = None


Probing = Literal["all", "one", "none"]
"""Which processes measure what the machine can read and multiply: one of them, where memory is short. The others take
what that one found in the same round."""


@dataclass(frozen=True)
class Setting:
    """How a case was run."""

    threads: int
    cpus: list[int]
    pinning: str
    cache: Literal["cold", "warm"]
    eviction: str
    emulated: bool
    last_level_bytes: int


@dataclass
class CaseRun:
    """One case with all backends that were timed interleaved in it, by label."""

    case: Case
    setting: Setting
    baseline: str | None
    backends: dict[str, BackendRun] = field(default_factory=dict)
    separate_copy: bool = False
    disturbance: Disturbance = field(default_factory=Disturbance)
    conditions: list[str] = field(default_factory=list)
    """What was unstable, in words."""


@dataclass(frozen=True)
class Missing:
    """A backend or case that was asked for and did not run."""

    backend: str | None
    case: str | None
    workload: str | None
    kind: Kind
    reason: str
    bytes_needed: int | None = None
