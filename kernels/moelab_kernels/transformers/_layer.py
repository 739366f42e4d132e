"""The packed weights of one experts module, and whether they still are its weights."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple

import torch

from moelab_kernels._pack import Packer
from moelab_kernels._packed import PackedExperts
from moelab_kernels._release import Discarder, is_placeholder, placeholder
from moelab_kernels.transformers._gate import find_gate

WEIGHTS = ("gate_up_proj", "down_proj")
BIASES = ("gate_up_proj_bias", "down_proj_bias")


class _Seen(NamedTuple):
    """A parameter as it was packed.

    torch counts in-place edits, but not those through `.data`: one element of every expert is compared as well.
    """

    address: int
    version: int
    sampled: torch.Tensor
    sample: torch.Tensor

    @classmethod
    def of(cls, parameter: torch.Tensor) -> _Seen:
        middle = tuple(size // 2 for size in parameter.shape[1:])
        # As integers, in which NaN equals NaN.
        sampled = parameter.detach()[(slice(None), *middle)].view(torch.int16)
        return cls(parameter.data_ptr(), parameter._version, sampled, sampled.clone())

    def is_still(self, parameter: torch.Tensor) -> bool:
        if parameter.data_ptr() != self.address or parameter._version != self.version:
            return False
        return bool(torch.equal(self.sampled, self.sample))


_numbers = itertools.count()


class Layer:
    """What `moelab_kernels.transformers` keeps on an experts module.

    gate: what the module computes between its products, None where no kernel does. packed: its weights, None before
    the first use. number: a scalar tensor that stands for the module in compiled graphs.
    A copy or a pickle of the module starts anew: it has weights of its own.
    """

    __slots__ = ("_module", "_seen", "gate", "number", "packed")

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        self._module = None if module is None else weakref.ref(module)
        self.gate = None if module is None else find_gate(module._apply_gate)
        self._seen: dict[str, _Seen] = {}
        self.number = None if module is None else torch.tensor(next(_numbers), device="cpu")
        self.packed: PackedExperts | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Layer, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        return Layer()

    def module(self) -> torch.nn.Module | None:
        """Whose layer this is."""
        return None if self._module is None else self._module()

    def is_current(self, module: torch.nn.Module) -> bool:
        """Whether `packed` holds the present weights of `module`."""
        parameters = module._parameters
        return bool(self._seen) and all(seen.is_still(parameters[name]) for name, seen in self._seen.items())

    def pack(self, module: Any, *, discard: bool) -> None:
        """Packs the module's weights, whose gate has to be known.

        discard: give the memory of each expert's weights back as soon as it is packed; they read zeros afterwards.
        """
        self.packed = None
        self._seen = {}
        assert self.gate is not None
        # Made before the views below, which would count as owners of the memory.
        discarders = [Discarder(module._parameters[name]) for name in WEIGHTS] if discard else []
        w13, w2 = (_rows_first(module, name) for name in WEIGHTS)
        biases = [module._parameters[name] for name in BIASES] if module.has_bias else []
        experts, hidden, intermediate = w2.shape
        packer = Packer(
            experts,
            hidden,
            intermediate,
            activation=self.gate.activation,
            gate_up=self.gate.gate_up,
            bias=module.has_bias,
            alpha=self.gate.alpha,
            limit=self.gate.limit,
        )
        interrupt: KeyboardInterrupt | None = None
        for e in range(experts):
            try:
                packer.add(e, w13[e], w2[e], *(bias[e] for bias in biases))
            except KeyboardInterrupt as error:
                # Weights that are half packed and half discarded would be lost: finish first.
                interrupt = error
                packer.add(e, w13[e], w2[e], *(bias[e] for bias in biases))
            for discarder in discarders:
                discarder.discard(e)
        self.packed = packer.finish()
        if discard:
            self.let_go(module)
        self.look_at(module)
        if interrupt is not None:
            raise interrupt

    def look_at(self, module: torch.nn.Module) -> None:
        """Takes the module's parameters, as they are now, for those that were packed."""
        names = (*WEIGHTS, *BIASES) if module.has_bias else WEIGHTS
        self._seen = {name: _Seen.of(module._parameters[name]) for name in names}

    @staticmethod
    def let_go(module: torch.nn.Module) -> None:
        """Puts placeholders where the weights were."""
        for name in WEIGHTS:
            parameter = module._parameters[name]
            if parameter.numel() > 1:  # a placeholder has one element
                parameter.data = placeholder(parameter)

    def unpacked(self, module: Any) -> dict[str, torch.Tensor]:
        """The weights that `let_go` took, in the module's own order of dimensions."""
        assert self.packed is not None
        parameters = {name: module._parameters[name] for name in WEIGHTS}
        weights = {name: torch.empty(p.shape, dtype=p.dtype) for name, p in parameters.items() if is_placeholder(p)}
        hidden, intermediate = self.packed.hidden, self.packed.intermediate
        rows = (
            torch.empty(2 * intermediate, hidden, dtype=torch.bfloat16),
            torch.empty(hidden, intermediate, dtype=torch.bfloat16),
        )
        bits = [tensor.view(torch.uint16).numpy() for tensor in rows]
        for e in range(self.packed.num_experts):
            self.packed._unpack_into(e, *bits, None, None)
            for name, source in zip(WEIGHTS, rows, strict=True):
                if name in weights:
                    weights[name][e] = source.T if module.is_transposed else source
        return weights


def _rows_first(module: Any, name: str) -> torch.Tensor:
    """A weight as the packer takes it, [E, rows, columns]."""
    weight: torch.Tensor = module._parameters[name].detach()
    return weight.transpose(1, 2) if module.is_transposed else weight
