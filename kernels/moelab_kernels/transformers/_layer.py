"""The packed weights of one experts module, and whether they still are its weights."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from moelab_kernels._gate import Gate
from moelab_kernels._pack import Packer
from moelab_kernels._packed import PackedExperts
from moelab_kernels._release import Discarder, is_placeholder, placeholder, shared
from moelab_kernels.transformers._gate import find_gate, gate_state, hooked

WEIGHTS = ("gate_up_proj", "down_proj")
BIASES = ("gate_up_proj_bias", "down_proj_bias")
_PACKED = frozenset((*WEIGHTS, *BIASES))


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

    def is_still(self, parameter: torch.Tensor | None) -> bool:
        if parameter is None:  # taken out of the module, as parametrizations do
            return False
        if parameter.data_ptr() != self.address or parameter._version != self.version:
            return False
        return bool(torch.equal(self.sampled, self.sample))


_numbers = itertools.count()


class Layer:
    """What `moelab_kernels.transformers` keeps on an experts module.

    packed: its weights, None before the first use. number: a scalar tensor that stands for the module in compiled
    graphs. A copy or a pickle of the module starts anew: it has weights of its own.
    """

    __slots__ = ("_gate", "_gate_state", "_module", "_packed_gate", "_seen", "_taken", "number", "packed")

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        self._module = None if module is None else weakref.ref(module)
        self._gate: Gate | None = None
        self._gate_state: tuple[Any, ...] | None = None
        self._packed_gate: Gate | None = None
        self._seen: dict[str, _Seen] = {}
        self._taken: dict[str, weakref.ref[torch.Tensor]] = {}
        self.number = None if module is None else torch.tensor(next(_numbers), device="cpu")
        self.packed: PackedExperts | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Layer, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        return Layer()

    def module(self) -> torch.nn.Module | None:
        """Whose layer this is."""
        return None if self._module is None else self._module()

    def gate(self, module: Any) -> Gate | None:
        """What the module computes between its products, None where no kernel does; asked anew when it may differ."""
        state = gate_state(module, _PACKED)
        if state != self._gate_state:
            self._gate = None if hooked(module) else find_gate(module._apply_gate)  # hooks would see the questions
            self._gate_state = state
        return self._gate

    def is_current(self, module: Any) -> bool:
        """Whether `packed` holds the present weights and gate of `module`, as far as a short look tells."""
        parameters = module._parameters
        weights = bool(self._seen) and all(seen.is_still(parameters.get(name)) for name, seen in self._seen.items())
        return weights and self.gate(module) == self._packed_gate

    def holds(self, module: Any) -> bool:
        """Whether `packed` holds the present weights of `module`, to the bit."""
        has = module._parameters
        return all(
            torch.equal(has[name][e].detach().view(torch.int16), values.to(has[name].dtype).view(torch.int16))
            for e, expert in self._experts(module)
            for name, values in expert.items()
        )

    def pack(self, module: Any, gate: Gate, *, discard: bool) -> None:
        """Packs the module's weights.

        discard: give the memory of each expert's weights back as soon as it is packed; they read zeros afterwards.
        """
        self.packed = None
        self._seen = {}
        self._taken = {}
        self._packed_gate = gate
        # Made before the views below, which would count as owners of the memory.
        discarded = [name for name in WEIGHTS if discard and not shared(module, name)]
        discarders = [Discarder(module._parameters[name]) for name in discarded]
        w13, w2 = (_rows_first(module, name) for name in WEIGHTS)
        biases = [module._parameters[name] for name in BIASES] if module.has_bias else []
        experts, hidden, intermediate = w2.shape
        packer = Packer(
            experts,
            hidden,
            intermediate,
            activation=gate.activation,
            gate_up=gate.gate_up,
            bias=module.has_bias,
            alpha=gate.alpha,
            limit=gate.limit,
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

    def let_go(self, module: torch.nn.Module) -> None:
        """Puts placeholders where the weights were, but for those that somebody else holds."""
        for name in WEIGHTS:
            if shared(module, name):
                continue
            parameter = module._parameters[name]
            if parameter.numel() > 1:  # a placeholder has one element
                parameter.data = placeholder(parameter)
                self._taken[name] = weakref.ref(parameter)

    def taken(self) -> dict[str, torch.Tensor]:
        """The parameters that `let_go` took the values of, wherever they are now.

        Not always in the module: torch.func.functional_call puts others there for one call.
        """
        parameters = ((name, reference()) for name, reference in self._taken.items())
        return {name: p for name, p in parameters if p is not None and is_placeholder(p)}

    def unpacked(self, module: Any) -> dict[str, torch.Tensor]:
        """The values of `taken`, in the module's own order of dimensions."""
        weights = {name: torch.empty(p.shape, dtype=p.dtype) for name, p in self.taken().items()}
        if weights:
            for e, expert in self._experts(module):
                for name, weight in weights.items():
                    weight[e] = expert[name]
        return weights

    def _experts(self, module: Any) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        """What is packed of one expert after the other, by the names and in the order of dimensions of the module.

        Weights are BF16, biases fp32; the memory is used again for the next expert.
        """
        packed = self.packed
        assert packed is not None
        hidden, intermediate = packed.hidden, packed.intermediate
        rows = (
            torch.empty(2 * intermediate, hidden, dtype=torch.bfloat16),
            torch.empty(hidden, intermediate, dtype=torch.bfloat16),
        )
        biases = (torch.empty(2 * intermediate), torch.empty(hidden)) if packed.has_bias else ()
        targets = [tensor.view(torch.uint16).numpy() for tensor in rows] + [bias.numpy() for bias in biases]
        expert = dict(zip(WEIGHTS, (row.T for row in rows) if module.is_transposed else rows, strict=True))
        expert |= dict(zip(BIASES, biases, strict=False))
        for e in range(packed.num_experts):
            packed._unpack_into(e, *targets, *[None] * (4 - len(targets)))
            yield e, expert


def _rows_first(module: Any, name: str) -> torch.Tensor:
    """A weight as the packer takes it, [E, rows, columns]."""
    weight: torch.Tensor = module._parameters[name].detach()
    return weight.transpose(1, 2) if module.is_transposed else weight
