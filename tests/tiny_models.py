"""Tiny random models of every architecture in transformers that uses its experts interface, found by looking."""

from __future__ import annotations

import importlib
import inspect
from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers.models
from transformers import PretrainedConfig, PreTrainedModel

SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 48,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "moe_num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "n_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "enable_moe_block": True,
    "top_k_experts": 2,
    "mlp_only_layers": [],
    "full_attention_interval": 2,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_dense_layers": 1,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 8,
    "out_hidden_size": 64,
    "depth": 1,
    "canvas_length": 16,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

# What cannot be guessed from names, by class of configuration.
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
PECULIAR: dict[str, dict[str, Any]] = {
    "BailingHybridConfig": HYBRID,
    "BeamConfig": {"mlp_layer_types": ["dense", "sparse"]},
    "DeepseekOcr2TextConfig": {"mlp_layer_types": ["dense", "sparse"]},
    "Ernie4_5_VLMoeTextConfig": {
        "moe_intermediate_size": [40, 40],
        "rope_parameters": {**DEFAULT_ROPE, "mrope_section": [2, 2, 4]},
    },
    "Glm4vMoeTextConfig": {"rope_parameters": {**DEFAULT_ROPE, "mrope_section": [1, 1, 2]}},
    "Glm5NextTextConfig": {"qk_rope_head_dim": 0, "mlp_layer_types": ["dense", "sparse"], **HYBRID},
    "GraniteMoeHybridConfig": {"layer_types": ["mamba", "attention"]},
    "HYV4VLTextConfig": {"rope_parameters": {**DEFAULT_ROPE, "mrope_section": [2, 1, 1]}},
    "KimiLinearConfig": HYBRID,
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"]},
    "MiMoV2FlashConfig": {"num_key_value_heads": 2},
    "Mistral4Config": {"qk_nope_head_dim": 8},  # its rotary part has to be an exact fraction
    "MuseSparkAudioConfig": {"patch_sizes": [4, 4], "hidden_sizes": [16, 32], "depths": [1, 1]},
    "Qwen3NextConfig": HYBRID,
    "Qwen3OmniMoeThinkerConfig": {"vision_start_token_id": 3},
    "Qwen3_5MoeTextConfig": HYBRID,
    "Qwen4ExpTextConfig": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        **HYBRID,
    },
    "ZayaConfig": {"num_experts_per_tok": 1},
}


@cache
def architectures() -> tuple[str, ...]:
    """Names of the modeling modules that decorate experts with `use_experts_implementation`."""
    root = Path(transformers.models.__file__).parent
    return tuple(
        f"{file.parent.name}.{file.stem}"
        for file in sorted(root.glob("*/modeling_*.py"))
        if "@use_experts_implementation" in file.read_text()
    )


def model_classes(architecture: str) -> list[type[PreTrainedModel]]:
    """All models of the module that can be called."""
    module = importlib.import_module(f"transformers.models.{architecture}")
    return [
        c
        for c in vars(module).values()
        if inspect.isclass(c)
        and issubclass(c, PreTrainedModel)
        and c.__module__ == module.__name__
        and c.forward is not torch.nn.Module.forward
    ]


def model_class(architecture: str) -> type[PreTrainedModel]:
    """The model that gives logits for text."""
    for ending in ("ForCausalLM", "ForConditionalGeneration", "ForBlockDiffusion", "ForTokenClassification"):
        for c in model_classes(architecture):
            if c.__name__.endswith(ending) and "CodePredictor" not in c.__name__:
                return c
    raise AssertionError(f"{architecture}: none of its models gives logits for text")


def experts_classes(architecture: str) -> list[type[torch.nn.Module]]:
    """Experts that the module defines: one class, as a rule."""
    module = importlib.import_module(f"transformers.models.{architecture}")
    found = (c for c in vars(module).values() if inspect.isclass(c) and hasattr(c, "_apply_gate"))
    return [c for c in found if c.__module__ == module.__name__]


def tiny_experts(architecture: str, cls: type[torch.nn.Module]) -> torch.nn.Module:
    """One experts module in BF16, on any configuration of the architecture that it takes."""
    for model in model_classes(architecture):
        config = shrunk(model.config_class)
        try:
            module = cls(config)
        except (AttributeError, TypeError):
            continue
        config._experts_implementation = "moelab"
        randomise(module)
        return module.bfloat16().requires_grad_(False)
    raise AssertionError(f"{cls.__name__}: no configuration of {architecture} makes one")


def shrunk(config_class: type[PretrainedConfig]) -> PretrainedConfig:
    default = config_class()
    known = {f.name for f in fields(config_class)} | set(config_class.attribute_map)
    changes = {name: value for name, value in SMALL.items() if name in known}
    changes |= deepcopy(PECULIAR.get(config_class.__name__, {}))
    for name, sub in config_class.sub_configs.items():
        kind = type(getattr(default, name)) if sub.__name__ == "AutoConfig" else sub
        if kind is not type(None):
            changes[name] = shrunk(kind)
    return config_class(**changes)


def tiny_models(architecture: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The same model in fp32 and in BF16: weights that BF16 can hold, and experts that matter.

    Experts get larger weights than usual, and biases, so that their errors would show in the logits. The BF16 model is
    made as transformers makes one, with fp32 where the architecture insists on it.
    """
    cls = model_class(architecture)
    torch.manual_seed(0)
    fp32 = cls(shrunk(cls.config_class)).eval()
    with torch.no_grad():
        for experts in experts_of(fp32):
            randomise(experts)
        for parameter in fp32.parameters():
            parameter.copy_(parameter.bfloat16())
        bf16 = cls._from_config(shrunk(cls.config_class), dtype=torch.bfloat16).eval()
        bf16.load_state_dict(fp32.state_dict())
    return fp32, bf16


def randomise(experts: torch.nn.Module) -> None:
    """Weights and biases large enough to bend activations and reach some clamps."""
    with torch.no_grad():
        for parameter in experts._parameters.values():
            parameter.normal_(std=0.25 if parameter.dim() == 3 else 0.5)


def experts_of(model: torch.nn.Module) -> list[Any]:
    """The modules whose forward goes through the interface."""
    return [m for m in model.modules() if hasattr(type(m), "_apply_gate")]
