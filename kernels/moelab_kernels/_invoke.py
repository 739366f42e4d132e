"""The C call of the fused layer, and the checks that torch and numpy share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NoReturn

from moelab_kernels._lib import ACTIVATIONS, Layer, check, lib
from moelab_kernels._overlap import Place, first_overlap


@lru_cache(maxsize=1024)
def expected_layer(num_experts: int, hidden: int, intermediate: int, activation: str) -> Layer:
    """What the header of the packed weights must say; the library compares these four."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: {activation!r}, expected one of {', '.join(ACTIVATIONS)}")
    return Layer(
        activation=ACTIVATIONS.index(activation), num_experts=num_experts, hidden=hidden, intermediate=intermediate
    )


def run(packed_address: int, packed_bytes: int, expect: Layer, call: bytes) -> None:
    """The C call; `call` is packed by CALL."""
    status = lib.moelab_fused_moe(packed_address, packed_bytes, expect, call)
    if status:
        check(status)


def shape_error(name: str, shape: Any, expected: str) -> NoReturn:
    """ValueError for a shape."""
    raise ValueError(f"{name}: shape {list(shape)}, expected {expected}")


def check_shapes(x: Any, topk_weights: Any, topk_ids: Any, hidden: int) -> tuple[int, int]:
    """(M, K) of three torch tensors or numpy arrays; ValueError where their shapes do not fit."""
    shape, ids_shape = x.shape, topk_ids.shape
    if len(shape) != 2 or shape[1] != hidden:
        shape_error("x", shape, f"[M, {hidden}]")
    tokens: int = shape[0]
    if len(ids_shape) != 2 or ids_shape[0] != tokens or not ids_shape[1]:
        shape_error("topk_ids", ids_shape, f"[{tokens}, K], K at least 1")
    if topk_weights.shape != ids_shape:
        shape_error("topk_weights", topk_weights.shape, str(list(ids_shape)))
    return tokens, ids_shape[1]


def check_out(out: Place, x: Place, topk_weights: Place, topk_ids: Place, packed: Place) -> None:
    """ValueError where `out` has no unit last stride, overlaps itself or overlaps an input."""
    _, rows, columns, row_stride, column_stride, _ = out
    if not rows:  # no elements: numpy gives such arrays strides of zero
        return
    if column_stride != 1 and columns > 1:
        raise ValueError(f"out: last stride {column_stride}, expected 1")
    if row_stride < columns and rows > 1:
        raise ValueError(f"out: row stride {row_stride}, expected at least {columns}")
    index = first_overlap(out, (x, topk_weights, topk_ids, packed))
    if index is not None:
        name = ("x", "topk_weights", "topk_ids", "packed")[index]
        raise ValueError(f"out: overlaps {name}, expected memory of its own")
