"""Experts modules whose weights exist only packed: everything else that asks for them gets them back.

A module that was released changes its class to a subclass made here (as torch's parametrizations do). Saving unpacks;
reading a weight, loading, moving, casting, copying and pickling put the weights back first, and the next use by the
kernels releases them again.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from moelab_kernels._release import is_placeholder
from moelab_kernels.transformers._layer import WEIGHTS, Layer

LAYER = "_moelab"
_classes: dict[Any, Any] = {}


def mark_released(module: torch.nn.Module) -> None:
    """To be called once the module's weights are placeholders."""
    if not is_released(module):
        original = type(module)
        if original not in _classes:
            _classes[original] = _released_class(original)
        module.__class__ = _classes[original]


def is_released(module: torch.nn.Module) -> bool:
    """Whether `module` is marked."""
    return getattr(type(module), "_moelab_released", False)


def restore(module: torch.nn.Module) -> None:
    """Puts the weights back; those that were given to the module since then stay."""
    layer: Layer = module.__dict__[LAYER]
    weights, parameters = layer.unpacked(module), layer.taken()
    module.__class__ = type(module).__mro__[1]
    changed = not layer.is_current(module)
    for name, weight in weights.items():
        parameters[name].data = weight
    if not changed:
        layer.look_at(module)


def _released_class(original: Any) -> Any:
    class Released(original):  # type: ignore[misc]
        _moelab_released = True
        forward = original.forward  # torch.compile looks for it in the class itself

        def _apply(self, *args: Any, **kwargs: Any) -> Any:
            restore(self)
            return self._apply(*args, **kwargs)

        def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
            restore(self)
            self._load_from_state_dict(*args, **kwargs)

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            if keep_vars:
                restore(self)
                self._save_to_state_dict(destination, prefix, keep_vars)
                return
            super()._save_to_state_dict(destination, prefix, keep_vars)
            layer: Layer = self.__dict__[LAYER]
            taken = layer.taken()
            for name, weight in layer.unpacked(self).items():
                if self._parameters.get(name) is taken[name]:
                    destination[prefix + name] = weight

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            restore(self)
            return copy.deepcopy(self, memo)

        def __reduce_ex__(self, protocol: Any) -> Any:
            restore(self)
            return self.__reduce_ex__(protocol)

    for name in WEIGHTS:
        setattr(Released, name, property(_reader(name)))
    Released.__name__, Released.__qualname__ = original.__name__, original.__qualname__
    Released.__module__, Released.__doc__ = original.__module__, original.__doc__
    return Released


def _reader(name: str) -> Any:
    def read(self: torch.nn.Module) -> Any:
        if name not in self._parameters:
            raise AttributeError(name)  # torch's own sentence follows
        if is_placeholder(self._parameters[name]):
            restore(self)
        return self._parameters[name]

    return read
