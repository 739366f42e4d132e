"""Where vLLM chooses the experts class of a layer, and what is said about the choice."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm import envs
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.oracle import unquantized
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from moelab_kernels import build_info, isas
from moelab_kernels.vllm._experts import MoelabExperts
from moelab_kernels.vllm._support import unsupported

_logger = init_logger("vllm.moelab")


def put_in_front() -> None:
    """Offers MoelabExperts to vLLM's selection before its own classes. Calling it again changes nothing."""
    if not hasattr(unquantized.backend_to_kernel_cls, "__wrapped__"):
        unquantized.backend_to_kernel_cls = _with_ours(unquantized.backend_to_kernel_cls)
        BaseModelLoader.load_model = _with_report(BaseModelLoader.load_model)
        # vLLM keeps compiled graphs on disk under a key made from its variables and configuration. One that was traced
        # through its own kernels must not meet our packed weights, nor the other way round.
        envs.environment_variables["MOELAB_VLLM"] = _build


def _build() -> str:
    info = build_info()
    return f"{info['version']} {info['git_commit']} {isas()[0]}"


def _with_ours(choose: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    @functools.wraps(choose)
    def choose_with_ours(backend: Any) -> list[Any]:
        classes = choose(backend)
        return [MoelabExperts, *classes] if backend is unquantized.UnquantizedMoeBackend.CPU else classes

    return choose_with_ours


def _with_report(load_model: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load_model)
    def load_model_and_report(*arguments: Any, **options: Any) -> Any:
        model = load_model(*arguments, **options)
        _report(model)
        return model

    return load_model_and_report


def _report(model: Any) -> None:
    """One line for the layers on moelab's kernels, one warning for each reason why others are not."""
    ours: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, RoutedExperts):
            experts = getattr(module.quant_method.moe_kernel, "fused_experts", None)
            if isinstance(experts, MoelabExperts):
                ours.setdefault(experts.isa, []).append(name)
            else:
                others.setdefault(_why_not(module), []).append(name)
    for isa, names in ours.items():
        _logger.info("moelab: kernels %s compute %s", isa, _layers(names))
    for reason, names in others.items():
        _logger.warning("moelab: %s on vLLM's own kernels: %s", _layers(names), reason)
    if not ours and not others:
        _logger.warning("moelab: %s has no MoE layers", type(model).__name__)


def _why_not(module: Any) -> str:
    method = module.quant_method
    if not isinstance(method, UnquantizedFusedMoEMethod):
        return f"weights are quantised ({type(method).__name__}), the kernels compute unquantised BF16"
    chosen = getattr(method.experts_cls, "__name__", method.unquantized_backend.value)
    return unsupported(module.moe_config) or f"vLLM was told to use {chosen}"


def _layers(names: list[str]) -> str:
    return f"MoE layer {names[0]}" if len(names) == 1 else f"{len(names)} MoE layers, {names[0]} to {names[-1]}"
