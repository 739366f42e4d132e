"""What an end-to-end run is asked to do: its options as one value."""

from __future__ import annotations

from dataclasses import dataclass

from moelab.e2e.cells import Cell, cells
from moelab.e2e.engines import ENGINES
from moelab.e2e.models import SHAPES


@dataclass(frozen=True)
class Plan:
    """`budget` is in seconds for everything; rounds adapt to it, but every process does at least `fewest_rounds`."""

    models: tuple[str, ...] = tuple(SHAPES)
    engines: tuple[str, ...] = ("eager", "grouped_mm", "moelab")
    layers: tuple[int, ...] = (2, 4)
    prefill: tuple[int, ...] = (512, 2048)
    decode: tuple[int, ...] = (1, 8, 32)
    mixed: bool = True
    threads: int = 1
    processes: int = 2
    fewest_rounds: int = 2
    most_rounds: int = 12
    budget: float = 1500.0
    seed: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        for name in self.engines:
            if name not in ENGINES:
                raise ValueError(f"--engine {name}: unknown; known: {', '.join(ENGINES)}")
        for option, values in (("model", self.models), ("engine", self.engines), ("layers", self.layers)):
            if not values or len(set(values)) != len(values):
                raise ValueError(f"--{option} {','.join(map(str, values))}: must name at least one, each once")
        for option, numbers in (("prefill", self.prefill), ("decode", self.decode)):
            if any(n < 1 for n in numbers) or len(set(numbers)) != len(numbers):
                raise ValueError(f"--{option} {','.join(map(str, numbers))}: takes numbers from 1 up, each once")
        for option, number in (("threads", self.threads), ("processes", self.processes), ("rounds", self.most_rounds)):
            if number < 1:
                raise ValueError(f"--{option} {number}: must be at least 1")
        if not self.cells():
            raise ValueError("--prefill, --decode and --no-mixed leave nothing to measure")

    def cells(self) -> list[Cell]:
        return cells(self.prefill, self.decode, self.mixed, self.seed)


QUICK: dict[str, object] = {
    "models": ("qwen3-30b-a3b",),
    "layers": (1, 2),
    "prefill": (512,),
    "decode": (1, 8),
    "mixed": False,
    "budget": 270.0,
}
