"""The implementations that are measured, by the names that results use. One file each."""

from __future__ import annotations

from importlib import import_module

from moelab.backends.base import Backend, Environment, Facts, Output

__all__ = ["NAMES", "Backend", "Environment", "Facts", "Output", "create"]

# Name in results -> module and class. Modules are imported when asked for: each may need libraries of its own.
_BACKENDS = {
    "moelab": ("moelab.backends.moelab_backend", "Moelab"),
    "torch_loop": ("moelab.backends.torch_loop", "TorchLoop"),
    "torch_grouped_mm": ("moelab.backends.torch_grouped_mm", "TorchGroupedMm"),
    "onednn_prepacked": ("moelab.backends.onednn_prepacked", "OnednnPrepacked"),
    "vllm": ("moelab.backends.vllm", "Vllm"),
    "sglang": ("moelab.backends.sglang", "Sglang"),
    "zentorch": ("moelab.backends.zentorch", "Zentorch"),
    "ggml": ("moelab.backends.ggml", "GgmlBackend"),
}
NAMES = tuple(_BACKENDS)


def create(name: str) -> Backend:
    """The backend of this name: one of `NAMES`, or "moelab:ISA" for one instruction set of ours.

    Importing it needs no more than numpy; whether it can run says `unavailable()`. ValueError if unknown.
    """
    base, colon, isa = name.partition(":")
    if base not in _BACKENDS or (colon and (base != "moelab" or not isa)):
        raise ValueError(f"backend {name!r} is unknown; known: {', '.join(NAMES)}, moelab:ISA")
    module, kind = _BACKENDS[base]
    backend: Backend = getattr(import_module(module), kind)(*([isa] if isa else []))
    return backend
