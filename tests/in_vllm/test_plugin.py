"""The plugin's parts in vLLM's process, without a model."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FusedMoEConfig,
    FusedMoEParallelConfig,
    FusedMoEQuantConfig,
    RoutingMethodType,
    biased_moe_quant_config,
)
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEActivationFormat
from vllm.model_executor.layers.fused_moe.oracle import unquantized

import moelab_kernels.vllm
from moelab_kernels.vllm import _selection, _support
from moelab_kernels.vllm._experts import MoelabExperts
from moelab_kernels.vllm._support import gate_of, unsupported

STANDARD = FusedMoEActivationFormat.Standard


def configuration(experts: int = 8, hidden: int = 64, intermediate: int = 96, **changes: Any) -> FusedMoEConfig:
    return FusedMoEConfig(
        num_experts=experts,
        experts_per_token=2,
        hidden_dim=hidden,
        intermediate_size=intermediate,
        num_local_experts=experts,
        num_logical_experts=experts,
        device="cpu",
        routing_method=RoutingMethodType.Default,
        moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
        **{"activation": MoEActivation.SILU, "in_dtype": torch.bfloat16} | changes,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"in_dtype": torch.float16}, "the model computes in torch.float16, the kernels in BF16"),
        ({"is_lora_enabled": True}, "LoRA is on"),
        ({"activation": MoEActivation.RELU2}, "no kernel computes the activation relu2"),
        ({"activation": MoEActivation.SILU, "swiglu_limit": 7.0}, "the activation silu with a limit of 7"),
        ({"activation": MoEActivation.SWIGLUOAI, "swiglu_beta": 0.5}, "no kernel computes the activation swigluoai"),
    ],
)
def test_what_the_kernels_do_not_compute(changes: dict[str, Any], reason: str):
    config = configuration(**changes)
    assert reason in (unsupported(config) or "")
    assert MoelabExperts.is_supported_config(MoelabExperts, config, None, None, STANDARD) == (
        False,
        unsupported(config),
    )


def test_experts_that_move():
    parallel = dataclasses.replace(FusedMoEParallelConfig.make_no_parallel(), enable_eplb=True)
    assert "experts move between processes (EPLB)" in (
        unsupported(dataclasses.replace(configuration(), moe_parallel_config=parallel)) or ""
    )


def test_another_device(monkeypatch: pytest.MonkeyPatch):
    platform = SimpleNamespace(is_cpu=lambda: False, device_name="cuda")
    monkeypatch.setattr(_support, "current_platform", platform)
    assert unsupported(configuration()) == "vLLM runs on cuda, the kernels on the CPU"


def test_quantised_weights_and_sorted_tokens_are_refused():
    for keys in (("int8", None), (None, "int8")):
        supported, reason = MoelabExperts.is_supported_config(MoelabExperts, configuration(), *keys, STANDARD)
        assert not supported
        assert "quantised" in (reason or "")
    batched = FusedMoEActivationFormat.BatchedExperts
    supported, reason = MoelabExperts.is_supported_config(MoelabExperts, configuration(), None, None, batched)
    assert not supported
    assert "sorted by expert" in (reason or "")


class Layer(torch.nn.Module):
    def __init__(self, config: FusedMoEConfig, *, bias: bool) -> None:
        super().__init__()
        experts, hidden, intermediate = config.num_experts, config.hidden_dim, config.intermediate_size
        generator = torch.Generator().manual_seed(0)
        shapes = {"w13_weight": (experts, 2 * intermediate, hidden), "w2_weight": (experts, hidden, intermediate)}
        if bias:
            shapes |= {"w13_bias": shapes["w13_weight"][:2], "w2_bias": shapes["w2_weight"][:2]}
        for name, shape in shapes.items():
            weight = torch.empty(shape, dtype=torch.bfloat16)
            # Windows of one random series: real layers are large, and drawing them takes long.
            size = weight[0].numel()
            series = (torch.randn(size + 97 * experts, generator=generator) * shape[-1] ** -0.5).bfloat16()
            for e in range(experts):
                weight[e] = series[97 * e : 97 * e + size].view(shape[1:])
            self.register_parameter(name, torch.nn.Parameter(weight, requires_grad=False))


ORDERS = {MoEActivation.SWIGLUOAI: "interleaved"}


def right(layer: Layer, activation: MoEActivation, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor):
    """[M, H] in fp64, from the definition."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(len(x)):
        for weight, e in zip(weights[token].tolist(), ids[token].tolist(), strict=True):
            if e < 0:
                continue
            both = layer.w13_weight[e].double() @ x[token].double()
            if hasattr(layer, "w13_bias"):
                both += layer.w13_bias[e].double()
            gate, up = both.chunk(2)
            if activation in ORDERS:
                gate, up = both[::2].clamp(max=7), both[1::2].clamp(-7, 7)
                inner = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            elif activation is MoEActivation.SILU:
                inner = torch.nn.functional.silu(gate) * up
            else:
                kind = "tanh" if activation is MoEActivation.GELU_TANH else "none"
                inner = torch.nn.functional.gelu(gate, approximate=kind) * up
            expert = layer.w2_weight[e].double() @ inner
            if hasattr(layer, "w2_bias"):
                expert += layer.w2_bias[e].double()
            out[token] += weight * expert
    return out


def outcome(
    experts: Any, layer: Layer, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, **changes: Any
) -> torch.Tensor:
    experts.process_weights_after_loading(layer)
    output = torch.empty_like(x)
    options = {"expert_map": None, "apply_router_weight_on_input": False} | changes
    nothing = dict.fromkeys(("a1q_scale", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta"))
    experts.apply(
        output=output,
        hidden_states=x,
        w1=layer.w13_weight,
        w2=layer.w2_weight,
        topk_weights=weights,
        topk_ids=ids,
        activation=experts.moe_config.activation,
        global_num_experts=experts.moe_config.num_experts,
        **nothing,
        **options,
    )
    return output


def inputs(tokens: int, hidden: int, experts: int, topk: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, hidden, generator=generator).bfloat16()
    weights, ids = torch.randn(tokens, experts, generator=generator).softmax(dim=-1).topk(topk)
    return x, weights, ids.to(torch.int32)


SHAPES = {
    "tiny": (8, 64, 96),
    "gpt-oss-20b": (32, 2880, 2880),
    "gemma-4-26b-a4b": (128, 2816, 704),
    "qwen3-30b-a3b": (128, 2048, 768),
}
KINDS = {
    "tiny": (MoEActivation.GELU, True),
    "gpt-oss-20b": (MoEActivation.SWIGLUOAI, True),
    "gemma-4-26b-a4b": (MoEActivation.GELU_TANH, False),
    "qwen3-30b-a3b": (MoEActivation.SILU, False),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_is_as_close_to_fp64_as_on_vllms_kernel(shape: str):
    """Real layer shapes: one layer, packed, against the definition; and the memory of the originals is given back."""
    activation, bias = KINDS[shape]
    config = configuration(*SHAPES[shape], activation=activation, has_bias=bias)
    x, weights, ids = inputs(3, config.hidden_dim, config.num_experts, 4)
    errors = []
    own = unquantized.select_unquantized_moe_backend(config)[1]
    for cls in (own, MoelabExperts):
        layer = Layer(config, bias=bias)
        wanted = right(layer, activation, x, weights, ids)
        quant = biased_moe_quant_config(layer.w13_bias, layer.w2_bias) if bias else FusedMoEQuantConfig.make()
        original = layer.w2_weight
        got = outcome(cls(config, quant), layer, x, weights, ids)
        errors.append(float((got - wanted).norm() / wanted.norm()))
    assert errors[1] <= 1.1 * errors[0]
    assert errors[1] < 4e-3
    assert layer.w13_weight.dtype is torch.uint8
    if shape != "tiny":
        assert not original[1:-1].any()  # pages that went back to the system read zeros


def test_experts_of_other_processes_are_skipped():
    config = configuration()
    x, weights, ids = inputs(5, 64, 8, 3)
    layer = Layer(config, bias=False)
    expert_map = torch.tensor([0, -1, 1, 2, -1, 3, 4, 5], dtype=torch.int32)  # global to local, of 8 in all
    wanted = right(layer, MoEActivation.SILU, x, weights, expert_map[ids])
    got = outcome(MoelabExperts(config, FusedMoEQuantConfig.make()), layer, x, weights, ids, expert_map=expert_map)
    assert (got - wanted).norm() < 4e-3 * wanted.norm()


def test_router_weights_that_are_in_the_input_already():
    config = configuration()
    x, weights, ids = inputs(5, 64, 8, 1)
    layer = Layer(config, bias=False)
    wanted = right(layer, MoEActivation.SILU, x, torch.ones_like(weights), ids)
    experts = MoelabExperts(config, FusedMoEQuantConfig.make())
    got = outcome(experts, layer, x, weights, ids, apply_router_weight_on_input=True)
    assert (got - wanted).norm() < 4e-3 * wanted.norm()


def test_constants_of_the_layer_reach_the_kernel():
    config = configuration(activation=MoEActivation.SWIGLUOAI_UNINTERLEAVE, swiglu_limit=5.0, swiglu_alpha=1.5)
    gate = gate_of(config)
    assert gate is not None
    assert dataclasses.astuple(gate) == ("swigluoai", "split", 1.5, 5.0)


class TestSelection:
    @pytest.fixture(autouse=True)
    def untouched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(unquantized, "backend_to_kernel_cls", unquantized.backend_to_kernel_cls)
        monkeypatch.setattr(_selection.BaseModelLoader, "load_model", _selection.BaseModelLoader.load_model)
        monkeypatch.setitem(vllm.envs.environment_variables, "MOELAB_VLLM", None)

    @staticmethod
    def chosen() -> Any:
        return unquantized.select_unquantized_moe_backend(configuration())[1]

    @pytest.mark.parametrize("value", [None, "", "0"])
    def test_off(self, monkeypatch: pytest.MonkeyPatch, value: str | None):
        monkeypatch.delenv("MOELAB_VLLM", raising=False)
        if value is not None:
            monkeypatch.setenv("MOELAB_VLLM", value)
        moelab_kernels.vllm.register()
        assert issubclass(self.chosen(), CPUUnquantizedExperts)

    def test_on_once(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("MOELAB_VLLM", "1")
        moelab_kernels.vllm.register()
        moelab_kernels.vllm.register()
        assert self.chosen() is MoelabExperts
        assert unquantized.backend_to_kernel_cls(unquantized.UnquantizedMoeBackend.CPU).count(MoelabExperts) == 1
        # Graphs that vLLM has compiled and kept are told apart by this.
        assert moelab_kernels.isas()[0] in vllm.envs.compile_factors()["MOELAB_VLLM"]

    def test_another_release_of_vllm(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
        monkeypatch.setenv("MOELAB_VLLM", "1")
        monkeypatch.setattr(vllm, "__version__", "0.33.0")
        monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
        moelab_kernels.vllm.register()
        assert issubclass(self.chosen(), CPUUnquantizedExperts)
        (record,) = caplog.records
        assert "moelab: stays off, this is vLLM 0.33.0 and moelab's plugin is made for 0.32" in record.getMessage()

    def test_quantised_layers_are_named_with_the_reason(self):
        method = type("Mxfp4MoEMethod", (), {})()
        assert "weights are quantised (Mxfp4MoEMethod)" in _selection._why_not(SimpleNamespace(quant_method=method))
