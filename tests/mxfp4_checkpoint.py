"""A tiny random gpt-oss as its makers publish it: expert weights in MXFP4, everything else in BF16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM

EXPERTS, HIDDEN, INTERMEDIATE, BLOCK = 8, 64, 96, 32
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
SETTINGS: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}


def save(folder: Path) -> dict[str, torch.Tensor]:
    """Writes it; the values of its expert weights by the names that they have in transformers."""
    torch.manual_seed(0)
    config = GptOssConfig(**SETTINGS)
    state = {name: value.bfloat16() for name, value in GptOssForCausalLM(config).state_dict().items()}
    values = {}
    for name in [name for name in state if name.endswith(("gate_up_proj", "down_proj"))]:
        rows, columns = (2 * INTERMEDIATE, HIDDEN) if "gate_up" in name else (HIDDEN, INTERMEDIATE)
        codes = torch.randint(0, 16, (EXPERTS, rows, columns // BLOCK, BLOCK), dtype=torch.uint8)
        scales = torch.randint(120, 124, (EXPERTS, rows, columns // BLOCK), dtype=torch.uint8)
        del state[name]
        state[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        state[f"{name}_scales"] = scales
        plain = torch.where(codes < 8, 1.0, -1.0) * FP4[(codes % 8).long()] * 2.0 ** (scales[..., None].float() - 127)
        values[name] = plain.flatten(-2).mT.bfloat16()
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    described = config.to_dict() | {
        "architectures": ["GptOssForCausalLM"],
        "dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    }
    (folder / "config.json").write_text(json.dumps(described))
    return values
