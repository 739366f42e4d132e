"""A random layer, and its right output in fp64 from the definition: what the tests of the Python face compare with.

Nothing here comes from the product. BF16 values are uint16 bits until a test asks for them in a container.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
Float64 = npt.NDArray[np.float64]

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swigluoai")
CONTAINERS = ("torch", "ml_dtypes", "uint16")
ALPHA, LIMIT = 1.702, 7.0


def widen(bits: Bits) -> Float64:
    """BF16 bits as fp64."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def round_to_bits(values: npt.NDArray[Any]) -> Bits:
    """fp32 values rounded to BF16, to nearest even."""
    word = np.asarray(values, np.float32).view(np.uint32)
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)


def contain(bits: Bits, container: str) -> Any:
    """BF16 bits as an array of a container; strides are kept."""
    if container == "torch":
        import torch

        return torch.from_numpy(bits).view(torch.bfloat16)
    if container == "ml_dtypes":
        import ml_dtypes

        return bits.view(ml_dtypes.bfloat16)
    return bits


def plain(array: npt.NDArray[Any], container: str) -> Any:
    """An array that is not BF16, as the container's framework has it."""
    if container == "torch":
        import torch

        return torch.from_numpy(array)
    return array


def bits_of(array: Any) -> Bits:
    """The BF16 bits of an array in any container."""
    if isinstance(array, np.ndarray):
        return array.view(np.uint16)
    import torch

    bits: Bits = array.contiguous().view(torch.uint16).numpy()
    return bits


def flags(container: str) -> dict[str, bool]:
    """The keyword that BF16 in uint16 needs."""
    return {"bf16_as_uint16": True} if container == "uint16" else {}


@dataclass(frozen=True)
class Layer:
    """Weights as BF16 bits, w13 split (gate rows, then up rows)."""

    w13: Bits
    w2: Bits
    w13_bias: npt.NDArray[np.float32] | None
    w2_bias: npt.NDArray[np.float32] | None
    activation: str

    @property
    def hidden(self) -> int:
        return int(self.w2.shape[1])

    @property
    def num_experts(self) -> int:
        return int(self.w2.shape[0])

    def reference(
        self,
        x: Bits,
        topk_weights: npt.NDArray[np.float32],
        topk_ids: npt.NDArray[Any],
        *,
        on_input: bool = False,
    ) -> tuple[Float64, Float64]:
        """(output [M, H], bound on the error of each element) in fp64.

        The bound: BF16 keeps 8 bits, so rounding the activations and the output costs 2**-9 of each; twice that
        leaves room for fp32 accumulation over the short sums used here.
        """
        out = np.zeros((x.shape[0], self.hidden))
        spread = np.zeros_like(out)
        for token, expert, weight in (
            (t, e, float(w))
            for t in range(x.shape[0])
            for e, w in zip(topk_ids[t], topk_weights[t], strict=True)
            if e != -1
        ):
            row = widen(x[token])
            if on_input:
                row = widen(round_to_bits((row * weight).astype(np.float32)))
            sums = widen(self.w13[expert]) @ row
            if self.w13_bias is not None:
                sums = sums + self.w13_bias[expert]
            gate, up = np.split(sums, 2)
            hidden = activate(self.activation, gate, up)
            result = widen(self.w2[expert]) @ hidden
            if self.w2_bias is not None:
                result = result + self.w2_bias[expert]
            factor = 1.0 if on_input else weight
            out[token] += factor * result
            spread[token] += abs(factor) * (np.abs(widen(self.w2[expert])) @ np.abs(hidden))
        return out, 2.0**-8 * (np.abs(out) + spread) + 1e-30


def activate(activation: str, gate: Float64, up: Float64) -> Float64:
    """The four gated activations, as their papers and models define them."""
    if activation == "swigluoai":
        gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT) + 1
    erf: Any = np.vectorize(math.erf)
    factors: dict[str, Callable[[], Any]] = {
        "silu": lambda: 1 / (1 + np.exp(-gate)),
        "gelu": lambda: 0.5 * (1 + erf(gate / math.sqrt(2))),
        "gelu_tanh": lambda: 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))),
        "swigluoai": lambda: 1 / (1 + np.exp(-ALPHA * gate)),
    }
    return np.asarray(gate * factors[activation]() * up, np.float64)


def make_layer(
    *,
    experts: int = 4,
    hidden: int = 40,
    intermediate: int = 24,
    activation: str = "silu",
    bias: bool = False,
    seed: int = 0,
) -> Layer:
    """Weights of a size that keeps activations around one."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> npt.NDArray[np.float32]:
        return random.standard_normal(shape, np.float32)

    return Layer(
        w13=round_to_bits(normal(experts, 2 * intermediate, hidden) / math.sqrt(hidden)),
        w2=round_to_bits(normal(experts, hidden, intermediate) / math.sqrt(intermediate)),
        w13_bias=normal(experts, 2 * intermediate) if bias else None,
        w2_bias=normal(experts, hidden) if bias else None,
        activation=activation,
    )


@dataclass(frozen=True)
class Inputs:
    """x as BF16 bits [M, H], router weights [M, K] fp32, ids [M, K]."""

    x: Bits
    topk_weights: npt.NDArray[np.float32]
    topk_ids: npt.NDArray[np.int64]

    def contained(self, container: str) -> tuple[Any, Any, Any]:
        """The three as arrays of a container."""
        return (
            contain(self.x, container),
            plain(self.topk_weights, container),
            plain(self.topk_ids, container),
        )


def make_inputs(layer: Layer, *, tokens: int = 5, topk: int = 2, seed: int = 1) -> Inputs:
    """Random tokens, routed uniformly."""
    random = np.random.default_rng(seed)
    return Inputs(
        x=round_to_bits(random.standard_normal((tokens, layer.hidden), np.float32)),
        topk_weights=random.random((tokens, topk), np.float32),
        topk_ids=random.integers(0, layer.num_experts, (tokens, topk)),
    )


def pack_arguments(layer: Layer, container: str) -> dict[str, Any]:
    """Keywords of moelab_kernels.pack for a layer."""
    biases = {"w13_bias": layer.w13_bias, "w2_bias": layer.w2_bias}
    return {
        "w13": contain(layer.w13, container),
        "w2": contain(layer.w2, container),
        **{name: plain(bias, container) for name, bias in biases.items() if bias is not None},
        "activation": layer.activation,
        **flags(container),
    }


def assert_close(out: Any, right: tuple[Float64, Float64]) -> None:
    """Every element within its bound."""
    expected, bound = right
    error = np.abs(widen(bits_of(out)) - expected)
    worst = np.unravel_index(np.argmax(error - bound), error.shape) if error.size else None
    assert np.all(error <= bound), f"{worst}: {widen(bits_of(out))[worst]}, expected {expected[worst]} ± {bound[worst]}"
