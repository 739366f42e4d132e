"""vLLM as its users run it: compiled graphs, several processes; and where it has to go on without us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NEW_TOKENS, LAYERS = 8, 2
PROMPTS = [[5, 9, 200, 33, 7], list(range(1, 40))]


def job(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [
        {
            "path": str(path),
            "options": {"dtype": "bfloat16", "enforce_eager": True} | options,
            "prompts": PROMPTS,
            "new_tokens": NEW_TOKENS,
        }
    ]


@pytest.fixture(scope="module")
def eager(saved: dict[str, Path], in_vllm: Callable[..., Any]) -> list[list[int]]:
    (result,) = in_vllm(job(saved["qwen3_moe"]), moelab="1").results
    return result["tokens"]


def as_good_as(tokens: list[list[int]], expected: list[list[int]]) -> bool:
    """Other sums round differently, and after a first difference everything may differ; not before it."""
    return all(a[:2] == b[:2] for a, b in zip(tokens, expected, strict=True))


def test_compiled_in_a_worker_process(saved: dict[str, Path], in_vllm: Callable[..., Any], eager: list[list[int]]):
    """vLLM's default; and what it compiled with the plugin is not what it runs without it, nor the other way round."""
    for moelab in ("1", None, "1"):
        ran = in_vllm(job(saved["qwen3_moe"], enforce_eager=False), moelab=moelab, inside=False)
        (result,) = ran.results
        (worker,) = result["workers"]
        assert worker["limit"] is None  # threads are not those of a forked child
        assert result["calls"] == [LAYERS * NEW_TOKENS * len(PROMPTS) if moelab else 0]
        assert as_good_as(result["tokens"], eager)


@pytest.mark.parametrize("expert_parallel", [False, True], ids=["tensor", "expert"])
def test_two_workers(
    saved: dict[str, Path], in_vllm: Callable[..., Any], eager: list[list[int]], expert_parallel: bool
):
    """Half of every expert in each of two processes, or half of the experts."""
    options = {"tensor_parallel_size": 2, "enable_expert_parallel": expert_parallel}
    # vLLM's own choice of CPUs gives every worker a NUMA node.
    cpus = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    ran = in_vllm(job(saved["qwen3_moe"], **options), moelab="1", inside=False, **cpus)
    (result,) = ran.results
    assert result["calls"] == [LAYERS * NEW_TOKENS * len(PROMPTS)] * 2
    assert as_good_as(result["tokens"], eager)


def test_fp32_stays_with_vllm(saved: dict[str, Path], in_vllm: Callable[..., Any]):
    ran = in_vllm(job(saved["qwen3_moe"], dtype="float32"), moelab="1")
    assert ran.results[0]["calls"] == [0]
    (line,) = ran.told()
    assert "2 MoE layers" in line
    assert "on vLLM's own kernels: the model computes in torch.float32, the kernels in BF16" in line


def test_a_value_that_is_neither(saved: dict[str, Path], in_vllm: Callable[..., Any]):
    ran = in_vllm(job(saved["qwen3_moe"]), moelab="yes", fails=True)
    assert "MOELAB_VLLM: 'yes', expected 1 (moelab's kernels) or 0 (vLLM's own)" in ran.log


def test_no_second_copy_of_the_weights(tmp_path: Path, in_vllm: Callable[..., Any]):
    """Two layers of the shapes of Qwen3-30B-A3B: peak memory after loading is below that of vLLM's own kernels."""
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        architectures=["Qwen3MoeForCausalLM"],
        vocab_size=256,
        hidden_size=2048,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
    )
    config.save_pretrained(tmp_path)
    layer = 128 * 3 * 768 * 2048 * 2
    peaks = []
    for moelab in (None, "1"):
        (result,) = in_vllm(job(tmp_path, load_format="dummy"), moelab=moelab).results
        assert result["calls"] == [LAYERS * NEW_TOKENS * len(PROMPTS) if moelab else 0]
        peaks.append(result["peak_bytes"])
    print(f"peak memory {peaks[0] / 2**30:.2f} GiB on vLLM's kernels, {peaks[1] / 2**30:.2f} GiB on moelab's")
    assert peaks[1] < peaks[0] - layer / 4
