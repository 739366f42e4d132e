"""Giving a model's own expert weights back to the system, expert by expert while they are packed."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import torch

_MADV_DONTNEED = 4
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _owners(tensor: torch.Tensor) -> int:
    """How many tensors share the memory of `tensor`."""
    owners: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return owners


# The storage handle made for the question counts too.
_SOLE_OWNER = _owners(torch.empty(1))


class Discarder:
    """Drops the pages of a weight tensor [E, ...] expert by expert.

    Only where the tensor owns its memory alone: a view that somebody else holds (a tied weight, a state dict) would
    read zeros. There, the memory goes when the last owner does.
    """

    def __init__(self, weight: torch.Tensor, *, sole_owner: bool | None = None) -> None:
        """sole_owner: what the caller knows of other owners; None counts them."""
        storage = weight.untyped_storage()
        alone = _owners(weight) == _SOLE_OWNER if sole_owner is None else sole_owner
        ordered = weight.stride(0) == max(weight.stride()) and weight.stride(0) > 0
        self._step = weight.stride(0) * weight.element_size() if alone and ordered else 0
        self._start = weight.data_ptr()
        self._end = storage.data_ptr() + storage.nbytes()
        self._experts = weight.shape[0]

    def discard(self, expert: int) -> None:
        """The pages that hold nothing but experts up to this one; experts are dropped in ascending order."""
        if not self._step:
            return
        page = mmap.PAGESIZE
        first = -(-self._start // page) * page
        done = max(first, (self._start + expert * self._step) // page * page)
        last = min(self._start + (expert + 1) * self._step, self._end) // page * page
        if last > done:
            # A failure only means that the memory stays until the tensor goes.
            _madvise(done, last - done, _MADV_DONTNEED)


def placeholder(weight: torch.Tensor) -> torch.Tensor:
    """A tensor of the weight's shape and dtype over one element, NaN: what is read by mistake shows."""
    return torch.full((), torch.nan, dtype=weight.dtype).expand(weight.shape)


def is_placeholder(weight: Any) -> bool:
    """Whether `weight` was made by `placeholder`."""
    if any(weight.stride()) or weight.numel() <= 1 or weight.untyped_storage().nbytes() != weight.itemsize:
        return False
    return bool(weight.detach()[(0,) * weight.dim()].isnan())


def shared(module: torch.nn.Module, name: str) -> bool:
    """Whether anybody but the module holds this parameter: another module, an optimizer, a variable."""
    parameters, parameter = _references(module, name)
    return parameters > _UNSHARED[0] or parameter > _UNSHARED[1]


def _references(module: torch.nn.Module, name: str) -> tuple[int, int]:
    """Of the module's dictionary of parameters, and of one of them."""
    return sys.getrefcount(module._parameters), sys.getrefcount(module._parameters[name])


# Measured, since how many of them come from the question itself is a matter of the Python.
_UNSHARED = _references(torch.nn.Linear(1, 1, bias=False), "weight")
