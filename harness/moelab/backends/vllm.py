"""vLLM's fused MoE for CPUs: cpu_fused_moe, as its CPU experts call it (model_executor/layers/fused_moe)."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from moelab.backends import amx, environments
from moelab.backends.base import Facts
from moelab.backends.torch_common import (
    TorchBackend,
    bf16_tensor,
    bias_tensor,
    load_extension,
    no_skipped_slots,
    rows_ordered,
    torch_inputs,
)
from moelab.cpu_facts import read_cpu
from moelab.rounding import FUSED, Rounding
from moelab.weights import Weights
from moelab.workloads import Case, Inputs, Layer

if TYPE_CHECKING:
    from torch import Tensor


class VllmExtension(TorchBackend):
    """A backend whose kernels lie in vLLM's CPU extension: the library for this CPU may be built without them."""

    environment = "vllm"
    operators: tuple[str, ...]

    def unavailable(self) -> str | None:
        missing = environments.missing("vllm") or super().unavailable()
        if missing:
            return missing
        try:
            load_vllm()
        except RuntimeError as error:
            return str(error)
        import torch

        if not all(hasattr(torch.ops._C, operator) for operator in self.operators):
            return f"vLLM's library for this CPU, {extension_path().name}, is built without {self.name}'s kernels"
        return None

    def unsuited(self, case: Case) -> str | None:
        layer = case.layer
        if layer.hidden % 32 or layer.intermediate % 32:
            return f"takes sizes that are multiples of 32, not hidden {layer.hidden}, intermediate {layer.intermediate}"
        return None

    def describe(self) -> Facts:
        made = environments.facts("vllm")
        library = extension_path()
        return super().describe() | {
            "version": made.get("requirement"),
            "library": library.name,
            "library_sha256": made.get(library.name),
        }


class Vllm(VllmExtension):
    """torch.ops._C.cpu_fused_moe on weights packed by prepack_moe_weight."""

    name = "vllm"
    operators = ("prepack_moe_weight", "cpu_fused_moe")

    def __init__(self) -> None:
        self.rounding = rounding_of(platform.machine(), read_cpu().features)

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        import torch

        load_vllm()
        self.start(layer, threads)
        self._isa = self._best_isa()
        if self._isa == "amx":
            torch.cpu._init_amx()  # asks the kernel for leave to use the tiles
        # swigluoai reads gate and up interleaved, as gpt-oss stores them; the others read halves.
        w13, b13 = rows_ordered(weights, layer, "interleaved" if layer.activation == "swigluoai" else "split")
        self._w13, self._w2 = (self._packed(bf16_tensor(w)) for w in (w13, weights.w2))
        self._b13, self._b2 = (bias_tensor(bias, torch.bfloat16) for bias in (b13, weights.w2_bias))

    @staticmethod
    def _best_isa() -> str:
        """The choice that vLLM makes itself (X86CPUUnquantizedExperts, ArmCPUUnquantizedExperts)."""
        import torch

        if platform.machine() == "aarch64":
            return "neon"
        return "amx" if amx.allowed() and torch.cpu._is_amx_tile_supported() else "vec"

    def _packed(self, weight: Tensor) -> Tensor:
        import torch

        packed = torch.empty_like(weight)
        torch.ops._C.prepack_moe_weight(weight, packed, self._isa)
        return packed

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        import torch

        no_skipped_slots(inputs, self.name)
        given = torch_inputs(inputs)
        x, router, ids = given.x, given.topk_weights, given.topk_ids
        w13, w2, b13, b2, isa, activation = self._w13, self._w2, self._b13, self._b2, self._isa, self.layer.activation
        fused = torch.ops._C.cpu_fused_moe.default

        def call() -> Tensor:
            out = torch.empty_like(x)
            fused(out, x, w13, w2, b13, b2, router, ids, False, activation, isa)
            return out

        return call

    def describe(self) -> Facts:
        return super().describe() | {
            "packing": f"prepack_moe_weight, isa {self._isa}",
            "amx": "yes" if self._isa == "amx" else amx.without_amx(),
        }


def rounding_of(architecture: str, features: Collection[str]) -> Rounding:
    """Without AVX512_BF16 vLLM's x86 code makes BF16 by cutting off the lower half (csrc/cpu/cpu_types_x86.hpp)."""
    cuts = architecture == "x86_64" and "avx512_bf16" not in features
    return Rounding(to="zero") if cuts else FUSED


def extension_path() -> Path:
    """The library for this CPU: vLLM ships one per x86 level and picks it the same way."""
    import torch

    name = "_C.abi3.so"
    if platform.machine() == "x86_64" and not torch.cpu._is_avx512_bf16_supported():
        name = "_C_AVX512.abi3.so" if torch.cpu._is_avx512_supported() else "_C_AVX2.abi3.so"
    return environments.folder("vllm") / name


@lru_cache(maxsize=1)
def load_vllm() -> None:
    """Registers the operators of vLLM's extension in this process."""
    load_extension("vllm", extension_path())
