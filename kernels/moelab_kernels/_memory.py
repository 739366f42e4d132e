"""Memory of packed weights: numpy arrays of bytes over huge-page allocations or over somebody else's buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moelab_kernels._lib import lib

ALIGNMENT = 64  # what the library asks of packed weights


class _Span:
    """A range of memory as an object that numpy can wrap; the array keeps this object alive."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            # Writable for numpy: torch.from_numpy warns about read-only memory, and nothing here writes to it.
            "data": (address, False),
        }
        self.owner = owner


class _Allocation:
    """Memory from moelab_alloc, given back when the last array over it goes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address: int = lib.moelab_alloc(nbytes) or 0
        if not self.address:
            raise MemoryError(f"packed weights: no memory for {nbytes} bytes")

    # The default argument keeps the function reachable while the interpreter shuts down.
    def __del__(self, free: Any = lib.moelab_free) -> None:
        if getattr(self, "address", 0):
            free(self.address, self.nbytes)


def address_of(array: npt.NDArray[Any]) -> int:
    """Address of the first element."""
    address: int = array.__array_interface__["data"][0]
    return address


def allocate(nbytes: int) -> npt.NDArray[np.uint8]:
    """[nbytes] uint8 on 2 MiB boundaries, contents undefined."""
    allocation = _Allocation(nbytes)
    return np.asarray(_Span(allocation.address, nbytes, allocation))


def wrap(buffer: Any) -> npt.NDArray[np.uint8]:
    """[nbytes] uint8 over `buffer`, in place where it lies on a 64-byte boundary, else a copy."""
    try:
        view = memoryview(buffer)
    except TypeError:
        raise TypeError(
            f"buffer: {type(buffer).__name__}, expected an object with the buffer protocol (bytes, mmap, numpy array)"
        ) from None
    if not view.c_contiguous:
        raise ValueError("buffer: not contiguous, expected one contiguous range of bytes")
    if not view.nbytes:
        raise ValueError("buffer: empty, expected packed weights")
    source = np.frombuffer(view.cast("B"), dtype=np.uint8)
    if address_of(source) % ALIGNMENT == 0:
        return np.asarray(_Span(address_of(source), source.nbytes, source))
    copy = allocate(source.nbytes)
    copy[:] = source
    return copy
