"""torch tensors and numpy arrays as addresses, shapes and strides, with errors that name the argument.

BF16 in numpy is ml_dtypes.bfloat16, or uint16 bits where the caller says so with bf16_as_uint16=True: uint16 alone
could as well be a mistake.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from moelab_kernels._frameworks import torch
from moelab_kernels._lib import BF16, FP16, FP32
from moelab_kernels._memory import address_of

if TYPE_CHECKING:
    from torch import Tensor

    Array: TypeAlias = Tensor | npt.NDArray[Any]

# What a set of weights came in, and what unpacking returns: torch tensors, numpy with ml_dtypes.bfloat16, or numpy
# with BF16 bits in uint16.
Container: TypeAlias = Literal["torch", "ml_dtypes", "uint16"]
CONTAINERS: tuple[Container, ...] = ("torch", "ml_dtypes", "uint16")


class View(NamedTuple):
    """An array as the C interface sees it. Strides in elements; `owner` keeps the memory alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: int
    itemsize: int
    owner: object


def is_tensor(array: object) -> bool:
    """Whether `array` is a torch tensor."""
    return torch is not None and isinstance(array, torch.Tensor)


def is_bf16(dtype: np.dtype[Any]) -> bool:
    """Whether a numpy dtype is ml_dtypes.bfloat16; never imports ml_dtypes."""
    ml_dtypes = sys.modules.get("ml_dtypes")
    return ml_dtypes is not None and dtype.type is ml_dtypes.bfloat16


def numpy_container() -> Container:
    """The numpy container for BF16 that this installation has."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return "uint16"
    return "ml_dtypes"


def container_of(array: object, *, bf16_as_uint16: bool) -> Container:
    """What `array` comes in."""
    if is_tensor(array):
        return "torch"
    return "uint16" if bf16_as_uint16 else numpy_container()


def from_bits(bits: npt.NDArray[np.uint16], container: Container) -> Any:
    """BF16 bits as an array of `container`, sharing memory."""
    if container == "torch":
        assert torch is not None
        return torch.from_numpy(bits).view(torch.bfloat16)
    if container == "ml_dtypes":
        import ml_dtypes

        return bits.view(ml_dtypes.bfloat16)
    return bits


def from_floats(values: npt.NDArray[np.float32], container: Container) -> Any:
    """fp32 values as an array of `container`, sharing memory."""
    if container == "torch":
        assert torch is not None
        return torch.from_numpy(values)
    return values


def weight_view(name: str, array: object, shape: tuple[int, ...], *, bf16_as_uint16: bool = False) -> View:
    """`array` as weights or biases in BF16, FP16 or FP32, of any strides.

    Raises TypeError for anything else, ValueError for another shape or device.
    """
    if is_tensor(array):
        view = _tensor_view(name, array)
    elif isinstance(array, np.ndarray):
        view = _numpy_view(name, array, bf16_as_uint16=bf16_as_uint16)
    else:
        raise TypeError(f"{name}: {type(array).__name__}, expected a torch tensor or a numpy array")
    if view.shape != shape:
        raise ValueError(f"{name}: shape {list(view.shape)}, expected {list(shape)}")
    return view


def _tensor_view(name: str, tensor: Any) -> View:
    assert torch is not None
    dtypes = {torch.bfloat16: BF16, torch.float16: FP16, torch.float32: FP32}
    if tensor.device.type != "cpu":
        raise ValueError(f"{name}: on device {tensor.device}, expected cpu")
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name}: dtype {tensor.dtype}, expected torch.bfloat16, torch.float16 or torch.float32")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name}: layout {tensor.layout}, expected torch.strided")
    tensor = tensor.detach()
    return View(
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        dtypes[tensor.dtype],
        tensor.element_size(),
        tensor,
    )


def _numpy_view(name: str, array: npt.NDArray[Any], *, bf16_as_uint16: bool) -> View:
    if is_bf16(array.dtype) or (bf16_as_uint16 and array.dtype == np.uint16):
        dtype = BF16
    elif array.dtype == np.float16:
        dtype = FP16
    elif array.dtype == np.float32:
        dtype = FP32
    else:
        hint = "; pass bf16_as_uint16=True for BF16 bits" if array.dtype == np.uint16 else ""
        raise TypeError(f"{name}: dtype {array.dtype}, expected bfloat16 (ml_dtypes), float16 or float32{hint}")
    array = aligned(array)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return View(address_of(array), array.shape, strides, dtype, array.itemsize, array)


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`array`, or a copy where its elements do not lie on multiples of their size (views into records)."""
    flags = array.flags
    if flags.aligned and (flags.c_contiguous or not any(stride % array.itemsize for stride in array.strides)):
        return array
    return np.ascontiguousarray(array)
