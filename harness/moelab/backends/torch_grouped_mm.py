"""torch's grouped matrix product: what transformers runs as experts_implementation="grouped_mm"."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moelab.backends.base import Facts
from moelab.backends.torch_common import TorchBackend, activated, bias_tensor, no_skipped_slots, own_copy, torch_inputs
from moelab.rounding import Rounding
from moelab.weights import Weights
from moelab.workloads import Inputs, Layer

if TYPE_CHECKING:
    from torch import Tensor


class TorchGroupedMm(TorchBackend):
    """torch.nn.functional.grouped_mm, the steps around it as in transformers.integrations.moe."""

    name = "torch_grouped_mm"
    # grouped_mm takes no bias: it is added to rounded results.
    rounding = Rounding(gemm1=True, bias="bf16", activation="steps", expert="unweighted")

    def unavailable(self) -> str | None:
        missing = super().unavailable()
        if missing:
            return missing
        import torch

        if not hasattr(torch.nn.functional, "grouped_mm"):
            return f"torch {torch.__version__} has no torch.nn.functional.grouped_mm"
        return None

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        import torch

        self.start(layer, threads)
        self._w13 = own_copy(weights.w13).transpose(-2, -1)
        self._w2 = own_copy(weights.w2).transpose(-2, -1)
        self._b13, self._b2 = (bias_tensor(bias, torch.bfloat16) for bias in (weights.w13_bias, weights.w2_bias))

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        import torch
        from torch.nn.functional import grouped_mm

        no_skipped_slots(inputs, self.name)
        given = torch_inputs(inputs)
        layer = self.layer
        w13, w2, b13, b2 = self._w13, self._w2, self._b13, self._b2

        def call() -> Tensor:
            tokens, topk = given.topk_ids.shape
            experts, order = torch.sort(given.topk_ids.view(-1))
            rows = given.x[order // topk]
            counts = torch.histc(experts.float(), bins=layer.num_experts, min=0, max=layer.num_experts - 1)
            ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
            both = grouped_mm(rows, w13, offs=ends)
            if b13 is not None:
                both.add_(b13[experts])
            y = grouped_mm(activated(both, layer), w2, offs=ends)
            if b2 is not None:
                y.add_(b2[experts])
            weighted = y * given.topk_weights.view(-1)[order].unsqueeze(-1)
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order))
            return weighted[back].view(tokens, topk, layer.hidden).sum(dim=1).to(torch.bfloat16)

        return call

    def describe(self) -> Facts:
        return super().describe() | {"packing": "none: [E, 2I, H] and [E, H, I], transposed views"}
