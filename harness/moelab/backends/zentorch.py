"""AMD's zentorch: its fused MoE operator, which hands the work to ZenDNN."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from moelab.backends import amx, environments
from moelab.backends.base import Facts
from moelab.backends.torch_common import (
    TorchBackend,
    bias_tensor,
    load_extension,
    no_skipped_slots,
    own_copy,
    rows_ordered,
    torch_inputs,
)
from moelab.rounding import Rounding
from moelab.weights import Weights
from moelab.workloads import Inputs, Layer

if TYPE_CHECKING:
    from torch import Tensor


class Zentorch(TorchBackend):
    """torch.ops.zentorch.zentorch_fused_moe on plain weights.

    It packs a copy of its own at the first call and keeps it for as long as the process lives.
    """

    name = "zentorch"
    environment = "zentorch"
    # Where few rows reach an expert it keeps gate and up in fp32 and is closer than this bound.
    rounding = Rounding(gemm1=True, expert="unweighted")

    def unavailable(self) -> str | None:
        missing = environments.missing("zentorch") or super().unavailable()
        if missing:
            return missing
        try:
            _load()
        except RuntimeError as error:
            return str(error)
        return None

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        import torch

        _load()
        self.start(layer, threads)
        # swigluoai reads gate and up interleaved; the others read halves.
        w13, b13 = rows_ordered(weights, layer, "interleaved" if layer.activation == "swigluoai" else "split")
        self._w13, self._w2 = own_copy(w13), own_copy(weights.w2)
        self._b13, self._b2 = (bias_tensor(bias, torch.bfloat16) for bias in (b13, weights.w2_bias))

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        import torch

        no_skipped_slots(inputs, self.name)
        given = torch_inputs(inputs)
        x, router, ids = given.x, given.topk_weights, given.topk_ids
        w13, w2, b13, b2, activation = self._w13, self._w2, self._b13, self._b2, self.layer.activation
        fused = torch.ops.zentorch.zentorch_fused_moe.default

        def call() -> Tensor:
            out = torch.empty_like(x)
            fused(out, x, w13, w2, b13, b2, router, ids, False, activation)
            return out

        return call

    def describe(self) -> Facts:
        made = environments.facts("zentorch")
        return super().describe() | {
            "version": made.get("requirement"),
            "library_sha256": made.get("libzentorch.so"),
            "packing": "its own, cached at the first call",
            # Its own copy of oneDNN has AMX code; whether a call takes it, it does not tell.
            "amx": "possible" if amx.in_onednn() == "yes" else amx.in_onednn(),
        }


@lru_cache(maxsize=1)
def _load() -> None:
    load_extension("zentorch", environments.folder("zentorch") / "libzentorch.so")
