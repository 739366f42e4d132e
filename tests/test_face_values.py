"""The Python face computes the layer, whatever the arrays come in and however they lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import moelab_kernels as mk
from face_layer import (
    ACTIVATIONS,
    CONTAINERS,
    Bits,
    assert_close,
    bits_of,
    contain,
    flags,
    make_inputs,
    make_layer,
    pack_arguments,
    plain,
    round_to_bits,
)

torch: Any = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")


@pytest.fixture(params=CONTAINERS)
def container(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("isa", mk.isas())
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_on_every_isa(activation: str, bias: bool, isa: str) -> None:
    layer = make_layer(activation=activation, bias=bias)
    inputs = make_inputs(layer)
    packed = mk.pack(**pack_arguments(layer, "torch"), isa=isa)
    assert packed.isa == isa
    assert_close(
        mk.fused_moe(inputs.contained("torch")[0], packed, *inputs.contained("torch")[1:]),
        layer.reference(inputs.x, inputs.topk_weights, inputs.topk_ids),
    )


def test_every_container(container: str) -> None:
    layer = make_layer(bias=True)
    inputs = make_inputs(layer)
    packed = mk.pack(**pack_arguments(layer, container))
    x, weights, ids = inputs.contained(container)
    out = mk.fused_moe(x, packed, weights, ids, **flags(container))
    assert type(out) is type(x)
    assert out.dtype == x.dtype
    assert_close(out, layer.reference(inputs.x, inputs.topk_weights, inputs.topk_ids))


def test_containers_agree_to_the_bit() -> None:
    layer = make_layer()
    inputs = make_inputs(layer)
    outs = []
    for container in CONTAINERS:
        x, weights, ids = inputs.contained(container)
        packed = mk.pack(**pack_arguments(layer, container))
        outs.append(bits_of(mk.fused_moe(x, packed, weights, ids, **flags(container))))
    assert all(np.array_equal(outs[0], out) for out in outs[1:])


@pytest.mark.parametrize(
    ("experts", "hidden", "intermediate", "tokens", "topk"),
    [(1, 1, 1, 1, 1), (2, 1, 3, 3, 1), (3, 7, 5, 2, 3), (5, 33, 65, 17, 4), (2, 130, 1, 9, 2), (128, 16, 8, 40, 8)],
)
def test_any_size(experts: int, hidden: int, intermediate: int, tokens: int, topk: int) -> None:
    layer = make_layer(experts=experts, hidden=hidden, intermediate=intermediate, bias=True)
    inputs = make_inputs(layer, tokens=tokens, topk=topk)
    x, weights, ids = inputs.contained("torch")
    out = mk.fused_moe(x, mk.pack(**pack_arguments(layer, "torch")), weights, ids)
    assert_close(out, layer.reference(inputs.x, inputs.topk_weights, inputs.topk_ids))


def interleave(rows: Any) -> Any:
    """Split rows (gate, then up) as gpt-oss stores them: even rows gate, odd rows up."""
    gate, up = np.split(rows, 2, axis=1)
    return np.ascontiguousarray(np.stack([gate, up], axis=2).reshape(rows.shape))


def test_interleaved_rows(container: str) -> None:
    layer = make_layer(activation="swigluoai", bias=True)
    assert layer.w13_bias is not None
    inputs = make_inputs(layer)
    arguments = pack_arguments(layer, container)
    arguments["w13"] = contain(interleave(layer.w13), container)
    arguments["w13_bias"] = plain(interleave(layer.w13_bias), container)
    packed = mk.pack(**arguments, gate_up="interleaved")
    x, weights, ids = inputs.contained(container)
    out = mk.fused_moe(x, packed, weights, ids, **flags(container))
    assert_close(out, layer.reference(inputs.x, inputs.topk_weights, inputs.topk_ids))


def transposed(bits: Bits) -> Bits:
    """The same values with the last two dimensions swapped in memory."""
    return np.ascontiguousarray(bits.swapaxes(1, 2)).swapaxes(1, 2)


def padded(bits: Bits) -> Bits:
    """The same values as a slice of a larger array, every second element."""
    large = np.zeros((*bits.shape[:-1], 2 * bits.shape[-1] + 3), np.uint16)
    view = large[..., 1 : 1 + 2 * bits.shape[-1] : 2]
    view[...] = bits
    return view


@pytest.mark.parametrize("layout", [transposed, padded])
def test_weights_of_any_strides(layout: Any, container: str) -> None:
    layer = make_layer()
    tight = mk.pack(**pack_arguments(layer, container))
    arguments = pack_arguments(layer, container)
    arguments |= {name: contain(layout(getattr(layer, name)), container) for name in ("w13", "w2")}
    assert mk.pack(**arguments).tobytes() == tight.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes_are_rounded_once(dtype: str) -> None:
    random = np.random.default_rng(3)
    w13 = random.standard_normal((2, 6, 9)).astype(dtype)
    w2 = random.standard_normal((2, 9, 3)).astype(dtype)
    from_floats = mk.pack(w13, w2, activation="silu")
    from_bits = mk.pack(
        round_to_bits(w13.astype(np.float32)),
        round_to_bits(w2.astype(np.float32)),
        activation="silu",
        bf16_as_uint16=True,
    )
    assert from_floats.tobytes() == from_bits.tobytes()


def test_x_of_any_strides(container: str) -> None:
    layer = make_layer()
    inputs = make_inputs(layer, tokens=6)
    packed = mk.pack(**pack_arguments(layer, container))
    x, weights, ids = inputs.contained(container)
    expected = bits_of(mk.fused_moe(x, packed, weights, ids, **flags(container)))
    wide = np.zeros((12, 100), np.uint16)
    wide[::2, 7 : 7 + layer.hidden] = inputs.x
    columns = np.asfortranarray(inputs.x)
    for bits in (wide[::2, 7 : 7 + layer.hidden], columns, padded(inputs.x)):
        out = mk.fused_moe(contain(bits, container), packed, weights, ids, **flags(container))
        assert np.array_equal(bits_of(out), expected)
    if container != "torch":  # torch has no negative strides
        out = mk.fused_moe(contain(inputs.x[::-1].copy()[::-1], container), packed, weights, ids, **flags(container))
        assert np.array_equal(bits_of(out), expected)


def test_broadcast_x() -> None:
    layer = make_layer()
    inputs = make_inputs(layer, tokens=1)
    packed = mk.pack(**pack_arguments(layer, "torch"))
    x, weights, ids = inputs.contained("torch")
    one = mk.fused_moe(x, packed, weights, ids)
    many = mk.fused_moe(x.expand(7, -1), packed, weights.expand(7, -1), ids.expand(7, -1))
    assert torch.equal(many, one.expand(7, -1))


def test_router_arrays_of_any_strides_and_types(container: str) -> None:
    layer = make_layer()
    inputs = make_inputs(layer, tokens=6, topk=3)
    packed = mk.pack(**pack_arguments(layer, container))
    x, weights, ids = inputs.contained(container)
    expected = bits_of(mk.fused_moe(x, packed, weights, ids, **flags(container)))
    by_columns = np.asfortranarray(inputs.topk_weights)
    narrow = np.zeros((6, 9), np.int32)
    narrow[:, ::3] = inputs.topk_ids
    out = mk.fused_moe(x, packed, plain(by_columns, container), plain(narrow[:, ::3], container), **flags(container))
    assert np.array_equal(bits_of(out), expected)


def test_bf16_router_weights(container: str) -> None:
    layer = make_layer()
    inputs = make_inputs(layer)
    bits = round_to_bits(inputs.topk_weights)
    packed = mk.pack(**pack_arguments(layer, container))
    x, _, ids = inputs.contained(container)
    widened = (bits.astype(np.uint32) << 16).view(np.float32)
    out = mk.fused_moe(x, packed, contain(bits, container), ids, **flags(container))
    same = mk.fused_moe(x, packed, plain(widened, container), ids, **flags(container))
    assert np.array_equal(bits_of(out), bits_of(same))


def test_skipped_and_repeated_ids(container: str) -> None:
    layer = make_layer()
    inputs = make_inputs(layer, tokens=4, topk=3)
    inputs.topk_ids[:] = [[-1, 2, -1], [-1, -1, -1], [3, 3, 1], [0, -1, 0]]
    packed = mk.pack(**pack_arguments(layer, container))
    x, weights, ids = inputs.contained(container)
    out = mk.fused_moe(x, packed, weights, ids, **flags(container))
    assert_close(out, layer.reference(inputs.x, inputs.topk_weights, inputs.topk_ids))
    assert not bits_of(out)[1].any()


def test_router_weight_on_input(container: str) -> None:
    layer = make_layer(bias=True)
    inputs = make_inputs(layer, topk=3)
    packed = mk.pack(**pack_arguments(layer, container))
    x, weights, ids = inputs.contained(container)
    out = mk.fused_moe(x, packed, weights, ids, apply_router_weight_on_input=True, **flags(container))
    assert_close(out, layer.reference(inputs.x, inputs.topk_weights, inputs.topk_ids, on_input=True))


def test_no_tokens(container: str) -> None:
    layer = make_layer()
    inputs = make_inputs(layer, tokens=0)
    packed = mk.pack(**pack_arguments(layer, container))
    x, weights, ids = inputs.contained(container)
    assert tuple(mk.fused_moe(x, packed, weights, ids, **flags(container)).shape) == (0, layer.hidden)
    assert mk.fused_moe(x, packed, weights, ids, out=x[:0], **flags(container)) is not None


def test_out_is_overwritten_and_returned(container: str) -> None:
    layer = make_layer()
    inputs = make_inputs(layer)
    packed = mk.pack(**pack_arguments(layer, container))
    x, weights, ids = inputs.contained(container)
    expected = bits_of(mk.fused_moe(x, packed, weights, ids, **flags(container)))
    ids[0] = -1
    expected[0] = 0
    wide = np.full((5, layer.hidden + 9), 0x7FC0, np.uint16)  # NaN everywhere
    out = contain(wide[:, 4 : 4 + layer.hidden], container)
    assert mk.fused_moe(x, packed, weights, ids, out=out, **flags(container)) is out
    assert np.array_equal(wide[:, 4 : 4 + layer.hidden], expected)
    assert (wide[:, :4] == 0x7FC0).all()
    assert (wide[:, 4 + layer.hidden :] == 0x7FC0).all()


def test_out_may_share_a_buffer_with_x(container: str) -> None:
    layer = make_layer()
    inputs = make_inputs(layer)
    packed = mk.pack(**pack_arguments(layer, container))
    x, weights, ids = inputs.contained(container)
    expected = bits_of(mk.fused_moe(x, packed, weights, ids, **flags(container)))
    both = np.zeros((5, 2 * layer.hidden), np.uint16)
    both[:, : layer.hidden] = inputs.x
    left, right = contain(both[:, : layer.hidden], container), contain(both[:, layer.hidden :], container)
    mk.fused_moe(left, packed, weights, ids, out=right, **flags(container))
    assert np.array_equal(both[:, layer.hidden :], expected)
    assert np.array_equal(both[:, : layer.hidden], inputs.x)


def test_inputs_are_never_modified(container: str) -> None:
    layer = make_layer(bias=True)
    inputs = make_inputs(layer)
    assert layer.w13_bias is not None
    arrays: tuple[Any, ...] = (
        layer.w13,
        layer.w2,
        layer.w13_bias,
        inputs.x,
        inputs.topk_weights,
        inputs.topk_ids,
    )
    before = [array.copy() for array in arrays]
    packed = mk.pack(**pack_arguments(layer, container))
    data = packed.tobytes()
    x, weights, ids = inputs.contained(container)
    for on_input in (False, True):
        mk.fused_moe(x, packed, weights, ids, apply_router_weight_on_input=on_input, **flags(container))
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, before, strict=True))
    assert packed.tobytes() == data


def test_same_bits_whatever_the_batch_and_the_threads() -> None:
    layer = make_layer(hidden=72, intermediate=40)
    inputs = make_inputs(layer, tokens=50, topk=3)
    packed = mk.pack(**pack_arguments(layer, "torch"))
    x, weights, ids = inputs.contained("torch")
    together = mk.fused_moe(x, packed, weights, ids, num_threads=1)
    for threads in (2, 3, 7):
        assert torch.equal(mk.fused_moe(x, packed, weights, ids, num_threads=threads), together)
    for token in range(50):
        alone = mk.fused_moe(x[token : token + 1], packed, weights[token : token + 1], ids[token : token + 1])
        assert torch.equal(alone[0], together[token])


def test_nan_stays_in_its_row() -> None:
    layer = make_layer()
    inputs = make_inputs(layer, tokens=6)
    packed = mk.pack(**pack_arguments(layer, "torch"))
    x, weights, ids = inputs.contained("torch")
    clean = mk.fused_moe(x, packed, weights, ids)
    x[2, 5] = float("nan")
    out = mk.fused_moe(x, packed, weights, ids)
    assert out[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(out[others], clean[others])
