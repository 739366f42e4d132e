"""sglang's fused MoE for CPUs, fused_experts_cpu, as vLLM's extension ships it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moelab.backends import amx
from moelab.backends.base import Facts
from moelab.backends.torch_common import bf16_tensor, bias_tensor, no_skipped_slots, rows_ordered, torch_inputs
from moelab.backends.vllm import VllmExtension, load_vllm
from moelab.rounding import Rounding
from moelab.weights import Weights
from moelab.workloads import SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT, Case, Inputs, Layer

if TYPE_CHECKING:
    from torch import Tensor

_UNQUANTIZED = 0


class Sglang(VllmExtension):
    """torch.ops._C.fused_experts_cpu on weights packed by convert_weight_packed."""

    name = "sglang"
    operators = ("convert_weight_packed", "fused_experts_cpu")
    # Each expert's weighted output is stored as BF16 before the sum over the slots.
    rounding = Rounding(expert="weighted")

    def unsuited(self, case: Case) -> str | None:
        layer = case.layer
        if layer.activation not in ("silu", "swigluoai"):
            return f"has silu and swigluoai, not {layer.activation}"
        return super().unsuited(case)

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        import torch

        load_vllm()
        self.start(layer, threads)
        convert = torch.ops._C.convert_weight_packed
        w13, b13 = rows_ordered(weights, layer, "interleaved" if layer.activation == "swigluoai" else "split")
        self._w13, self._w2 = convert(bf16_tensor(w13)), convert(bf16_tensor(weights.w2))
        self._b13, self._b2 = (bias_tensor(bias, torch.float32) for bias in (b13, weights.w2_bias))

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        import torch

        no_skipped_slots(inputs, self.name)
        given = torch_inputs(inputs)
        x, router, ids = given.x, given.topk_weights, given.topk_ids
        w13, w2, b13, b2 = self._w13, self._w2, self._b13, self._b2
        oai = self.layer.activation == "swigluoai"
        alpha, limit = (SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT) if oai else (None, None)
        fused = torch.ops._C.fused_experts_cpu.default
        none = (None, None, None, None, None, None)  # scales, zero points, block size

        def call() -> Tensor:
            out = torch.empty_like(x)
            fused(out, x, w13, w2, router, ids, _UNQUANTIZED, *none, b13, b2, alpha, limit, True)
            return out

        return call

    def describe(self) -> Facts:
        return super().describe() | {"packing": "convert_weight_packed (VNNI)", "amx": amx.in_onednn()}
