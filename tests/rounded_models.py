"""Whole models in fp32, with what rounding to BF16 may do to their outputs: the bound of a BF16 model's error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

SPREAD = 8.0  # standard deviations, as in the harness's error model

Call = tuple[torch.Tensor, torch.Tensor]  # topk_ids, topk_weights


class RandomRounding(TorchDispatchMode):
    """Rounds the fp32 result of every operation to BF16, up or down at random with the mean kept.

    What a BF16 model does, but for the direction: its roundings to nearest have half of this variance.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float32 and not func.is_view:
                dense = tensor.contiguous()
                noise = torch.randint(0, 1 << 16, dense.shape, dtype=torch.int32, generator=self.generator)
                rounded = ((dense.view(torch.int32) + noise) & -0x10000).view(torch.float32)
                tensor.copy_(torch.where(dense.isfinite(), rounded, dense))
        return out


class Replay:
    """An experts implementation: eager, but tokens that took other experts in a recorded run take those.

    Which experts a token takes is a choice that no error bound can cover: near a tie, the smallest error changes it.
    """

    def __init__(self, calls: Iterable[Call]) -> None:
        self.calls = list(calls)
        self.position = 0

    def __call__(self, module: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        recorded_ids, recorded_weights = self.calls[self.position]
        self.position = (self.position + 1) % len(self.calls)
        other = (ids.sort(dim=-1).values != recorded_ids.sort(dim=-1).values).any(dim=-1, keepdim=True)
        ids, weights = torch.where(other, recorded_ids.to(ids), ids), torch.where(other, recorded_weights, weights)
        return type(module).forward.__wrapped__(module, x, ids, weights)


def exact_and_deviation(
    model: Any, outputs: Callable[[], torch.Tensor], calls: Iterable[Call]
) -> tuple[torch.Tensor, torch.Tensor]:
    """outputs() [..., V] of the fp32 model, and [..., 1] their standard deviation when operations round at random.

    calls: the routing of the run in question, one call of each experts module in the order of the model.
    """
    ALL_EXPERTS_FUNCTIONS["replay"] = Replay(calls)
    model.set_experts_implementation("replay")
    exact = outputs()
    squares = []
    for seed in range(4):
        with RandomRounding(seed):
            squares.append((outputs() - exact).square().mean(dim=-1, keepdim=True))
    return exact, torch.stack(squares).mean(dim=0).sqrt()
