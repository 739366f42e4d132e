"""The loop over experts with torch's linear layer: what vLLM ran on Arm before it had a kernel there.

Tokens are sorted by expert and gathered once; each expert that has tokens runs two linear layers on its rows; results
go back to the tokens' order and are summed in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moelab.backends.base import Facts
from moelab.backends.torch_common import TorchBackend, activated, bias_tensor, no_skipped_slots, own_copy, torch_inputs
from moelab.rounding import Rounding
from moelab.weights import Weights
from moelab.workloads import Inputs, Layer

if TYPE_CHECKING:
    from torch import Tensor


class TorchLoop(TorchBackend):
    """torch.nn.functional.linear for each expert, on weights as a checkpoint stores them."""

    name = "torch_loop"
    rounding = Rounding(gemm1=True, activation="steps", expert="unweighted")
    _linear: Callable[..., Any]

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        from torch.nn import functional

        self.start(layer, threads)
        self.keep_biases(weights)
        self._linear = functional.linear
        self._w13 = own_copy(weights.w13).unbind()
        self._w2 = own_copy(weights.w2).unbind()

    def keep_biases(self, weights: Weights) -> None:
        """One BF16 tensor, or None, for each expert."""
        import torch

        none = [None] * self.layer.num_experts
        b13, b2 = (bias_tensor(bias, torch.bfloat16) for bias in (weights.w13_bias, weights.w2_bias))
        self._b13 = none if b13 is None else b13.unbind()
        self._b2 = none if b2 is None else b2.unbind()

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        import torch

        no_skipped_slots(inputs, self.name)
        given = torch_inputs(inputs)
        layer, experts = self.layer, self.layer.num_experts
        linear, w13, w2, b13, b2 = self._linear, self._w13, self._w2, self._b13, self._b2

        def call() -> Tensor:
            tokens, topk = given.topk_ids.shape
            ids = given.topk_ids.view(-1)
            order = ids.argsort()
            rows = given.x[order // topk]
            outputs = torch.empty(tokens * topk, layer.hidden, dtype=torch.bfloat16)
            start = 0
            for expert, count in enumerate(torch.bincount(ids, minlength=experts).tolist()):
                if count:
                    end = start + count
                    inner = activated(linear(rows[start:end], w13[expert], b13[expert]), layer)
                    outputs[order[start:end]] = linear(inner, w2[expert], b2[expert])
                    start = end
            slots = outputs.view(tokens, topk, layer.hidden)
            return (slots * given.topk_weights.unsqueeze(-1)).sum(dim=1).to(torch.bfloat16)

        return call

    def describe(self) -> Facts:
        return super().describe() | {"packing": "none: [E, 2I, H] and [E, H, I] as stored"}
