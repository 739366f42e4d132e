"""What a run is asked to do: the options of `bench` as one value."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import Any, Literal

from moelab import routing
from moelab.backend_loading import described, label_of
from moelab.revision_backend import PREFIX
from moelab.workloads import Case, layer_by_name

WORKLOADS = ("gpt-oss-20b", "gemma-4-26b-a4b", "qwen3-30b-a3b")
TOKENS = (1, 4, 16, 64, 256, 1024)
BACKENDS = ("moelab", "torch_loop", "torch_grouped_mm")
BASELINE = "torch_loop"


@dataclass(frozen=True)
class Plan:
    """A run. `budget` is in seconds for everything but set-up and report; rounds adapt to it, within their limits.

    Where it is short, peers are in fewer rounds than ours and the baseline, down to one in each process.
    """

    workloads: tuple[str, ...] = WORKLOADS
    tokens: tuple[int, ...] = TOKENS
    backends: tuple[str, ...] = BACKENDS
    routings: tuple[str, ...] = ("uniform",)
    threads: int = 1
    cache: Literal["cold", "warm"] = "cold"
    baseline: str = BASELINE
    seed: int = 0
    quick: bool = False
    processes: int = 5
    budget: float = 720.0
    fewest_rounds: int = 3
    most_rounds: int = 30
    probe_seconds: float = 0.02
    warm_up_seconds: float = 0.4
    """At most so long per backend and case in each process, beyond the one call that is checked."""
    rows: int = 4
    """Rows of each timed output that are checked."""

    profile: bool = False
    """Record where the time of a call goes, of backends that can tell."""

    tile: str | None = None
    """Order of neon_bf16's main loop (`moelab.tiles`); None leaves it to the kernels."""

    first_input: int | None = None
    """Number of the first input set. None: drawn by chance, so that nobody knows the inputs before."""

    emulated: bool = False
    """Run where instructions are emulated too, as a test of everything but the times."""

    def __post_init__(self) -> None:
        for workload in self.workloads:
            layer_by_name(workload)
        for name in self.backends:
            described(name, self.threads)
        for name in self.routings:
            routing.check_name(name)
        for name in ("workloads", "tokens", "backends", "routings"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} is {list(values)}: must name at least one, each once")
        if min(self.tokens) < 1:
            raise ValueError(f"tokens is {list(self.tokens)}: each must be at least 1")
        if self.first_input is not None and self.first_input < 1:
            raise ValueError(f"inputs is {self.first_input}, must be the number of an input set: at least 1")
        for name in ("threads", "processes", "fewest_rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")

    def as_dict(self) -> dict[str, Any]:
        """For result files: other revisions by their label, without the folder that they were built in."""
        values = asdict(self)
        values["backends"] = [label_of(b) if b.startswith(PREFIX) else b for b in self.backends]
        values["baseline"] = label_of(self.baseline) if self.baseline.startswith(PREFIX) else self.baseline
        return values

    def cases(self, workload: str) -> list[Case]:
        layer = layer_by_name(workload)
        return [Case(layer, tokens, kind, self.threads, self.seed) for kind in self.routings for tokens in self.tokens]

    @property
    def labels(self) -> dict[str, str]:
        """Label of each contender and the backend it runs; the last is the A/A control."""
        return {**{label_of(name): name for name in self.backends}, self.control_label: self.control}

    @property
    def control_label(self) -> str:
        return f"{label_of(self.control)}#2"

    @property
    def control(self) -> str:
        """The backend that runs twice: ours where it takes part, otherwise the baseline."""
        if "moelab" in self.backends:
            return "moelab"
        return self.baseline if self.baseline in self.backends else self.backends[0]


def any_first_input() -> int:
    """Number of an input set, from the system's own source of chance: no seed tells it."""
    return 1 + secrets.randbelow(1 << 40)


# A run within three minutes on two cores: three numbers of tokens, fewer processes and rounds, so more cells stay
# undecided.
QUICK: dict[str, Any] = {
    "tokens": (1, 16, 256),
    "processes": 2,
    "budget": 140.0,
    "fewest_rounds": 2,
    "probe_seconds": 0.01,
    "warm_up_seconds": 0.1,
    "rows": 2,
}
