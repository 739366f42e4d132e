"""The fused layer: one call for torch tensors and for numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from moelab_kernels import _numpy
from moelab_kernels._frameworks import torch
from moelab_kernels._packed import PackedExperts

if torch is not None:
    from moelab_kernels import _torch

if TYPE_CHECKING:
    from torch import Tensor


@overload
def fused_moe(
    x: Tensor,
    packed: PackedExperts,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    out: Tensor | None = None,
    apply_router_weight_on_input: bool = False,
    num_threads: int | None = None,
) -> Tensor: ...


@overload
def fused_moe(
    x: npt.NDArray[Any],
    packed: PackedExperts,
    topk_weights: npt.NDArray[Any],
    topk_ids: npt.NDArray[Any],
    *,
    out: npt.NDArray[Any] | None = None,
    apply_router_weight_on_input: bool = False,
    num_threads: int | None = None,
    bf16_as_uint16: bool = False,
) -> npt.NDArray[Any]: ...


def fused_moe(
    x: Any,
    packed: PackedExperts,
    topk_weights: Any,
    topk_ids: Any,
    *,
    out: Any = None,
    apply_router_weight_on_input: bool = False,
    num_threads: int | None = None,
    bf16_as_uint16: bool = False,
) -> Any:
    """One Mixture-of-Experts layer: [M, H] bf16 in, [M, H] bf16 out, fp32 accumulation.

    x [M, H] bf16: used in place with a unit last stride, else copied. M = 0 works.
    topk_weights [M, K] fp32 (bf16 accepted), topk_ids [M, K] int32 or int64, any strides. Id -1 skips its slot.
    out [M, H] bf16, unit last stride: fully overwritten and returned; None makes a new one.
    apply_router_weight_on_input: round x * weight to bf16 before the first GEMM instead of weighting the output.
    num_threads: None takes the process's OpenMP or torch setting.
    bf16_as_uint16: numpy x, out (and topk_weights) hold BF16 bits in uint16.

    The inputs are never modified; a token's result does not depend on the rest of the batch or on num_threads.
    Safe to call from several threads at once; the GIL is released.

    Raises TypeError for a wrong type or dtype; ValueError for a wrong shape or device, an id outside [0, E) or an
    out that overlaps an input; MemoryError; RuntimeError where this CPU lacks the ISA of `packed`.
    """
    if not isinstance(packed, PackedExperts):
        raise TypeError(f"packed: {type(packed).__name__}, expected PackedExperts")
    if apply_router_weight_on_input is not False:
        _check_true("apply_router_weight_on_input", apply_router_weight_on_input)
    if isinstance(x, np.ndarray):
        return _numpy.fused_moe(
            x, packed, topk_weights, topk_ids, out, apply_router_weight_on_input, num_threads, bf16_as_uint16
        )
    if torch is None:
        raise TypeError(f"x: {type(x).__name__}, expected a numpy array (torch is not installed)")
    return _torch.fused_moe(x, packed, topk_weights, topk_ids, out, apply_router_weight_on_input, num_threads)


def _check_true(name: str, value: object) -> None:
    if value is not True:
        raise TypeError(f"{name}: {type(value).__name__}, expected a bool")
