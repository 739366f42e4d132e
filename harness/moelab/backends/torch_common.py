"""What the backends that run on torch share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moelab.backends import amx
from moelab.backends.base import Backend, Facts, Output
from moelab.weights import Weights
from moelab.workloads import SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT, GateUp, Inputs, Layer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TorchInputs:
    """x bf16 [M, H], topk_weights fp32 [M, K], topk_ids int32 [M, K]."""

    x: Tensor
    topk_weights: Tensor
    topk_ids: Tensor


class TorchBackend(Backend):
    """A backend whose operations come from torch or from an extension of torch."""

    layer: Layer
    threads: int

    def unavailable(self) -> str | None:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            return f"torch cannot be imported: {error}"
        return None

    def process_settings(self, threads: int) -> Mapping[str, str]:
        return amx.onednn_settings()

    def start(self, layer: Layer, threads: int) -> None:
        """For `prepare`: remembers the layer and sets torch's threads."""
        import torch

        self.layer, self.threads = layer, threads
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    def result(self, out: object) -> Output:
        import torch

        assert isinstance(out, torch.Tensor)
        return np.asarray(out.contiguous().view(torch.uint16).numpy())

    def describe(self) -> Facts:
        import torch

        return {
            "version": torch.__version__,
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
            "torch_parallel": _parallel_library(),
            "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA"),
            "amx": amx.in_onednn(),
        }


def _parallel_library() -> str:
    import torch

    text: str = torch.__config__.parallel_info()
    return next((line.strip() for line in text.splitlines() if line.startswith("ATen parallel backend")), "unknown")


def bf16_tensor(bits: npt.NDArray[np.uint16]) -> Tensor:
    """The same memory as a BF16 tensor."""
    import torch

    return torch.from_numpy(bits).view(torch.bfloat16)


def own_copy(bits: npt.NDArray[np.uint16]) -> Tensor:
    """A BF16 tensor in torch's own memory, as a loaded model's parameter is."""
    return bf16_tensor(bits).clone()


def bias_tensor(bias: npt.NDArray[np.float32] | None, dtype: Any) -> Tensor | None:
    """Biases in the type that a backend takes. Workloads' biases are BF16 numbers, so nothing is lost."""
    import torch

    return None if bias is None else torch.from_numpy(bias).to(dtype, copy=True)


def load_extension(name: str, path: Path) -> None:
    """Loads a library of torch operators. RuntimeError with the loader's own words."""
    import torch

    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise RuntimeError(f"{name}: {path} cannot be loaded with torch {torch.__version__}: {error}") from error


def torch_inputs(inputs: Inputs) -> TorchInputs:
    import torch

    return TorchInputs(
        own_copy(inputs.x), torch.from_numpy(inputs.topk_weights).clone(), torch.from_numpy(inputs.topk_ids).clone()
    )


def rows_ordered(
    weights: Weights, layer: Layer, order: GateUp
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.float32] | None]:
    """w13 and its bias with rows in the order that a library expects; the arrays themselves if they have it."""
    if layer.gate_up == order:
        return weights.w13, weights.w13_bias
    inner = layer.intermediate
    if order == "split":
        rows = np.concatenate((np.arange(0, 2 * inner, 2), np.arange(1, 2 * inner, 2)))
    else:
        rows = np.stack((np.arange(inner), np.arange(inner, 2 * inner)), axis=1).ravel()
    # np.take: indexing with an array would leave the rows in another order in memory.
    bias = weights.w13_bias
    return np.take(weights.w13, rows, axis=1), None if bias is None else np.take(bias, rows, axis=1)


def no_skipped_slots(inputs: Inputs, name: str) -> None:
    """For backends without a notion of id -1. Raises ValueError."""
    skipped = np.argwhere(inputs.topk_ids < 0)
    if len(skipped):
        token, slot = skipped[0]
        raise ValueError(f"topk_ids[{token}, {slot}] is {inputs.topk_ids[token, slot]}: {name} cannot skip slots")


def activated(gate_up: Tensor, layer: Layer) -> Tensor:
    """act(gate) * up of BF16 [n, 2I] the way model code in torch writes it: BF16 after each operation."""
    import torch
    from torch.nn import functional

    if layer.gate_up == "interleaved":
        gate, up = gate_up[:, ::2], gate_up[:, 1::2]
    else:
        gate, up = gate_up[:, : layer.intermediate], gate_up[:, layer.intermediate :]
    if layer.activation == "swigluoai":
        gate = gate.clamp(max=SWIGLUOAI_LIMIT)
        up = up.clamp(min=-SWIGLUOAI_LIMIT, max=SWIGLUOAI_LIMIT)
        return (up + 1) * (gate * torch.sigmoid(gate * SWIGLUOAI_ALPHA))
    if layer.activation == "silu":
        return functional.silu(gate) * up
    return functional.gelu(gate, approximate="tanh" if layer.activation == "gelu_tanh" else "none") * up
