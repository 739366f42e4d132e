"""Which of vLLM's MoE layers the kernels compute, and with which arguments."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.platforms import current_platform

from moelab_kernels._gate import Gate
from moelab_kernels._pack import GateUp

_PLAIN = {
    MoEActivation.SILU: Gate("silu", "split"),
    MoEActivation.GELU: Gate("gelu", "split"),
    MoEActivation.GELU_TANH: Gate("gelu_tanh", "split"),
}
_SWIGLUOAI: dict[MoEActivation, GateUp] = {
    MoEActivation.SWIGLUOAI: "interleaved",
    MoEActivation.SWIGLUOAI_UNINTERLEAVE: "split",
}
# vLLM's kernels for gpt-oss hold these constants themselves, and its layers leave them out.
_ALPHA, _LIMIT = 1.702, 7.0


def unsupported(config: FusedMoEConfig) -> str | None:
    """What such a layer needs that the kernels do not have; None where they compute it."""
    reason = None
    if not current_platform.is_cpu():
        reason = f"vLLM runs on {current_platform.device_name}, the kernels on the CPU"
    elif config.is_lora_enabled:
        reason = "LoRA is on, and the kernels have packed the weights that it would change"
    elif config.in_dtype is not torch.bfloat16:
        reason = f"the model computes in {config.in_dtype}, the kernels in BF16 (dtype bfloat16)"
    elif config.moe_parallel_config.enable_eplb:
        reason = "experts move between processes (EPLB), and packed ones stay"
    elif gate_of(config) is None:
        clamped = "" if config.swiglu_limit is None else f" with a limit of {config.swiglu_limit:g}"
        reason = f"no kernel computes the activation {config.activation.value}{clamped}"
    return reason


def gate_of(config: FusedMoEConfig) -> Gate | None:
    """The packer's arguments for a layer's activation; None where no kernel computes it."""
    limit, alpha, offset = config.swiglu_limit, config.swiglu_alpha, config.swiglu_beta
    order = _SWIGLUOAI.get(config.activation)
    if order is None:
        return _PLAIN.get(config.activation) if limit is None else None
    if offset not in (None, 1.0):
        return None
    return Gate("swigluoai", order, _ALPHA if alpha is None else alpha, _LIMIT if limit is None else limit)
