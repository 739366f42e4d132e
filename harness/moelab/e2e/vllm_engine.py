"""vLLM on the CPU, with its own experts or with ours through the plugin (MOELAB_VLLM=1); batches are continuous.

The engine runs in this process, step by step, so that every step can be timed. What is generated is vLLM's own greedy
choice. Without torch.compile (enforce_eager): compiled graphs leave no place for timers around the experts.
"""

from __future__ import annotations

import os
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from moelab.e2e.cells import Cell
from moelab.e2e.engine_worker import TOP
from moelab.e2e.models import Variant

Json = dict[str, Any]

CACHE_BYTES = 1 << 30
SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}


class Engine:
    """See `engine_worker.Engine`. `name` is "vllm" or "vllm+moelab"."""

    def __init__(self, name: str, threads: int) -> None:
        os.environ |= SETTINGS | {"MOELAB_VLLM": "1" if name == "vllm+moelab" else "0"}
        import vllm

        self.name = name
        self.threads = threads
        self.version = str(vllm.__version__)
        self.isa: str | None = None
        if name == "vllm+moelab":
            import moelab_kernels

            self.isa = moelab_kernels.isas()[0]
        self.llm: Any = None
        self._numbers = count()
        self._experts_seconds = 0.0
        self._experts: list[Any] = []

    def facts(self) -> Json:
        notes = {"enforce_eager": True, "prefix caching": False, "tokens fed": "its own greedy choices"}
        return {"version": self.version, "isa": self.isa, "batching": "continuous", "notes": notes}

    def load(self, variant: Variant, most_tokens: int, most_sequences: int) -> None:
        from vllm import LLM

        self.llm = LLM(
            model=variant.path,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=max(most_tokens, 64),
            max_num_seqs=max(most_sequences, 4),
            kv_cache_memory_bytes=CACHE_BYTES,
            enforce_eager=True,
            enable_prefix_caching=False,
            async_scheduling=False,
            max_logprobs=TOP,
        )
        import torch

        if torch.get_num_threads() != self.threads:  # vLLM has ideas of its own; the others run with this number
            raise RuntimeError(f"vLLM runs {torch.get_num_threads()} threads, not {self.threads}")
        self._experts = self.llm.apply_model(_routed_experts)[0]
        if not self._experts:
            raise RuntimeError(f"{variant.name}: vLLM has no RoutedExperts in this model")
        if self.name == "vllm+moelab":
            _require_ours(self._experts)

    def top(self, prompts: list[list[int]], continuation: list[int]) -> tuple[Any, Any, Any]:
        from vllm import SamplingParams

        settings = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=TOP, logprobs=TOP, detokenize=False)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        found = []
        for answer in self.llm.generate(given, settings, use_tqdm=False):
            rows = [*answer.prompt_logprobs[1:], answer.outputs[0].logprobs[0]]
            found += [sorted(((p.logprob, i) for i, p in row.items()), reverse=True)[:TOP] for row in rows]
        ids = np.array([[i for _, i in row] for row in found])
        return ids, np.array([[p for p, _ in row] for row in found]), None

    def noise(self, prompts: list[list[int]], continuation: list[int]) -> Any:
        raise NotImplementedError("vLLM is not the reference")

    def run(self, cell: Cell, ids: list[list[int]]) -> Json:
        """ids: one row per sequence, of which the prompt is used."""
        self._experts_seconds = 0.0
        prompts = [row[:length] for row, length in zip(ids, cell.prompts, strict=True)]
        if cell.phase == "decode":
            return self._decode(prompts, cell.outputs[0])
        start = perf_counter()
        times = self._all(prompts, cell.outputs)
        seconds = perf_counter() - start
        first = float(np.mean([t[0] - start for t in times]))
        steps = [(t[-1] - t[0]) / (len(t) - 1) for t in times if len(t) > 1]
        return {"seconds": seconds, "first_token": first, "per_token": float(np.mean(steps)) if steps else None}

    def _decode(self, prompts: list[list[int]], steps: int) -> Json:
        """seconds of one step of the whole batch, once all prompts are done and one step more."""
        names = self._add(prompts, [steps + len(prompts) + 64] * len(prompts))
        tokens = dict.fromkeys(names, 0)
        while min(tokens.values()) < 2:
            self._step(tokens)
        self._experts_seconds = 0.0
        before, start = sum(tokens.values()), perf_counter()
        for _ in range(steps):
            self._step(tokens)
        seconds = (perf_counter() - start) / steps
        self._experts_seconds /= steps
        made = sum(tokens.values()) - before
        self.llm.llm_engine.abort_request(names)
        while self.llm.llm_engine.has_unfinished_requests():
            self.llm.llm_engine.step()
        if made != steps * len(prompts):
            raise RuntimeError(f"{steps} steps of {len(prompts)} sequences made {made} tokens: not all decode at once")
        return {"seconds": seconds, "first_token": None, "per_token": seconds}

    def _all(self, prompts: list[list[int]], outputs: tuple[int, ...]) -> list[list[float]]:
        """Runs requests to their ends; when each token of each came."""
        names = self._add(prompts, outputs)
        tokens = dict.fromkeys(names, 0)
        times: dict[str, list[float]] = {name: [] for name in names}
        while self.llm.llm_engine.has_unfinished_requests():
            before = dict(tokens)
            self._step(tokens)
            now = perf_counter()
            for name in names:
                times[name] += [now] * (tokens[name] - before[name])
        return list(times.values())

    def _add(self, prompts: list[list[int]], outputs: Any) -> list[str]:
        from vllm import SamplingParams

        names = []
        for prompt, length in zip(prompts, outputs, strict=True):
            names.append(str(next(self._numbers)))
            settings = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
            self.llm.llm_engine.add_request(names[-1], {"prompt_token_ids": prompt}, settings)
        return names

    def _step(self, tokens: dict[str, int]) -> None:
        for answer in self.llm.llm_engine.step():
            tokens[answer.request_id] = len(answer.outputs[0].token_ids)

    def time_experts(self, on: bool) -> None:
        for module in self._experts:
            for name in ("forward_modular", "forward_monolithic"):
                if on:
                    setattr(module, name, self._timed(getattr(module, name)))
                else:
                    delattr(module, name)

    def _timed(self, call: Any) -> Any:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self._experts_seconds += perf_counter() - start

        return timed

    def experts_seconds(self) -> float:
        return self._experts_seconds


def _routed_experts(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == "RoutedExperts"]


def _require_ours(experts: list[Any]) -> None:
    """RuntimeError where a layer is not on our kernels: the engine would not be what it says."""
    for module in experts:
        used = type(getattr(module.quant_method.moe_kernel, "fused_experts", None)).__name__
        if used != "MoelabExperts":
            raise RuntimeError(f"a layer runs on {used}, not on moelab's kernels")
