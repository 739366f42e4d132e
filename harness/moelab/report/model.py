"""What a report is made of, read from result files: results, machines, cells and the measurements in them.

Times are seconds, ratios are other's time / ours (above 1: ours is faster), rates are per second. All text is clean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

OURS = "moelab"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the ends of its interval; ends are NaN where the file has none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def has_ends(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def spread(values: Sequence[float]) -> Interval:
    """The median with the least and the largest of few values, too few for an interval; NaN for none."""
    return Interval(median(values), min(values), max(values)) if values else Interval(math.nan)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The speed of one backend over another in one cell: time of `against` / time of the backend.

    `verdict`: faster, slower, same, undecided or broken. `source`: "file" where the run itself judged it, "samples"
    where the report paired the raw samples of the file.
    """

    against: str
    ratio: Interval
    verdict: str
    pairs: int
    source: str
    minimum_detectable: float = math.nan


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bound of one measurement. fraction 1 is the roof; bytes and FLOPs per call; rates of the probes beside it."""

    limit: str
    bound_seconds: float
    fraction: Interval
    bytes: float
    flops: float
    bandwidth: float
    peak: float
    peak_source: str
    broken: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Correctness:
    """Whether the outputs that were timed are right, and the largest error beside its bound."""

    passed: bool | None
    max_error: float
    bound: float
    worst: float
    flips: float
    flip_limit: float
    samples_checked: int
    failure: str


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds per call of every sample with the process and round that it was taken in (parallel tuples)."""

    seconds: tuple[float, ...] = ()
    process: tuple[int, ...] = ()
    round: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Packing:
    """What one backend needs before its first result; the tuples hold one value per process that is known.

    seconds: to pack the layer's weights. first_call: seconds of the first call after it; what packs only then takes
    them there. extra_bytes: memory at the peak beside the packed weights. weight_bytes: the layer's weights before.
    """

    seconds: tuple[float, ...] = ()
    first_call: tuple[float, ...] = ()
    extra_bytes: tuple[float, ...] = ()
    weight_bytes: float = math.nan
    packed_bytes: float = math.nan
    method: str = ""

    @property
    def first_result(self) -> tuple[float, ...]:
        """Seconds until the first result of each process, packing included; () where the two do not go together."""
        if len(self.seconds) != len(self.first_call):
            return ()
        return tuple(map(sum, zip(self.seconds, self.first_call, strict=True)))

    @property
    def bytes_per_second(self) -> float:
        """Weights read and packed weights written, per second of packing; NaN where one of them is not known."""
        middle = spread(self.seconds).value
        return (self.weight_bytes + self.packed_bytes) / middle if middle > 0 else math.nan


@dataclass(frozen=True, slots=True)
class Measurement:
    """One backend in one cell."""

    backend: str
    version: str
    isa: str
    rounding: str
    uses_amx: bool | None
    time: Interval
    samples: Samples
    comparisons: Mapping[str, Comparison]
    roofline: Roofline
    correctness: Correctness
    packing: Packing = field(default_factory=Packing)
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def broken(self) -> str:
        """Why this is not a result, "" for a good one."""
        if self.correctness.passed is False:
            return self.correctness.failure or "wrong output"
        if self.roofline.broken:
            return self.roofline.reason or "faster than its roofline"
        return ""


@dataclass(frozen=True, slots=True)
class Case:
    """One layer and number of tokens."""

    workload: str
    tokens: int
    routing: str
    shape: str
    note: str
    seed: int


@dataclass(frozen=True, slots=True)
class Setting:
    """How cells of one table were run: cells of different settings never share a curve."""

    routing: str
    threads: int
    cache: str

    @property
    def label(self) -> str:
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        weights = f", {self.cache} weights" if self.cache else ""
        return f"{threads}, {self.routing} routing{weights}"


@dataclass(frozen=True, slots=True)
class Control:
    """The A/A control of a cell: one backend against itself."""

    of: str
    ratio: Interval
    inside_margin: bool | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One case under one setting: all backends of one run, timed interleaved."""

    case: Case
    setting: Setting
    baseline: str
    measurements: Mapping[str, Measurement]
    control: Control | None
    control_ratios: tuple[float, ...]
    rounds: int
    processes: int
    conditions: tuple[str, ...]
    result: Result

    @property
    def ours(self) -> Measurement | None:
        return self.measurements.get(OURS)


@dataclass(frozen=True, slots=True)
class Missing:
    """A backend or case that did not run, with the reason."""

    backend: str
    case: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: `key` tells two results of one machine, `facts` are (name, value) rows for people."""

    key: str
    name: str
    part: str
    architecture: str
    cpus: int
    emulated: bool
    facts: tuple[tuple[str, str], ...]
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What one result file says about its run."""

    name: str
    digest: str
    machine: Machine
    started: str
    command: str
    revision: str
    dirty: bool | None
    image: str
    library: str
    seed: int | None
    level: float
    margin: float
    quick: bool
    emulated: bool
    synthetic: bool
    missing: tuple[Missing, ...]
    conditions: tuple[str, ...]
    cases: tuple[str, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def revision_label(self) -> str:
        """Short commit, with "+ changes" where the tree differed from it."""
        if not self.revision:
            return "revision unknown"
        return self.revision[:12] + (" + uncommitted changes" if self.dirty else "")
