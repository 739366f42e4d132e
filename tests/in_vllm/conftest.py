"""Tiny random models on disk, and a way to run them in vLLM with the plugin on or off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma4TextConfig,
    GptOssConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
)

VOCABULARY = 256
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
CONFIGURATIONS: dict[str, Callable[[], PretrainedConfig]] = {
    "gpt_oss": lambda: GptOssConfig(
        **_COMMON, intermediate_size=96, num_local_experts=8, num_experts_per_tok=4, sliding_window=64
    ),
    "gemma4": lambda: Gemma4TextConfig(
        **_COMMON,
        intermediate_size=128,
        moe_intermediate_size=96,
        num_experts=8,
        top_k_experts=2,
        enable_moe_block=True,
        hidden_activation="gelu_pytorch_tanh",
        global_head_dim=32,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=0,
    ),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_COMMON, intermediate_size=128, moe_intermediate_size=96, num_experts=8, num_experts_per_tok=2
    ),
    "mixtral": lambda: MixtralConfig(**_COMMON, intermediate_size=96, num_local_experts=4, num_experts_per_tok=2),
}


class Ran(NamedTuple):
    results: list[dict[str, Any]]  # as engine.py describes them
    log: str

    def told(self) -> list[str]:
        """moelab's lines in vLLM's log."""
        return [line for line in self.log.splitlines() if "moelab: " in line]


def save_model(name: str, folder: Path) -> Path:
    """A model with random weights that BF16 holds, biases, norms and scales included, in a folder that vLLM loads."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGURATIONS[name](), dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            vector = weight.dim() == 1 or "bias" in parameter
            weight.copy_(weight + 0.1 * noise if vector else 0.09 * noise)
    model.save_pretrained(folder / name)
    return folder / name


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: save_model(name, folder) for name in CONFIGURATIONS}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: what vLLM finds out about a model class takes half a minute, and compiled graphs must not mix."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def in_vllm(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Callable[..., Ran]:
    """run(models, moelab=None or a value of MOELAB_VLLM, inside=True): inside one process, or as vLLM does."""

    def run(
        models: list[dict[str, Any]],
        *,
        moelab: str | None,
        inside: bool = True,
        fails: bool = False,
        **variables: str,
    ) -> Ran:
        folder = tmp_path_factory.mktemp("job")
        job, result = folder / "job.json", folder / "result.json"
        job.write_text(json.dumps({"models": models}))
        environment = {name: value for name, value in os.environ.items() if name != "MOELAB_VLLM"}
        environment |= {
            "VLLM_CACHE_ROOT": str(cache),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if inside else "1",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # engine.py's own functions, in its own workers
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        } | variables
        if moelab is not None:
            environment["MOELAB_VLLM"] = moelab
        command = [sys.executable, str(Path(__file__).with_name("engine.py")), str(job), str(result)]
        done = subprocess.run(
            command, env=environment, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert (done.returncode != 0) == fails, done.stdout[-6000:]
        return Ran([] if fails else json.loads(result.read_text()), done.stdout)

    return run
