"""Finds and loads libmoelab.so: the C interface of `moelab.h` over ctypes.

ctypes releases the GIL for the length of every call. It ties the wheel to no Python version and to no torch.
"""

from __future__ import annotations

import ctypes
import os
import struct
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from importlib.resources import files
from pathlib import Path

from moelab_kernels import _openmp

ABI_VERSION = 1

OK, INVALID, NO_MEMORY, UNSUPPORTED, CORRUPT = range(5)
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swigluoai")  # in the order of moelab_activation
BF16, FP16, FP32 = range(3)
PEAK_KINDS = ("bf16", "fp32", "read")  # in the order of moelab_peak_kind


class Layer(ctypes.Structure):
    """moelab_layer."""

    _fields_ = [
        ("isa", c_int32),
        ("activation", c_int32),
        ("num_experts", c_int64),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("has_bias", c_int32),
        ("alpha", c_float),
        ("limit", c_float),
    ]


class Matrix(ctypes.Structure):
    """moelab_matrix: strides in elements."""

    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("row_stride", c_int64), ("col_stride", c_int64)]


# moelab_call, field by field: packing bytes costs a third of filling a ctypes structure, and there is one per call.
#   x, x_stride, tokens, topk; topk_weights, its 2 strides; topk_ids, ids_are_int64, its 2 strides; out, out_stride;
#   router_weight_on_input, num_threads
CALL = struct.Struct("@Pqqq Pqq Piqq Pq ii")

_SIGNATURES = {
    "moelab_abi_version": (c_int32, []),
    "moelab_last_error": (c_char_p, []),
    "moelab_isa_count": (c_int32, []),
    "moelab_isa_name": (c_char_p, [c_int32]),
    "moelab_isa_missing": (c_char_p, [c_int32]),
    "moelab_isa_best": (c_int32, [POINTER(c_int32)]),
    "moelab_isa_find": (c_int32, [c_char_p, POINTER(c_int32)]),
    "moelab_build_info": (c_char_p, []),
    "moelab_alloc": (c_void_p, [c_uint64]),
    "moelab_free": (None, [c_void_p, c_uint64]),
    "moelab_packed_bytes": (c_int32, [POINTER(Layer), POINTER(c_uint64)]),
    "moelab_pack_begin": (c_int32, [POINTER(Layer), c_void_p, c_uint64]),
    "moelab_pack_expert": (
        c_int32,
        [c_void_p, c_uint64, c_int64, *[POINTER(Matrix)] * 4, c_int32, c_int32],
    ),
    "moelab_pack_finish": (c_int32, [c_void_p, c_uint64]),
    "moelab_packed_layer": (c_int32, [c_void_p, c_uint64, c_int32, POINTER(Layer)]),
    "moelab_unpack_expert": (c_int32, [c_void_p, c_uint64, c_int64, *[c_void_p] * 4]),
    "moelab_fused_moe": (c_int32, [c_void_p, c_uint64, POINTER(Layer), c_char_p]),
    "moelab_last_profile": (None, [POINTER(c_double)]),
    "moelab_peak": (c_int32, [c_int32, c_int32, c_int32, c_double, POINTER(c_double)]),
    "moelab_activate": (c_int32, [c_int32, c_int32, c_float, c_float, *[c_void_p] * 3, c_int64]),
    "moelab_partition_cost": (c_int32, [POINTER(Layer), c_int32, c_void_p, c_int32, c_void_p]),
}


def library_path() -> Path:
    """The shared library: $MOELAB_LIBRARY, else the one installed with this package."""
    override = os.environ.get("MOELAB_LIBRARY")
    if override:
        return Path(override)
    # An editable install keeps binaries in site-packages while __file__ points into the repository;
    # importlib.resources knows both places.
    return Path(str(files("moelab_kernels").joinpath("lib/libmoelab.so")))


def _load() -> ctypes.CDLL:
    path = library_path()
    if not path.is_file():
        raise ImportError(f"libmoelab.so: not found at {path}; install moelab, or set MOELAB_LIBRARY to a built one")
    _openmp.prefer_torch_runtime()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        hint = "; install the OpenMP runtime (Debian and Ubuntu: libgomp1)" if "libgomp" in str(error) else ""
        raise ImportError(f"libmoelab.so: {error}{hint}") from error
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path}: has no function {name}; it is not the library of this version") from None
        function.restype = result
        function.argtypes = arguments
    version = library.moelab_abi_version()
    if version != ABI_VERSION:
        raise ImportError(f"{path}: ABI version {version}, expected {ABI_VERSION}")
    return library


lib = _load()

_EXCEPTIONS: dict[int, type[Exception]] = {
    INVALID: ValueError,
    NO_MEMORY: MemoryError,
    UNSUPPORTED: RuntimeError,
    CORRUPT: ValueError,
}


def check(status: int) -> None:
    """Raises the exception of a moelab_status with the library's own sentence."""
    if status != OK:
        raise _EXCEPTIONS.get(status, RuntimeError)(lib.moelab_last_error().decode(errors="replace"))


def isa_index(name: str | None) -> int:
    """Registry index of an ISA by name, or of the best one this CPU can run (MOELAB_ISA forces one).

    Raises RuntimeError naming what the CPU lacks, ValueError for an unknown name.
    """
    index = c_int32()
    if name is None:
        check(lib.moelab_isa_best(byref(index)))
    elif isinstance(name, str):
        check(lib.moelab_isa_find(name.encode(), byref(index)))
    else:
        raise TypeError(f"isa: {type(name).__name__}, expected a name such as 'avx2', or None for the best one")
    return index.value


def isa_name(index: int) -> str:
    """Name of an ISA in the registry."""
    name: bytes = lib.moelab_isa_name(index)
    return name.decode()
