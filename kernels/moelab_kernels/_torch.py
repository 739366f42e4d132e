"""torch.ops.moelab.fused_moe and fused_moe_out, with fakes for torch.compile and torch.export.

Library.define and impl cost about 5 us a call; torch.library.custom_op costs about 40.
"""

from __future__ import annotations

from typing import Any

import torch

from moelab_kernels import _openmp
from moelab_kernels._invoke import check_out, check_shapes, expected_layer, run, shape_error
from moelab_kernels._lib import CALL
from moelab_kernels._packed import PackedExperts

# The packed weights are one uint8 tensor; a fake tensor has no header to read, so the geometry comes beside it.
_ARGUMENTS = (
    "Tensor x, Tensor packed, Tensor topk_weights, Tensor topk_ids, "
    "SymInt num_experts, SymInt hidden, SymInt intermediate, str activation, "
    "bool apply_router_weight_on_input=False, int? num_threads=None"
)

_library = torch.library.Library("moelab", "FRAGMENT")
_library.define(f"fused_moe({_ARGUMENTS}) -> Tensor")
_library.define(f"fused_moe_out({_ARGUMENTS}, *, Tensor(a!) out) -> ()")
_fused_moe = torch.ops.moelab.fused_moe.default
_fused_moe_out = torch.ops.moelab.fused_moe_out.default

_TENSOR = torch.Tensor
_BF16, _FP32, _UINT8, _INT32, _INT64 = torch.bfloat16, torch.float32, torch.uint8, torch.int32, torch.int64

# Without it autograd would not notice that a tensor it saved has been written to.
_increment_version = torch.autograd.graph.increment_version

_NO_BACKWARD = (
    "moelab.fused_moe has no backward: its kernels are for inference; call it under torch.no_grad() or "
    "torch.inference_mode(), or detach its inputs"
)


def _cpu(
    x: torch.Tensor,
    packed: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    num_experts: int,
    hidden: int,
    intermediate: int,
    activation: str,
    apply_router_weight_on_input: bool = False,
    num_threads: int | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    # Every look at a tensor costs 0.1 to 0.2 us: each is made once. All tensors are dense and on the CPU, or the
    # dispatcher would not have come here.
    ids_dtype = topk_ids.dtype
    if x.dtype is not _BF16:
        raise TypeError(f"x: dtype {x.dtype}, expected torch.bfloat16")
    if ids_dtype is not _INT64 and ids_dtype is not _INT32:
        raise TypeError(f"topk_ids: dtype {ids_dtype}, expected torch.int32 or torch.int64")
    if packed.dtype is not _UINT8 or not packed.is_contiguous():
        raise TypeError(f"packed: dtype {packed.dtype}, strides {packed.stride()}, expected contiguous torch.uint8")
    tokens, topk = check_shapes(x, topk_weights, topk_ids, hidden)
    x_strides, weights_strides, ids_strides = x.stride(), topk_weights.stride(), topk_ids.stride()
    x_address, weights_address, ids_address = x.data_ptr(), topk_weights.data_ptr(), topk_ids.data_ptr()
    packed_address, packed_bytes = packed.data_ptr(), packed.numel()
    if out is None:
        # empty_like is the cheaper one, but keeps strides.
        out = torch.empty_like(x) if x_strides == (hidden, 1) else torch.empty(tokens, hidden, dtype=_BF16)
        out_address, out_stride = out.data_ptr(), hidden
    else:
        out_address, out_stride = out.data_ptr(), _check_out(out, tokens, hidden)
        end = out_address + 2 * (tokens * out_stride + hidden)
        # Most often every input ends before the output begins, or begins after its end (torch has no negative
        # strides). Only where one does not, or strides are odd, it takes the exact look.
        (x_row, x_column), (w_row, w_column), (id_row, id_column) = x_strides, weights_strides, ids_strides
        if (
            out_stride < hidden
            or (x_address < end and out_address < x_address + 2 * (tokens * x_row + hidden * x_column + 1))
            or (weights_address < end and out_address < weights_address + 4 * (tokens * w_row + topk * w_column + 1))
            or (ids_address < end and out_address < ids_address + 8 * (tokens * id_row + topk * id_column + 1))
            or (packed_address < end and out_address < packed_address + packed_bytes)
        ):
            check_out(
                (out_address, tokens, hidden, *out.stride(), 2),
                (x_address, tokens, hidden, *x_strides, 2),
                (weights_address, tokens, topk, *weights_strides, topk_weights.itemsize),
                (ids_address, tokens, topk, *ids_strides, topk_ids.itemsize),
                (packed_address, 1, packed_bytes, 0, 1, 1),
            )
    if x_strides[1] != 1:
        x = x.contiguous()
        x_strides, x_address = x.stride(), x.data_ptr()
    if topk_weights.dtype is not _FP32:
        topk_weights = _float_weights(topk_weights)
        weights_strides, weights_address = topk_weights.stride(), topk_weights.data_ptr()
    call = CALL.pack(
        x_address,
        x_strides[0],
        tokens,
        topk,
        weights_address,
        *weights_strides,
        ids_address,
        ids_dtype is _INT64,
        *ids_strides,
        out_address,
        out_stride,
        apply_router_weight_on_input,
        _openmp.resolve(num_threads),
    )
    run(packed_address, packed_bytes, expected_layer(num_experts, hidden, intermediate, activation), call)
    return out


def _float_weights(topk_weights: torch.Tensor) -> torch.Tensor:
    if topk_weights.dtype is not _BF16:
        raise TypeError(f"topk_weights: dtype {topk_weights.dtype}, expected torch.float32 or torch.bfloat16")
    return topk_weights.float()


def _check_out(out: torch.Tensor, tokens: int, hidden: int) -> int:
    """Row stride of `out`, -1 where its last stride is none that works."""
    if out.dtype is not _BF16:
        raise TypeError(f"out: dtype {out.dtype}, expected torch.bfloat16")
    if out.shape != (tokens, hidden):
        shape_error("out", out.shape, str([tokens, hidden]))
    stride: int
    stride, unit = out.stride()
    return stride if unit == 1 or hidden == 1 else -1


def _cpu_out(*arguments: Any, out: torch.Tensor, **options: Any) -> None:
    _cpu(*arguments, out=out, **options)
    _increment_version(out)


def _elsewhere(x: Any, packed: Any, topk_weights: Any, topk_ids: Any, *_: Any, out: Any = None, **__: Any) -> Any:
    """Any backend but dense CPU."""
    tensors = {"x": x, "packed": packed, "topk_weights": topk_weights, "topk_ids": topk_ids, "out": out}
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.device.type != "cpu" or tensor.layout is not torch.strided):
            raise ValueError(f"{name}: {tensor.layout} on device {tensor.device}, expected torch.strided on cpu")
    raise ValueError("x, packed, topk_weights, topk_ids: expected plain tensors on cpu")


def _fake(x: torch.Tensor, packed: Any, weights: Any, ids: Any, experts: Any, hidden: Any, *_: Any, **__: Any) -> Any:
    torch._check(x.dtype is torch.bfloat16, lambda: f"x: dtype {x.dtype}, expected torch.bfloat16")
    torch._check(x.dim() == 2, lambda: f"x: shape {list(x.shape)}, expected [M, H]")
    return x.new_empty(x.shape[0], hidden)


def _fake_out(*_: Any, **__: Any) -> None:
    return None


class _NoBackward(torch.autograd.Function):  # type: ignore[misc]
    """Forward as usual; a sentence instead of a gradient."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, arguments: tuple[Any, ...], options: dict[str, Any], *_: torch.Tensor) -> Any:
        return _below_autograd(_fused_moe, keyset, arguments, options)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(_NO_BACKWARD)


def _below_autograd(op: Any, keyset: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments, **options)


# The dispatch keys of a call on plain CPU tensors with no mode active: nothing lies between autograd and the kernel,
# and going through the dispatcher once more (4 us) would only lead to it.
_PLAIN = (
    torch._C.DispatchKeySet(torch._C.DispatchKey.CPU) | torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
).raw_repr()


def _autograd(keyset: Any, x: Any, packed: Any, topk_weights: Any, *rest: Any, **options: Any) -> Any:
    if (x.requires_grad or topk_weights.requires_grad) and torch.is_grad_enabled():
        return _NoBackward.apply(keyset, (x, packed, topk_weights, *rest), options, x, topk_weights)
    if keyset.raw_repr() == _PLAIN:
        return _cpu(x, packed, topk_weights, *rest, **options)
    return _below_autograd(_fused_moe, keyset, (x, packed, topk_weights, *rest), options)


def _autograd_out(
    keyset: Any, x: Any, packed: Any, topk_weights: Any, *rest: Any, out: torch.Tensor, **options: Any
) -> None:
    if (x.requires_grad or topk_weights.requires_grad or out.requires_grad) and torch.is_grad_enabled():
        raise RuntimeError(_NO_BACKWARD)
    if keyset.raw_repr() == _PLAIN:
        _cpu(x, packed, topk_weights, *rest, out=out, **options)
        _increment_version(out)
    else:
        _below_autograd(_fused_moe_out, keyset, (x, packed, topk_weights, *rest), {"out": out, **options})


for _name, _kernel, _autograd_kernel, _fake_kernel in (
    ("fused_moe", _cpu, _autograd, _fake),
    ("fused_moe_out", _cpu_out, _autograd_out, _fake_out),
):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _elsewhere, "CompositeExplicitAutograd")
    _library.impl(_name, _autograd_kernel, "AutogradCPU", with_keyset=True)
    torch.library.register_fake(f"moelab::{_name}", _fake_kernel, lib=_library)

_openmp.threads.default = torch.get_num_threads


def fused_moe(
    x: Any,
    packed: PackedExperts,
    topk_weights: Any,
    topk_ids: Any,
    out: Any,
    on_input: bool,
    num_threads: int | None,
) -> torch.Tensor:
    """The torch half of `moelab_kernels.fused_moe`: through the op, so that every mode of torch sees it."""
    if not (isinstance(x, _TENSOR) and isinstance(topk_weights, _TENSOR) and isinstance(topk_ids, _TENSOR)):
        for name, value in (("x", x), ("topk_weights", topk_weights), ("topk_ids", topk_ids)):
            if not isinstance(value, _TENSOR):
                raise TypeError(f"{name}: {type(value).__name__}, expected torch tensors, or numpy arrays throughout")
    arguments = (
        x,
        packed._tensor,
        topk_weights,
        topk_ids,
        packed.num_experts,
        packed.hidden,
        packed.intermediate,
        packed.activation,
        on_input,
        num_threads if num_threads is None else _openmp.checked(num_threads),
    )
    if out is None:
        result: torch.Tensor = _fused_moe(*arguments)
        return result
    if not isinstance(out, _TENSOR):
        raise TypeError(f"out: {type(out).__name__}, expected a torch tensor like x")
    _fused_moe_out(*arguments, out=out)
    return out
