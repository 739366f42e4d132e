"""Whole models in vLLM: the plugin on and off against the fp32 model in transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from rounded_models import SPREAD, exact_and_deviation

NAMES = ("gpt_oss", "gemma4", "qwen3_moe", "mixtral")
LAYERS, NEW_TOKENS = 2, 32
PROMPTS = [[5, 9, 200, 33, 7], list(range(1, 40)), [77]]


class Both(NamedTuple):
    off: dict[str, Any]
    on: dict[str, Any]


def eager(path: Path, **more: Any) -> dict[str, Any]:
    return {
        "path": str(path),
        "options": {"enforce_eager": True, "dtype": "bfloat16"},
        "prompts": PROMPTS,
        "new_tokens": NEW_TOKENS,
        "record": True,
    } | more


@pytest.fixture(scope="module")
def runs(saved: dict[str, Path], in_vllm: Callable[..., Any]) -> dict[str, Both]:
    models = [eager(saved[name]) for name in NAMES]
    off, on = in_vllm(models, moelab=None), in_vllm(models, moelab="1")
    assert off.told() == []
    assert len(on.told()) == len(NAMES), on.told()
    assert all("compute 2 MoE layers, model.layers.0." in line for line in on.told())
    return {name: Both(*both) for name, *both in zip(NAMES, off.results, on.results, strict=True)}


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def fp32(name: str, saved: dict[str, Path]) -> Any:
    return AutoModelForCausalLM.from_pretrained(saved[name], dtype=torch.float32).eval()


def routing_of(run: dict[str, Any], prompt: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(topk_ids, topk_weights) of every token that went through the model, for each layer."""
    calls = run["routing"][prompt]
    assert len(calls) == LAYERS * NEW_TOKENS
    return [
        (
            torch.cat([torch.tensor(call["ids"]) for call in calls[layer::LAYERS]]),
            torch.cat([torch.tensor(call["weights"]) for call in calls[layer::LAYERS]]),
        )
        for layer in range(LAYERS)
    ]


def log_probabilities(model: Any, run: dict[str, Any], prompt: int) -> torch.Tensor:
    """[new tokens, V] of the fp32 model where `run` generated its tokens."""
    tokens = PROMPTS[prompt] + run["tokens"][prompt][:-1]
    logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -NEW_TOKENS:]
    return logits.float().log_softmax(dim=-1)


def compared(model: Any, run: dict[str, Any], prompt: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities [new tokens, V] of `run` and of the fp32 model, and their standard deviation."""
    exact, sigma = exact_and_deviation(model, lambda: log_probabilities(model, run, prompt), routing_of(run, prompt))
    return torch.tensor(run["logprobs"][prompt]), exact, sigma


@torch.no_grad()
def test_off_by_default_and_on_when_asked_for(name: str, runs: dict[str, Both]):
    """One call of our op for every layer and step; none without the variable."""
    assert runs[name].off["calls"] == [0]
    assert runs[name].on["calls"] == [LAYERS * NEW_TOKENS * len(PROMPTS)]


@torch.no_grad()
def test_log_probabilities_and_tokens(name: str, runs: dict[str, Both], fp32: Any):
    """Within the bound of a BF16 model of the fp32 one, and as close as vLLM's own kernels are."""
    squares: dict[str, list[torch.Tensor]] = {"off": [], "on": []}
    for which, run in runs[name]._asdict().items():
        for prompt in range(len(PROMPTS)):
            got, exact, sigma = compared(fp32, run, prompt)
            assert ((got - exact).abs() <= 2 * SPREAD * sigma).all()
            # Every token is the fp32 model's best one, or as good as that, as far as BF16 can tell.
            chosen = exact.gather(1, torch.tensor(run["tokens"][prompt])[:, None])
            assert (exact.max(dim=1, keepdim=True).values - chosen <= 2 * SPREAD * sigma).all()
            squares[which].append((got - exact).square().mean())
    off, on = (torch.stack(squares[which]).mean().sqrt() for which in ("off", "on"))
    assert on <= 1.25 * off


@torch.no_grad()
def test_the_bound_would_notice_the_experts(name: str, runs: dict[str, Both], fp32: Any):
    """Without its experts the model is far outside of it, so a wrong expert layer would be as well."""
    _, exact, sigma = compared(fp32, runs[name].on, 1)
    ALL_EXPERTS_FUNCTIONS["none"] = lambda module, x, ids, weights: torch.zeros_like(x)
    fp32.set_experts_implementation("none")
    without = log_probabilities(fp32, runs[name].on, 1)
    assert ((without - exact).abs() > 2 * SPREAD * sigma).float().mean() > 0.1
