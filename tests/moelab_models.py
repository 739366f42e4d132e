"""What the tests of the experts implementation share: two tiny models on it, without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import moelab_kernels.transformers
from moelab_kernels.transformers import _experts
from tiny_models import tiny_models

QWEN, GPT_OSS = "qwen3_moe.modeling_qwen3_moe", "gpt_oss.modeling_gpt_oss"
TOKENS = torch.randint(3, 128, (1, 7), generator=torch.Generator().manual_seed(1))


@contextmanager
def registered() -> Iterator[None]:
    """The implementation with its defaults, and no warning given yet."""
    moelab_kernels.transformers.register()
    _experts._told.clear()
    with torch.no_grad():
        yield
    moelab_kernels.transformers.register()


def on_moelab(architecture: str) -> Any:
    """A tiny BF16 model."""
    _, model = tiny_models(architecture)
    model.set_experts_implementation("moelab")
    return model


def logits(model: Any) -> torch.Tensor:
    result: torch.Tensor = model(input_ids=TOKENS, use_cache=False).logits
    return result
