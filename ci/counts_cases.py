"""What `nox -s counts` counts: layers, routings, and the fewest BFMMLA that a case can be done with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moelab.routing import load_trace
from moelab.workloads import Layer, layer_by_name

TRACES = Path(__file__).resolve().parents[1] / "reports" / "traces"
YARDSTICK = "yardstick"


@dataclass(frozen=True)
class CountedLayer:
    """A layer, its recorded routing, and the numbers of tokens (the first ones of the recording), most first."""

    layer: Layer
    trace: str
    tokens: tuple[int, ...] = (64, 16, 4, 1)

    def rows(self, tokens: int) -> list[int]:
        """Rows of each expert."""
        ids = load_trace(TRACES / f"{self.trace}.npz").topk_ids[:tokens]
        return [int(count) for count in np.bincount(ids.ravel(), minlength=self.layer.num_experts)]

    def minimum(self, tokens: int) -> int:
        return minimum_bfmmla(self.rows(tokens), self.layer.hidden, self.layer.intermediate)

    def name(self, tokens: int) -> str:
        return f"{self.layer.name}, {tokens} token{'s' * (tokens > 1)}"

    def write_routing(self, tokens: int, path: Path) -> None:
        """The format of kernels/tools/moelab_call.cpp."""
        trace = load_trace(TRACES / f"{self.trace}.npz")
        if len(trace.topk_ids) < tokens:
            raise ValueError(f"trace {self.trace}: {len(trace.topk_ids)} tokens recorded, {tokens} wanted")
        head = np.array([tokens, trace.topk_ids.shape[1]], dtype=np.int32)
        path.write_bytes(
            head.tobytes()
            + np.ascontiguousarray(trace.topk_ids[:tokens]).tobytes()
            + np.ascontiguousarray(trace.topk_weights[:tokens]).tobytes()
        )


def minimum_bfmmla(rows: Iterable[int], hidden: int, intermediate: int) -> int:
    """One BFMMLA multiplies two rows by two columns over four steps of k; GEMM1 has 2I columns, GEMM2 has H."""

    def up(count: int, by: int) -> int:
        return -(-count // by)

    per_pair = up(2 * intermediate, 2) * up(hidden, 4) + up(hidden, 2) * up(intermediate, 4)
    return sum(up(count, 2) for count in rows) * per_pair


# Scaled down so that an emulator takes seconds. Every expert is there: routing and few rows per expert are what these
# cases are about. gemma-4's I, a quarter of 704, is rounded up: vLLM's kernel takes multiples of 32.
LAYERS = (
    CountedLayer(Layer(YARDSTICK, 8, 2, 512, 512, "swigluoai", gate_up="interleaved"), "yardstick", (64,)),
    CountedLayer(layer_by_name("gpt-oss-20b/H576/I576"), "gpt-oss-20b"),
    CountedLayer(layer_by_name("gemma-4-26b-a4b/H704/I192"), "gemma-4-26b-a4b"),
    CountedLayer(layer_by_name("qwen3-30b-a3b/H512/I192"), "qwen3-30b-a3b"),
)


def yardstick_case() -> str:
    layer = LAYERS[0]
    return layer.name(layer.tokens[0])
