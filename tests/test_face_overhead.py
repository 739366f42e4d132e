"""What a call through Python costs beyond the C call. Reported, never judged: time depends on the machine's company."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import moelab_kernels as mk
from face_layer import Inputs, flags, make_inputs, make_layer, pack_arguments
from moelab_kernels import _lib

HAS_TORCH = "torch" in sys.modules
ROUNDS, CALLS = 300, 20


def fastest(functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds of the fastest batch of each, batches interleaved."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(ROUNDS):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                function()
            best[name] = min(best[name], (time.perf_counter() - start) / CALLS * 1e6)
    return best


def c_call(packed: mk.PackedExperts, case: Inputs) -> Callable[[], Any]:
    """The C function with everything prepared."""
    x, weights, ids, out = case.x, case.topk_weights, case.topk_ids, case.x.copy()
    addresses = [array.ctypes.data for array in (x, weights, ids, out)]
    call = _lib.CALL.pack(
        addresses[0], 16, 1, 1, addresses[1], 1, 1, addresses[2], True, 1, 1, addresses[3], 16, False, 1
    )
    function = _lib.lib.moelab_fused_moe

    def run(keep: Any = (x, weights, ids, out)) -> Any:
        return function(packed._address, packed.nbytes, packed._layer, call)

    return run


def op_call(packed: mk.PackedExperts, case: Inputs) -> Callable[[], Any]:
    """torch.ops.moelab.fused_moe."""
    import torch

    x, weights, ids = case.contained("torch")
    geometry = (packed.num_experts, packed.hidden, packed.intermediate, packed.activation)
    return partial(torch.ops.moelab.fused_moe, x, packed.tensor, weights, ids, *geometry, False, 1)


def test_overhead_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    layer = make_layer(experts=2, hidden=16, intermediate=8)
    case = make_inputs(layer, tokens=1, topk=1)
    packed = mk.pack(**pack_arguments(layer, "uint16"))
    functions = {"C call": c_call(packed, case)}
    for container in ("torch", "uint16") if HAS_TORCH else ("uint16",):
        arguments = case.contained(container)
        options: dict[str, Any] = {"num_threads": 1, **flags(container)}
        face = partial(mk.fused_moe, arguments[0], packed, *arguments[1:], **options)
        functions[f"fused_moe on {container}"] = face
        functions[f"fused_moe on {container} with out"] = partial(face, out=arguments[0] * 0)
    if HAS_TORCH:
        functions["torch op"] = op_call(packed, case)
    microseconds = fastest(functions)
    base = microseconds.pop("C call")
    with capsys.disabled():
        costs = ", ".join(f"{name} {cost - base:.1f}" for name, cost in microseconds.items())
        print(f"\nmicroseconds over a C call of {base:.1f}: {costs}")
    assert all(0 < cost < float("inf") for cost in microseconds.values())
