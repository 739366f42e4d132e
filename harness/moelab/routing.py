"""Which experts each token goes to: made from a seed, or replayed from a recorded file.

uniform     every expert equally likely, the experts of a token distinct
skewed      Zipf: the expert of rank r is drawn with weight 1/r, the experts of a token distinct
one-hot     every token of an input set picks the same experts: the worst load balance there is
trace:FILE  rows of a recorded trace
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moelab.random_bits import unit_stream

Ids = npt.NDArray[np.int32]
RouterWeights = npt.NDArray[np.float32]

KINDS = ("uniform", "skewed", "one-hot")
TRACE_PREFIX = "trace:"


def check_name(name: str) -> None:
    """Raises ValueError unless `name` is a kind of routing or names a trace."""
    if name not in KINDS and not (name.startswith(TRACE_PREFIX) and len(name) > len(TRACE_PREFIX)):
        raise ValueError(f"routing {name!r} is unknown; known: {', '.join(KINDS)}, {TRACE_PREFIX}FILE.npz")


def route(
    name: str, *, tokens: int, num_experts: int, topk: int, seed: int = 0, index: int = 0
) -> tuple[Ids, RouterWeights]:
    """topk_ids int32 [tokens, topk] and topk_weights fp32 [tokens, topk] of input set `index`.

    Router weights of made-up routings are a softmax over the token's chosen experts, largest first.
    """
    check_name(name)
    if name.startswith(TRACE_PREFIX):
        trace = load_trace(Path(name[len(TRACE_PREFIX) :]))
        return trace.window(tokens=tokens, num_experts=num_experts, topk=topk, index=index)
    drawn_tokens = min(tokens, 1) if name == "one-hot" else tokens
    key = ("routing", name, tokens, num_experts, topk, seed, index)
    # Gumbel's trick: the topk largest of log(p) + noise are a draw without replacement with odds p.
    noise = -np.log(-np.log(unit_stream(key, drawn_tokens * num_experts)))
    logits = noise.reshape(drawn_tokens, num_experts)
    if name == "skewed":
        logits = logits + _zipf_log_odds(num_experts, seed)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :topk].astype(np.int32)
    if name == "one-hot" and tokens:
        ids = np.repeat(ids, tokens, axis=0)
        strength = -np.sort(-unit_stream((*key, "weights"), tokens * topk).reshape(tokens, topk) * 3, axis=1)
    else:
        strength = np.take_along_axis(logits, ids, axis=1)
    return np.ascontiguousarray(ids), _softmax(strength)


def _zipf_log_odds(num_experts: int, seed: int) -> npt.NDArray[np.float64]:
    """log(1/rank); which expert has which rank is fixed by the seed, as a model's hot experts are fixed."""
    order = np.argsort(unit_stream(("zipf", num_experts, seed), num_experts), kind="stable")
    odds = np.empty(num_experts)
    odds[order] = -np.log(np.arange(1, num_experts + 1))
    return odds


def _softmax(logits: npt.NDArray[np.float64]) -> RouterWeights:
    if logits.size == 0:
        return np.zeros(logits.shape, dtype=np.float32)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)


@dataclass(frozen=True)
class Trace:
    """Recorded routing of one layer of a model: topk_ids int32 [M, K], topk_weights fp32 [M, K]."""

    topk_ids: Ids
    topk_weights: RouterWeights
    model: str
    layer: int
    source: str

    def __post_init__(self) -> None:
        if self.topk_ids.ndim != 2 or self.topk_ids.dtype != np.int32:
            raise ValueError(
                f"trace: topk_ids is {self.topk_ids.dtype} {list(self.topk_ids.shape)}, must be int32 [tokens, topk]"
            )
        if self.topk_weights.shape != self.topk_ids.shape or self.topk_weights.dtype != np.float32:
            raise ValueError(
                f"trace: topk_weights is {self.topk_weights.dtype} {list(self.topk_weights.shape)}, "
                f"must be float32 {list(self.topk_ids.shape)}"
            )
        if len(self.topk_ids) == 0:
            raise ValueError("trace: holds no token")

    def window(self, *, tokens: int, num_experts: int, topk: int, index: int) -> tuple[Ids, RouterWeights]:
        """`tokens` consecutive rows; window `index` follows window `index` - 1, starting over at the end."""
        if self.topk_ids.shape[1] != topk:
            raise ValueError(f"trace of {self.model}: {self.topk_ids.shape[1]} experts per token, the layer has {topk}")
        low, high = int(self.topk_ids.min()), int(self.topk_ids.max())
        if low < -1 or high >= num_experts:
            raise ValueError(f"trace of {self.model}: expert ids {low}..{high}, the layer has {num_experts} experts")
        rows = (index * tokens + np.arange(tokens)) % len(self.topk_ids)
        return self.topk_ids[rows], self.topk_weights[rows]


def load_trace(path: Path) -> Trace:
    """Reads a trace. Raises FileNotFoundError, or ValueError naming what is missing or wrong."""
    with np.load(path, allow_pickle=False) as stored:
        missing = {"topk_ids", "topk_weights", "model", "layer", "source"} - set(stored.files)
        if missing:
            raise ValueError(f"trace {path}: {', '.join(sorted(missing))} missing")
        return Trace(
            topk_ids=stored["topk_ids"],
            topk_weights=stored["topk_weights"],
            model=str(stored["model"]),
            layer=int(stored["layer"]),
            source=str(stored["source"]),
        )


def save_trace(path: Path, trace: Trace) -> None:
    np.savez_compressed(
        path,
        topk_ids=trace.topk_ids,
        topk_weights=trace.topk_weights,
        model=np.array(trace.model),
        layer=np.array(trace.layer),
        source=np.array(trace.source),
    )
