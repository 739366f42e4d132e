"""The experts class that vLLM's layers hold: packed weights, and one call of the fused kernel."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import modular_kernel
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.utils import replace_parameter

import moelab_kernels  # noqa: F401 - registers torch.ops.moelab
from moelab_kernels.vllm._pack import pack_and_release
from moelab_kernels.vllm._support import gate_of, unsupported

_fused_moe_out = torch.ops.moelab.fused_moe_out.default


class MoelabExperts(modular_kernel.FusedMoEExpertsModular):  # type: ignore[misc]
    """Experts on moelab's kernels, unquantised BF16.

    The layer's parameter w13_weight becomes the packed weights of both products (one uint8 tensor), w2_weight becomes
    empty. Everything in `apply` can be traced by torch.compile, which looks into it on the CPU.
    """

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    @staticmethod
    def activation_format() -> modular_kernel.FusedMoEActivationFormat:
        return modular_kernel.FusedMoEActivationFormat.Standard

    @staticmethod
    def is_supported_config(
        cls: Any,  # noqa: PLW0211 - vLLM hands the class over itself
        moe_config: FusedMoEConfig,
        weight_key: Any,
        activation_key: Any,
        activation_format: Any,
    ) -> tuple[bool, str | None]:
        """Whether moelab's kernels compute such a layer, and why not."""
        reason = unsupported(moe_config)
        if reason is None and (weight_key, activation_key) != (None, None):
            reason = f"weights are quantised ({weight_key}), the kernels compute unquantised BF16"
        if reason is None and activation_format != cls.activation_format():
            reason = f"tokens come sorted by expert ({activation_format.value}), the kernels sort them themselves"
        return reason is None, reason

    # vLLM asks these where it does not ask is_supported_config; the answer to all of them is there.
    @staticmethod
    def _supports_current_device() -> bool:
        return True

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return bool(activation.is_gated)

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return (weight_key, activation_key) == (None, None)

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return True

    @staticmethod
    def _supports_batch_invariance() -> bool:
        return True  # the same bits for a token whatever else is in the batch

    def process_weights_after_loading(self, layer: Any) -> None:
        """Packs the layer's weights and gives the originals back to the system, expert by expert."""
        gate = gate_of(self.moe_config)
        assert gate is not None  # is_supported_config has seen to it
        packed = pack_and_release(layer, gate)
        self._sizes = (packed.num_experts, packed.hidden, packed.intermediate)
        self._activation = packed.activation
        self.isa = packed.isa
        replace_parameter(layer, "w13_weight", packed.tensor)
        replace_parameter(layer, "w2_weight", torch.empty(0, dtype=torch.uint8))

    def moe_problem_size(
        self, a1: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_ids: torch.Tensor
    ) -> tuple[int, int, int, int, int]:
        """(experts, tokens, rows of w13, hidden, slots); packed weights do not show them."""
        experts, hidden, intermediate = self._sizes
        return experts, a1.size(0), 2 * intermediate, hidden, topk_ids.size(1)

    def workspace_shapes(
        self,
        M: int,  # noqa: N803 - vLLM's names
        N: int,  # noqa: N803
        K: int,  # noqa: N803
        topk: int,
        global_num_experts: int,
        local_num_experts: int,
        expert_tokens_meta: Any,
        activation: MoEActivation,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Two scratch tensors, which the kernels do not need, and the output."""
        return (0,), (0,), (M, K)

    def finalize_weight_and_reduce_impl(self) -> Any:
        return TopKWeightAndReduceNoOP()  # the kernels have done it

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: MoEActivation,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        expert_tokens_meta: Any,
        apply_router_weight_on_input: bool,
    ) -> None:
        """output [M, H] from hidden_states [M, H], topk_weights and topk_ids [M, K]; w1 holds the packed weights."""
        if expert_map is not None:
            topk_ids = expert_map[topk_ids]  # -1, which the kernels skip, for experts of other ranks
        if apply_router_weight_on_input:
            topk_weights = torch.ones_like(topk_weights)  # vLLM has multiplied the input by them
        experts, hidden, intermediate = self._sizes
        _fused_moe_out(
            hidden_states,
            w1,
            topk_weights.float(),
            topk_ids,
            experts,
            hidden,
            intermediate,
            self._activation,
            out=output,
        )
