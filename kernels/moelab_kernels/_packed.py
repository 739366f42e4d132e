"""The packed weights of one layer: the layout that the kernels read."""

from __future__ import annotations

import pickle
from ctypes import byref
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moelab_kernels._arrays import CONTAINERS, Container, from_bits, from_floats, is_tensor, numpy_container
from moelab_kernels._frameworks import torch
from moelab_kernels._lib import ACTIVATIONS, Layer, check, isa_name, lib
from moelab_kernels._memory import address_of, allocate, wrap

if TYPE_CHECKING:
    from torch import Tensor


class PackedExperts:
    """Immutable packed weights of one MoE layer. Made by `pack`, `Packer.finish` or `from_buffer`.

    Attributes: isa, num_experts, hidden, intermediate, activation, has_bias, alpha, limit, nbytes.
    """

    __slots__ = (
        "__weakref__",
        "_address",
        "_bytes",
        "_container",
        "_layer",
        "_tensor",
        "activation",
        "alpha",
        "has_bias",
        "hidden",
        "intermediate",
        "isa",
        "limit",
        "nbytes",
        "num_experts",
    )

    def __init__(self, memory: npt.NDArray[np.uint8], *, verify: bool, container: Container | None) -> None:
        """Reads the header of `memory`; use `from_buffer` instead."""
        if container is not None and container not in CONTAINERS:
            raise ValueError(f"container: {container!r}, expected one of {', '.join(CONTAINERS)}, or None")
        layer = Layer()
        self._bytes = memory
        self._address = address_of(memory)
        self.nbytes: int = memory.nbytes
        check(lib.moelab_packed_layer(self._address, self.nbytes, verify, byref(layer)))
        self._layer = layer
        self._container = container
        # Made here and not on first use, so that torch.compile finds a tensor and no numpy array.
        self._tensor: Tensor | None = None if torch is None else torch.from_numpy(memory)
        self.isa: str = isa_name(layer.isa)
        self.num_experts: int = layer.num_experts
        self.hidden: int = layer.hidden
        self.intermediate: int = layer.intermediate
        self.activation: str = ACTIVATIONS[layer.activation]
        self.has_bias: bool = bool(layer.has_bias)
        self.alpha: float = layer.alpha
        self.limit: float = layer.limit

    @classmethod
    def from_buffer(cls, buffer: Any, *, verify: bool = True, container: Container | None = None) -> PackedExperts:
        """Packed weights in `buffer`: bytes, mmap, numpy array, uint8 tensor, … as `tobytes` wrote them.

        Used in place, without a copy, where it lies on a 64-byte boundary (any mmap does), so that several processes
        can share one file; otherwise copied once. The buffer must not change afterwards.

        verify: check every byte against the checksums; False reads the header only.
        container: what `unpack` returns; None chooses torch if it is there, else numpy.

        Raises ValueError for data that is damaged, cut, unfinished or not packed weights, RuntimeError where this
        CPU lacks the ISA they were packed for.
        """
        if is_tensor(buffer):
            buffer = buffer.detach().numpy()
        return cls(wrap(buffer), verify=verify, container=container)

    @property
    def tensor(self) -> Tensor:
        """[nbytes] uint8 over the same memory, for torch.ops.moelab.fused_moe or a module's buffer. Not to be written.

        Raises RuntimeError without torch.
        """
        if self._tensor is None:
            raise RuntimeError("PackedExperts.tensor: torch is not installed")
        return self._tensor

    def tobytes(self) -> bytes:
        """A copy of the packed data, header included; `from_buffer` reads it."""
        return self._bytes.tobytes()

    @property
    def buffer(self) -> memoryview:
        """Read-only view of the packed data, header included: `file.write(packed.buffer)` makes no copy."""
        return self._bytes.data.toreadonly()

    def unpack(self) -> tuple[Any, Any, Any, Any]:
        """(w13 [E, 2I, H] bf16, w2 [E, H, I] bf16, w13_bias [E, 2I] fp32, w2_bias [E, H] fp32), biases None without.

        Exactly what was packed (fp32 and fp16 weights as rounded to bf16), in the row order that was packed, and in
        the container that was packed: torch tensors, or numpy arrays with ml_dtypes.bfloat16 or uint16 bits.
        """
        experts, hidden, intermediate = self.num_experts, self.hidden, self.intermediate
        w13 = np.empty((experts, 2 * intermediate, hidden), np.uint16)
        w2 = np.empty((experts, hidden, intermediate), np.uint16)
        w13_bias = np.empty((experts, 2 * intermediate), np.float32) if self.has_bias else None
        w2_bias = np.empty((experts, hidden), np.float32) if self.has_bias else None
        for e in range(experts):
            self._unpack_into(e, w13[e], w2[e], *(None if b is None else b[e] for b in (w13_bias, w2_bias)))
        container = self._container or _default_container()
        biases = (None if b is None else from_floats(b, container) for b in (w13_bias, w2_bias))
        return from_bits(w13, container), from_bits(w2, container), *biases

    def _unpack_into(self, expert: int, *targets: npt.NDArray[Any] | None) -> None:
        addresses = (None if target is None else address_of(target) for target in targets)
        check(lib.moelab_unpack_expert(self._address, self.nbytes, expert, *addresses))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        data = pickle.PickleBuffer(self._bytes.data) if protocol >= 5 else self.tobytes()
        return _restore, (data, self._container)

    def __copy__(self) -> PackedExperts:
        return self  # immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedExperts:
        memory = allocate(self.nbytes)
        memory[:] = self._bytes
        return PackedExperts(memory, verify=False, container=self._container)

    def __repr__(self) -> str:
        return (
            f"PackedExperts(isa={self.isa!r}, num_experts={self.num_experts}, hidden={self.hidden}, "
            f"intermediate={self.intermediate}, activation={self.activation!r}, has_bias={self.has_bias}, "
            f"nbytes={self.nbytes})"
        )


def _restore(data: Any, container: Container | None) -> PackedExperts:
    return PackedExperts.from_buffer(data, container=container)


def _default_container() -> Container:
    return numpy_container() if torch is None else "torch"
