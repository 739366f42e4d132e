"""Random weights from a seed, fast: billions of normal numbers would take minutes of the clock."""

from __future__ import annotations

import zlib
from typing import Any

# A prime, so that rows and experts, whose sizes are not multiples of it, all begin at other places of the pool.
POOL = 16_777_259
DEVIATION = 0.02  # what transformers' configurations call initializer_range


def fill(model: Any, seed: int) -> None:
    """Overwrites all parameters of a torch model: matrices and biases normal, norms and scales 1.

    A parameter's values follow from its name and the seed: slices of one pool of BF16 numbers, begun at a place of its
    own. Rows of one parameter repeat after 16.8 million numbers, in another expert and at another place of it.
    """
    import torch

    pool = (torch.randn(POOL, generator=torch.Generator().manual_seed(seed)) * DEVIATION).bfloat16()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if _stays_one(name, parameter.dim()):
                parameter.fill_(1.0)
                continue
            flat = parameter.data.view(-1)  # an error where it cannot be one: nothing may stay unfilled
            start = zlib.crc32(name.encode()) % POOL
            done = 0
            while done < flat.numel():
                piece = pool[start : start + flat.numel() - done]
                flat[done : done + piece.numel()] = piece.to(flat.dtype)
                done, start = done + piece.numel(), 0


def _stays_one(name: str, dimensions: int) -> bool:
    return dimensions < 2 and (name.endswith("weight") or "scale" in name)
