"""The fused layer on numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moelab_kernels import _openmp
from moelab_kernels._arrays import aligned, is_bf16
from moelab_kernels._invoke import check_out, check_shapes, run, shape_error
from moelab_kernels._lib import CALL
from moelab_kernels._memory import address_of
from moelab_kernels._overlap import Place
from moelab_kernels._packed import PackedExperts


def fused_moe(
    x: npt.NDArray[Any],
    packed: PackedExperts,
    topk_weights: npt.NDArray[Any],
    topk_ids: npt.NDArray[Any],
    out: npt.NDArray[Any] | None,
    on_input: bool,
    num_threads: int | None,
    bf16_as_uint16: bool,
) -> npt.NDArray[Any]:
    """The numpy half of `moelab_kernels.fused_moe`."""
    for name, array in (("topk_weights", topk_weights), ("topk_ids", topk_ids)):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name}: {type(array).__name__}, expected a numpy array like x")
    _check_bf16("x", x, bf16_as_uint16)
    tokens, topk = check_shapes(x, topk_weights, topk_ids, packed.hidden)
    if topk_ids.dtype != np.int64 and topk_ids.dtype != np.int32:  # noqa: PLR1714 - `in` takes twice as long
        raise TypeError(f"topk_ids: dtype {topk_ids.dtype}, expected int32 or int64")
    rows = aligned(x)
    if rows.strides[1] != 2:
        rows = np.ascontiguousarray(rows)
    weights = aligned(_float_weights(topk_weights, bf16_as_uint16))
    ids = aligned(topk_ids)
    rows_place, weights_place, ids_place = _place(rows), _place(weights), _place(ids)
    if out is None:
        out = np.empty(x.shape, x.dtype)
        out_place = _place(out)
    else:
        _check_out(out, x, bf16_as_uint16)
        out_place = _place(out)
        check_out(
            out_place,
            rows_place if rows is x else _place(x),
            weights_place if weights is topk_weights else _place(topk_weights),
            ids_place if ids is topk_ids else _place(topk_ids),
            (packed._address, 1, packed.nbytes, 0, 1, 1),
        )
    call = CALL.pack(
        rows_place[0],
        rows_place[3],
        tokens,
        topk,
        weights_place[0],
        *weights_place[3:5],
        ids_place[0],
        ids_place[5] == 8,
        *ids_place[3:5],
        out_place[0],
        out_place[3],
        on_input,
        _openmp.resolve(num_threads),
    )
    run(packed._address, packed.nbytes, packed._layer, call)
    return out


def _check_bf16(name: str, array: npt.NDArray[Any], bf16_as_uint16: bool) -> None:
    if is_bf16(array.dtype) or (bf16_as_uint16 and array.dtype == np.uint16):
        return
    hint = "; pass bf16_as_uint16=True for BF16 bits" if array.dtype == np.uint16 else ""
    raise TypeError(f"{name}: dtype {array.dtype}, expected bfloat16 (ml_dtypes){hint}")


def _float_weights(weights: npt.NDArray[Any], bf16_as_uint16: bool) -> npt.NDArray[np.float32]:
    if weights.dtype == np.float32:
        return weights
    if is_bf16(weights.dtype) or (bf16_as_uint16 and weights.dtype == np.uint16):
        return (weights.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise TypeError(f"topk_weights: dtype {weights.dtype}, expected float32 or bfloat16")


def _check_out(out: object, x: npt.NDArray[Any], bf16_as_uint16: bool) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out: {type(out).__name__}, expected a numpy array like x")
    _check_bf16("out", out, bf16_as_uint16)
    if out.shape != x.shape:
        shape_error("out", out.shape, str(list(x.shape)))
    if not out.flags.writeable or not out.flags.aligned or out.strides[0] % 2:
        raise ValueError("out: read-only or not aligned to its elements, expected memory that can be written in place")


def _place(array: npt.NDArray[Any]) -> Place:
    (rows, columns), (down, across), itemsize = array.shape, array.strides, array.itemsize
    return address_of(array), rows, columns, down // itemsize, across // itemsize, itemsize
