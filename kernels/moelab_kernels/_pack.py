"""Packing: weights of any strides into the layout that the kernels read, once."""

from __future__ import annotations

from ctypes import byref, c_uint64
from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from moelab_kernels import _openmp
from moelab_kernels._arrays import Container, View, container_of, is_tensor, weight_view
from moelab_kernels._lib import ACTIVATIONS, Layer, Matrix, check, isa_index, lib
from moelab_kernels._memory import address_of, allocate
from moelab_kernels._packed import PackedExperts

if TYPE_CHECKING:
    from moelab_kernels._arrays import Array

Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "swigluoai"]
GateUp: TypeAlias = Literal["split", "interleaved"]

_INT32_MAX = 2**31 - 1


class Packer:
    """Packs a layer expert by expert, so that a model never holds a second copy of all its weights.

    num_experts E, hidden H, intermediate I: any sizes from 1.
    activation: "silu", "gelu" (erf), "gelu_tanh" or "swigluoai" (with alpha and limit).
    gate_up: order of w13's rows: "split" (I gate rows, then I up rows) or "interleaved" (even rows gate, odd rows up).
    bias: whether every expert brings both biases.
    isa: a name out of `isas()`; None takes the best, or the one that MOELAB_ISA forces.
    """

    def __init__(
        self,
        num_experts: int,
        hidden: int,
        intermediate: int,
        *,
        activation: Activation,
        gate_up: GateUp = "split",
        bias: bool = False,
        alpha: float = 1.702,
        limit: float = 7.0,
        isa: str | None = None,
    ) -> None:
        num_experts, hidden, intermediate = (
            _integer(name, value, 1, _INT32_MAX)
            for name, value in (("num_experts", num_experts), ("hidden", hidden), ("intermediate", intermediate))
        )
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation: {activation!r}, expected one of {', '.join(ACTIVATIONS)}")
        if gate_up not in ("split", "interleaved"):
            raise ValueError(f"gate_up: {gate_up!r}, expected 'split' or 'interleaved'")
        self._sizes = (num_experts, hidden, intermediate)
        self._interleaved = gate_up == "interleaved"
        self._bias = bias
        self._container: Container | None = None
        layer = Layer(
            isa_index(isa),
            ACTIVATIONS.index(activation),
            num_experts,
            hidden,
            intermediate,
            bias,
            _number("alpha", alpha),
            _number("limit", limit),
        )
        nbytes = c_uint64()
        check(lib.moelab_packed_bytes(byref(layer), byref(nbytes)))
        self._memory: npt.NDArray[np.uint8] | None = allocate(nbytes.value)
        check(lib.moelab_pack_begin(byref(layer), address_of(self._memory), self._memory.nbytes))

    def add(
        self,
        e: int,
        w13_e: Array,
        w2_e: Array,
        w13_bias_e: Array | None = None,
        w2_bias_e: Array | None = None,
        *,
        bf16_as_uint16: bool = False,
    ) -> None:
        """Packs expert `e`, in any order of experts.

        w13_e [2I, H], w2_e [H, I], w13_bias_e [2I], w2_bias_e [H]: bf16, fp16 or fp32, any strides. fp16 and fp32
        weights are rounded to bf16 once, to nearest even; biases are kept in fp32.
        bf16_as_uint16: uint16 arrays hold BF16 bits.
        """
        memory = self._unfinished()
        experts, hidden, intermediate = self._sizes
        e = _integer("e", e, 0, experts - 1)
        if (w13_bias_e is not None, w2_bias_e is not None) != (self._bias, self._bias):
            raise ValueError(_bias_message("w13_bias_e", w13_bias_e, "w2_bias_e", w2_bias_e, expected=self._bias))
        views = [
            weight_view("w13_e", w13_e, (2 * intermediate, hidden), bf16_as_uint16=bf16_as_uint16),
            weight_view("w2_e", w2_e, (hidden, intermediate), bf16_as_uint16=bf16_as_uint16),
        ]
        if w13_bias_e is not None and w2_bias_e is not None:
            views += [
                weight_view("w13_bias_e", w13_bias_e, (2 * intermediate,), bf16_as_uint16=bf16_as_uint16),
                weight_view("w2_bias_e", w2_bias_e, (hidden,), bf16_as_uint16=bf16_as_uint16),
            ]
        self._container = self._container or container_of(w13_e, bf16_as_uint16=bf16_as_uint16)
        matrices = [_matrix(view) for view in views] + [Matrix()] * (4 - len(views))
        check(
            lib.moelab_pack_expert(
                address_of(memory), memory.nbytes, e, *map(byref, matrices), self._interleaved, _openmp.resolve(None)
            )
        )

    def finish(self) -> PackedExperts:
        """The packed weights. Raises ValueError where an expert was never added. The packer is used up."""
        memory = self._unfinished()
        check(lib.moelab_pack_finish(address_of(memory), memory.nbytes))
        self._memory = None
        return PackedExperts(memory, verify=False, container=self._container)

    def _unfinished(self) -> npt.NDArray[np.uint8]:
        if self._memory is None:
            raise ValueError("Packer: finish() was called already; make a new one")
        return self._memory


def pack(
    w13: Array,
    w2: Array,
    *,
    w13_bias: Array | None = None,
    w2_bias: Array | None = None,
    activation: Activation,
    gate_up: GateUp = "split",
    alpha: float = 1.702,
    limit: float = 7.0,
    isa: str | None = None,
    bf16_as_uint16: bool = False,
) -> PackedExperts:
    """Packs a whole layer: w13 [E, 2I, H], w2 [E, H, I], biases [E, 2I] and [E, H] or None.

    Any strides; dtypes and the other arguments as in `Packer`. The inputs are never modified.

    Raises TypeError for a wrong type or dtype, ValueError for a wrong shape, device or option, RuntimeError for an
    ISA that this CPU lacks.
    """
    experts, hidden, intermediate = _layer_sizes(w13, w2)
    if (w13_bias is None) != (w2_bias is None):
        raise ValueError(_bias_message("w13_bias", w13_bias, "w2_bias", w2_bias, expected=None))
    for name, array, shape in (
        ("w13", w13, (experts, 2 * intermediate, hidden)),
        ("w2", w2, (experts, hidden, intermediate)),
        ("w13_bias", w13_bias, (experts, 2 * intermediate)),
        ("w2_bias", w2_bias, (experts, hidden)),
    ):
        if array is not None:
            weight_view(name, array, shape, bf16_as_uint16=bf16_as_uint16)
    packer = Packer(
        experts,
        hidden,
        intermediate,
        activation=activation,
        gate_up=gate_up,
        bias=w13_bias is not None,
        alpha=alpha,
        limit=limit,
        isa=isa,
    )
    for e in range(experts):
        biases = (None if b is None else b[e] for b in (w13_bias, w2_bias))
        packer.add(e, w13[e], w2[e], *biases, bf16_as_uint16=bf16_as_uint16)
    return packer.finish()


def _layer_sizes(w13: Any, w2: Any) -> tuple[int, int, int]:
    """(E, H, I), read from w2 [E, H, I]; w13 must agree."""
    for name, array in (("w13", w13), ("w2", w2)):
        if not is_tensor(array) and not isinstance(array, np.ndarray):
            raise TypeError(f"{name}: {type(array).__name__}, expected a torch tensor or a numpy array")
        if array.ndim != 3 or 0 in array.shape:
            expected = "[E, 2I, H]" if name == "w13" else "[E, H, I]"
            raise ValueError(f"{name}: shape {list(array.shape)}, expected {expected}, each at least 1")
    experts, hidden, intermediate = w2.shape
    return experts, hidden, intermediate


def _matrix(view: View) -> Matrix:
    strides = (*view.strides, 0)
    return Matrix(view.address, view.dtype, strides[0], strides[1])


def _integer(name: str, value: Any, lowest: int, highest: int) -> int:
    # ctypes would wrap a number that is too large without a word.
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{name}: {type(value).__name__}, expected an int") from None
    if not lowest <= number <= highest:
        raise ValueError(f"{name}: {number}, expected {lowest} to {highest}")
    return number


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {type(value).__name__}, expected a number") from None


def _bias_message(name13: str, bias13: object, name2: str, bias2: object, *, expected: bool | None) -> str:
    given = [name for name, bias in ((name13, bias13), (name2, bias2)) if bias is not None]
    wanted = {True: "both (bias=True)", False: "none (bias=False)", None: "both or none"}[expected]
    return f"{name13}, {name2}: got {' and '.join(given) or 'none'}, expected {wanted}"
