"""What a gate computes is found exactly: BF16 outputs would not tell neighbours apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from moelab_kernels.transformers._gate import Gate, find_gate

Gated = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def swigluoai(alpha: float, limit: float) -> Gated:
    def gate(g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        g = g.clamp(max=limit)
        return (u.clamp(-limit, limit) + 1) * g * torch.sigmoid(alpha * g)

    return gate


KNOWN: dict[str, tuple[Gated, tuple[str, float, float]]] = {
    "silu": (lambda g, u: functional.silu(g) * u, ("silu", 1.702, 7.0)),
    "gelu": (lambda g, u: functional.gelu(g) * u, ("gelu", 1.702, 7.0)),
    "gelu_tanh": (lambda g, u: functional.gelu(g, approximate="tanh") * u, ("gelu_tanh", 1.702, 7.0)),
    "fp32 inside": (lambda g, u: (functional.silu(g.float()) * u.float()).to(g.dtype), ("silu", 1.702, 7.0)),
    "gpt-oss": (swigluoai(1.702, 7.0), ("swigluoai", 1.702, 7.0)),
    "other constants": (swigluoai(1.25, 10.0), ("swigluoai", 1.25, 10.0)),
    "no limit": (swigluoai(1.0, float("inf")), ("swigluoai", 1.0, float("inf"))),
}

UNKNOWN: dict[str, Gated] = {
    "quick gelu": lambda g, u: g * torch.sigmoid(1.702 * g) * u,
    "clamped silu": lambda g, u: functional.silu(g.clamp(max=10)) * u.clamp(-10, 10),
    "clamp far out": lambda g, u: functional.silu(g) * u.clamp(-1e4, 1e4),
    "softcap": lambda g, u: functional.silu(g) * torch.tanh(u / 30) * 30,
    "relu": lambda g, u: functional.relu(g) * u,
    "up first": lambda g, u: functional.silu(u) * g,
    "scaled": lambda g, u: 1.01 * functional.silu(g) * u,
    "over the row": lambda g, u: functional.softmax(g, dim=-1) * u,
}


def in_order(gated: Gated, order: str) -> Callable[[torch.Tensor], torch.Tensor]:
    if order == "split":
        return lambda both: gated(*both.chunk(2, dim=-1))
    return lambda both: gated(both[..., ::2], both[..., 1::2])


@pytest.mark.parametrize("order", ["split", "interleaved"])
@pytest.mark.parametrize("name", KNOWN)
def test_known_gates(name: str, order: str):
    gated, (activation, alpha, limit) = KNOWN[name]
    found = find_gate(in_order(gated, order))
    assert isinstance(found, Gate)
    assert (found.activation, found.gate_up) == (activation, order)
    assert found.alpha == pytest.approx(alpha, rel=1e-7)
    assert found.limit == pytest.approx(limit, rel=1e-7)


@pytest.mark.parametrize("order", ["split", "interleaved"])
@pytest.mark.parametrize("name", UNKNOWN)
def test_gates_that_no_kernel_computes(name: str, order: str):
    assert find_gate(in_order(UNKNOWN[name], order)) is None


def test_gates_that_cannot_be_asked():
    def narrow(both: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("only BF16")

    def careful(both: torch.Tensor) -> torch.Tensor:
        assert both.shape[-1] == 80
        return both

    assert find_gate(narrow) is None
    assert find_gate(careful) is None
    assert find_gate(lambda both: both) is None
