"""Which experts the tokens of a real run go to: recorded from a model, whatever implementation its experts run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import numpy as np
import torch


class Routing:
    """The calls of a model's experts modules, by the modules' names in the order of the model.

    calls[name] is a list with one (topk_ids [M, K] int32, topk_weights [M, K] fp32) per call: usually one for the
    prompt and one for each token that was generated after it.
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(topk_ids, topk_weights) of all calls of one experts module, counted from 0.

        Raises IndexError for a layer that the model does not have, ValueError where it was never called.
        """
        names = list(self.calls)
        if not 0 <= layer < len(names):
            raise IndexError(f"layer {layer}: the model has {len(names)} experts modules, counted from 0")
        calls = self.calls[names[layer]]
        if not calls:
            raise ValueError(f"{names[layer]}: was not called while its routing was recorded")
        ids, weights = zip(*calls, strict=True)
        return torch.cat(ids), torch.cat(weights)

    def save(self, path: str | PathLike[str], *, layer: int, model: str, source: str) -> None:
        """Writes one layer's routing as the .npz that `moelab bench --routing trace:FILE` replays.

        model: its name. source: where the tokens came from, in a sentence.
        """
        ids, weights = self.rows(layer)
        np.savez_compressed(
            path,
            topk_ids=ids.numpy(),
            topk_weights=weights.numpy(),
            model=np.array(model),
            layer=np.array(layer),
            source=np.array(source),
        )


@contextmanager
def record_routing(model: torch.nn.Module) -> Iterator[Routing]:
    """Records the routing of all experts modules of a transformers model while the context is open.

    Not for models compiled by torch.compile, whose modules are not called one by one.

    Raises ValueError where the model has no modules of transformers' experts interface.
    """
    routing = Routing()
    handles = []
    for name, module in model.named_modules():
        if hasattr(module, "_is_expert_parallel") and hasattr(module, "_apply_gate"):
            routing.calls[name] = []
            handles.append(module.register_forward_pre_hook(_appending(routing.calls[name])))
    if not handles:
        raise ValueError(f"{type(model).__name__}: has no experts of transformers' experts interface")
    try:
        yield routing
    finally:
        for handle in handles:
            handle.remove()


def _appending(calls: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    def hook(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        _, top_k_index, top_k_weights = arguments
        # Copies in any case: a model may reuse its buffers.
        ids, weights = top_k_index.detach().to("cpu", torch.int32), top_k_weights.detach().to("cpu", torch.float32)
        calls.append((ids.clone(), weights.clone()))

    return hook
