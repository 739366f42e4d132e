"""The experts function that transformers calls, and the torch op that stands for it in compiled graphs."""

from __future__ import annotations

import threading
import warnings
import weakref
from typing import Any

import torch
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from moelab_kernels._release import is_placeholder, shared
from moelab_kernels.transformers._gate import hooked
from moelab_kernels.transformers._layer import BIASES, WEIGHTS, Layer
from moelab_kernels.transformers._released import LAYER, is_released, mark_released, restore

_fused_moe = torch.ops.moelab.fused_moe.default
_told: set[str] = set()
# Of two threads that come to a module first, one packs: the other would read weights that are being given back.
_packing = threading.RLock()
# A compiled graph has no place for a module; it holds a number.
_modules: weakref.WeakValueDictionary[int, torch.nn.Module] = weakref.WeakValueDictionary()


class _Options:
    """release: give the model's own expert weights back to the system once they are packed."""

    release = False


options = _Options()


def experts(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """[S, H] from hidden_states [S, H], top_k_index [S, K] and top_k_weights [S, K], as transformers defines it.

    On the kernels where they can; else as transformers does by default, after a warning that says why.
    """
    compiling = torch.compiler.is_compiling()
    reason = _call_needs(self, hidden_states, top_k_weights)
    if reason is None:
        reason = _module_needs_while_tracing(self) if compiling else _module_needs(self)
    if reason is not None:
        return _fall_back(self, reason, hidden_states, top_k_index, top_k_weights)
    if compiling:
        # The number is read from the module while tracing, and so becomes an input: other modules can share the graph.
        number = self._moelab.number
        return torch.ops.moelab.transformers_experts(hidden_states, top_k_index, top_k_weights, number)
    return _run(self, hidden_states, top_k_index, top_k_weights)


def _run(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    packed = module.__dict__[LAYER].packed
    if module._is_expert_parallel:
        # Experts of other ranks have ids from here on, and -1 is what the kernels skip.
        top_k_index = top_k_index.masked_fill(top_k_index >= packed.num_experts, -1)
    if top_k_weights.dtype is not torch.float32:
        top_k_weights = top_k_weights.float()
    result: torch.Tensor = _fused_moe(
        hidden_states,
        packed.tensor,
        top_k_weights,
        top_k_index,
        packed.num_experts,
        packed.hidden,
        packed.intermediate,
        packed.activation,
    )
    return result


def _call_needs(module: Any, hidden_states: torch.Tensor, top_k_weights: torch.Tensor) -> str | None:
    """What this call needs that the kernels do not have."""
    if torch.compiler.is_exporting():
        if is_released(module):
            raise RuntimeError(
                f"{type(module).__name__}: torch.export takes the weights along, and these are released; "
                "export copy.deepcopy(model)"
            )
        return "an exported program leaves this process, where the packed weights are"
    if hidden_states.device.type != "cpu":
        return f"hidden states on {hidden_states.device.type}, the kernels run on the CPU"
    if hidden_states.dtype is not torch.bfloat16:
        return "hidden states are not BF16, which is what the kernels take (load the model with dtype=torch.bfloat16)"
    if torch.is_grad_enabled() and (
        hidden_states.requires_grad
        or top_k_weights.requires_grad
        or any(p is not None and p.requires_grad for p in module._parameters.values())
    ):
        return "gradients are on, and the kernels are for inference (call the model under torch.no_grad())"
    return None


def _module_needs(module: Any) -> str | None:
    """What the module needs that the kernels do not have; None once its present weights are packed."""
    layer = _layer_of(module)
    if layer.packed is not None and layer.is_current(module) and is_released(module) >= options.release:
        return None
    with _packing:
        return _pack(layer, module)


def _pack(layer: Layer, module: Any) -> str | None:
    current = layer.packed is not None and layer.is_current(module)
    if current and options.release and not is_released(module):
        # The weights are about to go, and an edit that torch did not count must not go with them.
        current = layer.holds(module)
        if current:
            layer.let_go(module)
            layer.look_at(module)
            _mark(module)
    if not current:
        if is_released(module):
            restore(module)
        reason = _lacks(layer, module)
        if reason is not None:
            return reason
        gate = layer.gate(module)
        assert gate is not None
        try:
            layer.pack(module, gate, discard=options.release)
        finally:  # interrupted, but packed and given back all the same
            if options.release and layer.packed is not None:
                _mark(module)
    return None


def _mark(module: Any) -> None:
    mark_released(module)
    for name in WEIGHTS:
        if shared(module, name):
            _tell(
                f"moelab: {name} of {type(module).__name__} stays in memory beside its packed copy: something else "
                "holds it (a tied module, an optimizer, a variable)"
            )


def _needs_before_packing(module: Any) -> str | None:
    """The same without packing, which would change the module under the eyes of torch.compile."""
    layer = _layer_of(module)
    return None if is_released(module) else _lacks(layer, module)


# What torch.compile calls while it traces, and does not look into.
_module_needs_while_tracing = torch.compiler.assume_constant_result(_needs_before_packing)


def _layer_of(module: Any) -> Layer:
    layer: Layer | None = module.__dict__.get(LAYER)
    if layer is not None and layer.module() is module:
        return layer
    with _packing:
        layer = module.__dict__.get(LAYER)
        if layer is None or layer.module() is not module:
            layer = module.__dict__[LAYER] = Layer(module)
            assert layer.number is not None
            _modules[int(layer.number)] = module
        return layer


def _lacks(layer: Layer, module: Any) -> str | None:
    return _weights_need(module) or _gate_needs(layer, module)


def _gate_needs(layer: Layer, module: Any) -> str | None:
    """What the gate needs that the kernels do not have."""
    part = hooked(module)
    if part is not None:
        return f"{part} has forward hooks, which the kernels would not call"
    if layer.gate(module) is None:
        return "no kernel computes the gate of these experts (`_apply_gate`)"
    return None


def _weights_need(module: Any) -> str | None:
    """What the weights need that the packer does not have."""
    if not module.has_gate:
        return "experts without a gate, the kernels compute gated ones"
    if module.has_post_expert_norm:
        return "a norm after each expert, the kernels add the experts up at once"
    names = (*WEIGHTS, *BIASES) if module.has_bias else WEIGHTS
    reasons = (_weight_needs(name, module._parameters.get(name)) for name in names)
    return next((reason for reason in reasons if reason), None)


def _weight_needs(name: str, weight: torch.Tensor | None) -> str | None:
    reason = None
    if weight is None:
        reason = f"{name} is no parameter of its own (quantised, parametrised or pruned?)"
    elif type(weight.data) is not torch.Tensor:
        reason = f"{name} is a {type(weight.data).__name__}, the kernels take plain tensors (quantised or sharded?)"
    elif weight.device.type != "cpu":
        reason = f"{name} is on {weight.device.type}, the kernels run on the CPU"
    elif weight.dtype is not torch.bfloat16:
        reason = f"{name} is {weight.dtype}, the kernels compute in BF16 (load the model with dtype=torch.bfloat16)"
    elif is_placeholder(weight):
        # Neither we nor anybody else can compute with it.
        raise RuntimeError(
            f"{name}: its values are packed in another module, which shares this parameter and has released it; "
            "copy modules with copy.deepcopy, and tie parameters by the modules' attributes"
        )
    elif weight.is_inference():
        reason = f"{name} was made in inference mode, where edits cannot be noticed (load the model outside of it)"
    return reason


def fp8_experts(self: Any, *arguments: torch.Tensor) -> torch.Tensor:
    """For checkpoints in FP8, whose experts have an interface of their own."""
    return _fall_back(
        self, "its weights are FP8, the kernels compute in BF16", *arguments, own=ALL_FP8_EXPERTS_FUNCTIONS
    )


def _fall_back(module: Any, reason: str, *arguments: torch.Tensor, own: Any = ALL_EXPERTS_FUNCTIONS) -> torch.Tensor:
    _tell(f"moelab: {type(module).__name__} runs on transformers' own grouped_mm: {reason}")
    result: torch.Tensor = own["grouped_mm"](module, *arguments)
    return result


def _warn_once(message: str) -> None:
    if message not in _told:
        _told.add(message)
        warnings.warn(message, stacklevel=2)


_tell = torch.compiler.assume_constant_result(_warn_once)

_library = torch.library.Library("moelab", "FRAGMENT")
_library.define(
    "transformers_experts(Tensor hidden_states, Tensor top_k_index, Tensor top_k_weights, Tensor number) -> Tensor"
)


def _in_graph(
    hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor, number: torch.Tensor
) -> torch.Tensor:
    module = _modules[int(number)]
    reason = _module_needs(module)  # weights may have been edited since the graph was made
    if reason is not None:
        return _fall_back(module, reason, hidden_states, top_k_index, top_k_weights)
    return _run(module, hidden_states, top_k_index, top_k_weights)


_library.impl("transformers_experts", _in_graph, "CompositeExplicitAutograd")
torch.library.register_fake("moelab::transformers_experts", lambda x, *_: x.new_empty(x.shape), lib=_library)
