"""transformers with one of its experts implementations: eager, grouped_mm (its default), or ours.

Requests of a mixed run are one static batch with padding on the left: everybody decodes until the longest output is
complete, and only tokens that were asked for are counted. The tokens that are fed while decoding come from outside:
with random weights, greedy choices soon repeat themselves, and repeated tokens go to the same experts. The best token
is looked for all the same, which is part of the work.
"""

from __future__ import annotations

import copy
import warnings
from time import perf_counter
from typing import Any

import numpy as np

from moelab.e2e.cells import Cell
from moelab.e2e.engine_worker import best_ids
from moelab.e2e.models import Variant, experts_of, make

Json = dict[str, Any]

HALF_ULP = 2.0**-8
"""Relative error of one rounding to BF16."""


class Engine:
    """See `engine_worker.Engine`. `name` is the experts implementation."""

    def __init__(self, name: str, threads: int) -> None:
        import torch
        import transformers

        self.name = name
        self.version = transformers.__version__
        self.isa: str | None = None
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        if name == "moelab":
            import moelab_kernels
            import moelab_kernels.transformers

            moelab_kernels.transformers.register(release=True)
            self.isa = moelab_kernels.isas()[0]
            # A layer that our kernels cannot run falls back with a warning: the engine would not be what it says.
            warnings.filterwarnings("error", message="moelab: ")
        self.model: Any = None
        self._contexts: dict[str, Any] = {}
        self._hooks: list[Any] = []
        self._experts_seconds = 0.0
        self._entered = 0.0

    def facts(self) -> Json:
        return {
            "version": self.version,
            "isa": self.isa,
            "batching": "static",
            "notes": {"padding": "left", "cache": "dynamic", "tokens fed": "from the seed, not the best ones"},
        }

    def load(self, variant: Variant, most_tokens: int, most_sequences: int) -> None:
        self.model = make(variant, self.name)
        used = self.model.config.get_text_config()._experts_implementation
        if used != self.name:
            raise RuntimeError(f"{type(self.model).__name__} runs its experts with {used!r}, not {self.name!r}")

    def top(self, prompts: list[list[int]], continuation: list[int]) -> tuple[Any, Any, Any]:
        everything = self._log_probabilities(prompts, continuation)
        ids = best_ids(everything)
        return ids, np.take_along_axis(everything, ids, 1), everything

    def noise(self, prompts: list[list[int]], continuation: list[int]) -> Any:
        import torch

        generator = torch.Generator().manual_seed(0)

        def rounded_once_more(module: Any, given: Any, out: Any) -> Any:
            if not torch.is_tensor(out) or not out.is_floating_point():
                return None
            draw = torch.rand(out.shape, generator=generator).mul_(2).sub_(1)
            return (out.float() * (1 + HALF_ULP * draw)).to(out.dtype)

        places = [m for m in self.model.modules() if isinstance(m, torch.nn.Linear)] + experts_of(self.model)
        handles = [place.register_forward_hook(rounded_once_more) for place in places]
        try:
            return self._log_probabilities(prompts, continuation)
        finally:
            for handle in handles:
                handle.remove()

    def _log_probabilities(self, prompts: list[list[int]], continuation: list[int]) -> Any:
        """[N, V] fp32: the prompts in one forward each, then the continuation of the last one step by step."""
        import torch

        rows = []
        for prompt in prompts:
            out = self.model(input_ids=torch.tensor([prompt]), use_cache=True)
            rows.append(out.logits[0])
        for token in continuation:
            out = self.model(input_ids=torch.tensor([[token]]), cache=out.cache, use_cache=True)
            rows.append(out.logits[0])
        return torch.cat(rows).float().log_softmax(-1).numpy()

    def run(self, cell: Cell, ids: list[list[int]]) -> Json:
        """ids: one row per sequence, its prompt and then the tokens that are fed to it while decoding."""
        self._experts_seconds = 0.0
        if cell.phase == "prefill":
            return self._prefill(ids)
        return self._decode(cell, ids) if cell.phase == "decode" else self._mixed(cell, ids)

    def _prefill(self, ids: list[list[int]]) -> Json:
        import torch

        given = torch.tensor(ids)
        start = perf_counter()
        self._step(given)
        seconds = perf_counter() - start
        return {"seconds": seconds, "first_token": seconds, "per_token": None}

    def _decode(self, cell: Cell, ids: list[list[int]]) -> Json:
        """seconds of one step of the whole batch; the context is made once and copied, so that it stays as long."""
        import torch

        length = cell.prompts[0]
        if cell.id not in self._contexts:
            context = torch.tensor([row[:length] for row in ids])
            self._contexts[cell.id] = self._step(context)
        cache = copy.deepcopy(self._contexts[cell.id])
        columns = torch.tensor([row[length:] for row in ids]).T.unsqueeze(-1)
        cache = self._step(columns[0], cache)  # not timed: the first one after another engine's turn
        self._experts_seconds = 0.0
        start = perf_counter()
        for column in columns[1:]:
            cache = self._step(column, cache)
        seconds = (perf_counter() - start) / (len(columns) - 1)
        self._experts_seconds /= len(columns) - 1
        return {"seconds": seconds, "first_token": None, "per_token": seconds}

    def _mixed(self, cell: Cell, ids: list[list[int]]) -> Json:
        import torch

        longest, steps = max(cell.prompts), max(cell.outputs)
        padded = torch.zeros((cell.batch, longest), dtype=torch.int64)
        mask = torch.zeros((cell.batch, longest + steps), dtype=torch.int64)
        for row, (tokens, length) in enumerate(zip(ids, cell.prompts, strict=True)):
            padded[row, longest - length :] = torch.tensor(tokens[:length])
            mask[row, longest - length :] = 1
        fed = torch.tensor([tokens[-steps:] for tokens in ids]).T.unsqueeze(-1)
        places = torch.tensor(cell.prompts)[:, None]
        start = perf_counter()
        position = (mask[:, :longest].cumsum(-1) - 1).clamp(min=0)
        cache = self._step(padded, attention_mask=mask[:, :longest], position_ids=position)
        first = perf_counter() - start
        for step in range(steps - 1):  # the first output token is the prefill's
            seen = longest + step + 1
            cache = self._step(fed[step], cache, attention_mask=mask[:, :seen], position_ids=places + step)
        seconds = perf_counter() - start
        return {"seconds": seconds, "first_token": first, "per_token": (seconds - first) / max(1, steps - 1)}

    def _step(self, ids: Any, cache: Any = None, **more: Any) -> Any:
        """A forward and the choice of the best next token; the cache after it."""
        import torch

        # As a tensor: for the number 1 transformers slices, and torch multiplies a batch of such slices with as many
        # copies of the output matrix, gigabytes each.
        last = torch.tensor([ids.shape[1] - 1])
        out = self.model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=last, **more)
        out.logits[:, -1].argmax(-1)
        return out.cache

    def time_experts(self, on: bool) -> None:
        if not on:
            for handle in self._hooks:
                handle.remove()
            self._hooks = []
            return

        def enter(module: Any, given: Any) -> None:
            self._entered = perf_counter()

        def leave(module: Any, given: Any, out: Any) -> None:
            self._experts_seconds += perf_counter() - self._entered

        for module in experts_of(self.model):
            self._hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def experts_seconds(self) -> float:
        return self._experts_seconds
