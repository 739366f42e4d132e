"""What a model's experts compute between their two products, found by asking them.

transformers calls `module._apply_gate(gate_up)`, which models override: other orders of gate and up, clamps, offsets.
Reading attributes would trust names; numbers cannot mislead: the function is called on a spread of values and compared
with what the kernels compute.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from moelab_kernels._gate import Gate
from moelab_kernels._pack import GateUp

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Models that compute the gate in fp32 are off by some 1e-7 of fp64; the closest two candidates (both kinds of GELU)
# differ by 5e-4.
_TOLERANCE = 1e-5
_LARGE = 1e6  # beyond every clamp that a model might have

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
_SIMPLE = frozenset((bool, int, float, str, type(None), torch.dtype, *_FUNCTIONS))


def find_gate(apply_gate: Callable[[torch.Tensor], torch.Tensor]) -> Gate | None:
    """The kernels' arguments for `apply_gate`, [S, 2I] -> [S, I]; None where no kernel computes it."""
    with torch.no_grad(), torch.device("cpu"):
        gate, up = _probes()
        split = torch.cat((gate, up), dim=-1)
        interleaved = torch.stack((gate, up), dim=-1).flatten(-2)
        try:
            found = _find(apply_gate, "split", split, gate, up)
            return found or _find(apply_gate, "interleaved", interleaved, gate, up)
        except Exception:  # noqa: BLE001 - a model's own code: it takes no fp64, or no such shape, and says so its way
            return None


def gate_state(module: Any, without: frozenset[str]) -> tuple[Any, ...]:
    """What the module's gate can depend on, cheap to make and to compare: another one means that it has to be asked.

    without: names of parameters that have no part in it.
    """
    tensors = (*module._parameters.items(), *module._buffers.items())
    return (
        type(module)._apply_gate,
        _simple(module),
        [(child, _simple(child), _has_hooks(child)) for child in module._modules.values() if child is not None],
        [(id(t), t._version) for name, t in tensors if name not in without and t is not None and not t.is_inference()],
    )


def _simple(module: torch.nn.Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in module.__dict__.items() if type(value) in _SIMPLE]


def hooked(module: Any) -> str | None:
    """Name of a part of the module's gate whose outputs somebody wants to see or change."""
    return next((name for name, child in module._modules.items() if child is not None and _has_hooks(child)), None)


def _has_hooks(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _find(
    apply_gate: Callable[[torch.Tensor], torch.Tensor],
    order: GateUp,
    joined: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
) -> Gate | None:
    found = apply_gate(joined)
    if found.shape != gate.shape:
        return None
    for candidate, function in _candidates(apply_gate, order):
        wanted = function(gate, up)
        if torch.allclose(found.to(wanted), wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
            return candidate
    return None


def _probes() -> tuple[torch.Tensor, torch.Tensor]:
    """gate and up, each [64, 64] fp64: values around zero, where activations bend, and of every size up to 1e6."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(2, 64, 64, generator=generator, dtype=torch.float64)
    sizes = torch.logspace(-1, 6, 64, dtype=torch.float64)
    gate = spread[0] * sizes[:, None]
    up = spread[1] * sizes[torch.randperm(64, generator=generator)][:, None]
    return gate, up


def _candidates(apply_gate: Callable[[torch.Tensor], torch.Tensor], gate_up: GateUp) -> Iterator[tuple[Gate, Function]]:
    yield Gate("silu", gate_up), lambda g, u: functional.silu(g) * u
    yield Gate("gelu", gate_up), lambda g, u: functional.gelu(g) * u
    yield Gate("gelu_tanh", gate_up), lambda g, u: functional.gelu(g, approximate="tanh") * u
    constants = _swigluoai_constants(apply_gate, gate_up)
    if constants is not None:
        alpha, limit = constants

        def swigluoai(g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
            g, u = g.clamp(max=limit), u.clamp(-limit, limit)
            return g * torch.sigmoid(alpha * g) * (u + 1)

        yield Gate("swigluoai", gate_up, alpha, limit), swigluoai


def _swigluoai_constants(
    apply_gate: Callable[[torch.Tensor], torch.Tensor], gate_up: GateUp
) -> tuple[float, float] | None:
    """(alpha, limit) if `apply_gate` is f(g, u) = c(g) sigmoid(alpha c(g)) (clamp(u) + 1); None if it cannot be.

    f(large, large) / f(large, 0) = limit + 1, and f(1, 0) = sigmoid(alpha) for any limit of at least 1. The kernels
    hold both in fp32.
    """

    def at(gate: float, up: float) -> float:
        row = torch.tensor([gate] * 8 + [up] * 8 if gate_up == "split" else [gate, up] * 8, dtype=torch.float64)
        return float(apply_gate(row[None])[0, 0])

    at_one, at_large, at_both = at(1, 0), at(_LARGE, 0), at(_LARGE, _LARGE)
    if not (0 < at_one < 1 and at_large > 0 and at_both > at_large):
        return None
    alpha, limit = math.log(at_one / (1 - at_one)), at_both / at_large - 1
    if limit > _LARGE / 2:
        limit = math.inf
    return float(torch.tensor(alpha)), float(torch.tensor(limit))
