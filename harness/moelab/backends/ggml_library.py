"""ggml's C interface, as much of it as a Mixture-of-Experts graph needs, over ctypes."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

F32, I32, BF16 = 0, 26, 30  # enum ggml_type

Handle = int | None


class InitParams(Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


_T = c_void_p  # ggml_tensor *, ggml_context *, ggml_cgraph *, buffers and the backend: all opaque
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ggml_version": (c_char_p, []),
    "ggml_init": (_T, [InitParams]),
    "ggml_free": (None, [_T]),
    "ggml_tensor_overhead": (c_size_t, []),
    "ggml_graph_overhead": (c_size_t, []),
    "ggml_nbytes": (c_size_t, [_T]),
    "ggml_new_tensor_2d": (_T, [_T, c_int, c_int64, c_int64]),
    "ggml_new_tensor_3d": (_T, [_T, c_int, c_int64, c_int64, c_int64]),
    "ggml_mul_mat_id": (_T, [_T, _T, _T, _T]),
    "ggml_add_id": (_T, [_T, _T, _T, _T]),
    "ggml_add": (_T, [_T, _T, _T]),
    "ggml_mul": (_T, [_T, _T, _T]),
    "ggml_cont": (_T, [_T, _T]),
    "ggml_view_2d": (_T, [_T, _T, c_int64, c_int64, c_size_t, c_size_t]),
    "ggml_view_3d": (_T, [_T, _T, c_int64, c_int64, c_int64, c_size_t, c_size_t, c_size_t]),
    "ggml_swiglu_split": (_T, [_T, _T, _T]),
    "ggml_geglu_split": (_T, [_T, _T, _T]),
    "ggml_geglu_erf_split": (_T, [_T, _T, _T]),
    "ggml_swiglu_oai": (_T, [_T, _T, _T, c_float, c_float]),
    "ggml_new_graph": (_T, [_T]),
    "ggml_build_forward_expand": (None, [_T, _T]),
    "ggml_backend_cpu_init": (_T, []),
    "ggml_backend_cpu_set_n_threads": (None, [_T, c_int]),
    "ggml_backend_free": (None, [_T]),
    "ggml_backend_get_default_buffer_type": (_T, [_T]),
    "ggml_backend_alloc_ctx_tensors": (_T, [_T, _T]),
    "ggml_backend_buft_alloc_buffer": (_T, [_T, c_size_t]),
    "ggml_backend_buffer_get_base": (_T, [_T]),
    "ggml_backend_buffer_clear": (None, [_T, ctypes.c_uint8]),
    "ggml_backend_buffer_free": (None, [_T]),
    "ggml_backend_tensor_alloc": (c_int, [_T, _T, _T]),
    "ggml_backend_tensor_set": (None, [_T, _T, c_size_t, c_size_t]),
    "ggml_backend_graph_compute": (c_int, [_T, _T]),
    "ggml_gallocr_new": (_T, [_T]),
    "ggml_gallocr_free": (None, [_T]),
    "ggml_gallocr_alloc_graph": (c_bool, [_T, _T]),
    "ggml_cpu_has_avx512_bf16": (c_int, []),
    "ggml_cpu_has_amx_int8": (c_int, []),
}


class Ggml:
    """Functions of libggml by their C names."""

    def __init__(self, folder: Path) -> None:
        # The CPU backend asks for libggml-base by name, and finds it beside itself.
        libraries = [ctypes.CDLL(str(folder / name)) for name in ("libggml-base.so", "libggml-cpu.so")]
        for name, (result, arguments) in _SIGNATURES.items():
            function = next((getattr(lib, name) for lib in libraries if hasattr(lib, name)), None)
            if function is None:
                raise OSError(f"{folder} holds a libggml without {name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is not among the functions of ggml that are declared here")


@lru_cache(maxsize=1)
def load_ggml(folder: Path) -> Ggml:
    """Raises OSError where it cannot be loaded."""
    return Ggml(folder)
