"""Bad input: an error of the right type that names the argument, its value and what would be right. Never a crash."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

import moelab_kernels as mk
from face_layer import CONTAINERS, contain, flags, make_inputs, make_layer, pack_arguments, plain

pytest.importorskip("ml_dtypes")

LAYER = make_layer(experts=4, hidden=40, intermediate=24)
INPUTS = make_inputs(LAYER, tokens=5, topk=2)


@pytest.fixture(params=CONTAINERS)
def container(request: pytest.FixtureRequest) -> str:
    if request.param == "torch":
        pytest.importorskip("torch")
    return str(request.param)


def call(container: str, **changes: Any) -> Any:
    """fused_moe with some arguments changed."""
    x, weights, ids = INPUTS.contained(container)
    arguments = {
        "x": x,
        "packed": mk.pack(**pack_arguments(LAYER, container)),
        "topk_weights": weights,
        "topk_ids": ids,
        **flags(container),
        **changes,
    }
    return mk.fused_moe(**arguments)


def refused(kind: type[Exception] | tuple[type[Exception], ...], *words: str, function: Callable[[], Any]) -> None:
    """`function` raises `kind` with a message of one line that has all the words."""
    with pytest.raises(kind) as error:
        function()
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize("bad", [4, 5, -2, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_outside_the_experts(container: str, dtype: Any, bad: int) -> None:
    ids = INPUTS.topk_ids.astype(dtype)
    ids[3, 1] = bad
    refused(
        ValueError,
        "topk_ids[3, 1]",
        str(bad),
        "0 to 3",
        function=lambda: call(container, topk_ids=plain(ids, container)),
    )


@pytest.mark.parametrize("bad", [2**32, 2**32 + 1, -(2**40), 2**63 - 1])
def test_ids_beyond_int32(container: str, bad: int) -> None:
    ids = INPUTS.topk_ids.copy()
    ids[0, 0] = bad
    refused(ValueError, "topk_ids[0, 0]", str(bad), function=lambda: call(container, topk_ids=plain(ids, container)))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int16", "uint64"])
def test_ids_of_another_dtype(container: str, dtype: str) -> None:
    ids = plain(INPUTS.topk_ids.astype(dtype), container)
    refused(TypeError, "topk_ids", dtype, "int32", "int64", function=lambda: call(container, topk_ids=ids))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_x_of_another_dtype(container: str, dtype: str) -> None:
    x = plain(np.zeros((5, 40), dtype), container)
    refused(TypeError, "x", dtype, "bfloat16", function=lambda: call(container, x=x))


def test_router_weights_of_another_dtype(container: str) -> None:
    weights = plain(INPUTS.topk_weights.astype(np.float64), container)
    refused(TypeError, "topk_weights", "float64", "float32", function=lambda: call(container, topk_weights=weights))


@pytest.mark.parametrize("shape", [(5, 39), (5, 41), (40,), (1, 5, 40)])
def test_x_of_another_shape(container: str, shape: tuple[int, ...]) -> None:
    x = contain(np.zeros(shape, np.uint16), container)
    refused(ValueError, "x", str(list(shape)), "[M, 40]", function=lambda: call(container, x=x))


@pytest.mark.parametrize("shape", [(4, 2), (5,), (5, 0), (5, 2, 1)])
def test_ids_of_another_shape(container: str, shape: tuple[int, ...]) -> None:
    ids = plain(np.zeros(shape, np.int64), container)
    refused(ValueError, "topk_ids", str(list(shape)), "[5, K]", function=lambda: call(container, topk_ids=ids))


def test_router_weights_of_another_shape(container: str) -> None:
    weights = plain(np.zeros((5, 3), np.float32), container)
    refused(ValueError, "topk_weights", "[5, 3]", "[5, 2]", function=lambda: call(container, topk_weights=weights))


@pytest.mark.parametrize("name", ["x", "topk_weights", "topk_ids"])
@pytest.mark.parametrize("value", [None, 3, [[1.0, 2.0]], "text"])
def test_no_array_at_all(container: str, name: str, value: Any) -> None:
    refused(TypeError, name, type(value).__name__, "expected", function=lambda: call(container, **{name: value}))


def test_mixed_frameworks() -> None:
    pytest.importorskip("torch")
    _, weights, ids = INPUTS.contained("uint16")
    refused(TypeError, "topk_weights", "ndarray", function=lambda: call("torch", topk_weights=weights))
    refused(TypeError, "topk_ids", "ndarray", function=lambda: call("torch", topk_ids=ids))
    refused(TypeError, "topk_ids", "Tensor", function=lambda: call("uint16", topk_ids=INPUTS.contained("torch")[2]))


def test_packed_of_another_type(container: str) -> None:
    for value in (None, LAYER.w13, b"bytes"):
        refused(TypeError, "packed", "PackedExperts", function=partial(call, container, packed=value))


def test_uint16_needs_the_flag() -> None:
    hint = "bf16_as_uint16=True"
    refused(TypeError, "x", "uint16", hint, function=lambda: call("uint16", bf16_as_uint16=False))
    arguments = {**pack_arguments(LAYER, "uint16"), "bf16_as_uint16": False}
    refused(TypeError, "w13", "uint16", hint, function=lambda: mk.pack(**arguments))


@pytest.mark.parametrize(
    ("threads", "kind"), [(0, ValueError), (-1, ValueError), (2**31, ValueError), ("2", TypeError), (1.5, TypeError)]
)
def test_thread_counts(container: str, threads: Any, kind: type[Exception]) -> None:
    refused(kind, "num_threads", function=lambda: call(container, num_threads=threads))


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_router_weight_on_input_is_a_bool(container: str, value: Any) -> None:
    refused(
        TypeError,
        "apply_router_weight_on_input",
        type(value).__name__,
        function=lambda: call(container, apply_router_weight_on_input=value),
    )


def test_numpy_integers_are_thread_counts(container: str) -> None:
    call(container, num_threads=np.int64(2))


# ---- out --------------------------------------------------------------------------------------------


def test_out_of_another_dtype_or_shape(container: str) -> None:
    refused(
        TypeError,
        "out",
        "float32",
        "bfloat16",
        function=lambda: call(container, out=plain(np.zeros((5, 40), np.float32), container)),
    )
    for shape in ((5, 41), (4, 40), (200,)):
        out = contain(np.zeros(shape, np.uint16), container)
        refused(ValueError, "out", str(list(shape)), "[5, 40]", function=partial(call, container, out=out))
    refused(TypeError, "out", "list", function=lambda: call(container, out=[1]))


def test_out_without_unit_stride(container: str) -> None:
    out = contain(np.zeros((5, 80), np.uint16)[:, ::2], container)
    refused(ValueError, "out", "stride", "2", function=lambda: call(container, out=out))


def test_out_whose_rows_overlap(container: str) -> None:
    rows = np.lib.stride_tricks.as_strided(np.zeros(400, np.uint16), (5, 40), (20, 2))
    refused(ValueError, "out", "stride", "10", "40", function=lambda: call(container, out=contain(rows, container)))


@pytest.mark.parametrize("shift", [0, 1, 39, 40 * 4])
def test_out_overlapping_x(container: str, shift: int) -> None:
    memory = np.zeros(2000, np.uint16)
    x = memory[:200].reshape(5, 40)
    out = memory[shift : shift + 200].reshape(5, 40)
    refused(
        ValueError,
        "out",
        "overlaps x",
        function=lambda: call(container, x=contain(x, container), out=contain(out, container)),
    )


def test_out_beside_x_is_no_overlap(container: str) -> None:
    memory = np.zeros(2000, np.uint16)
    call(
        container,
        x=contain(memory[:200].reshape(5, 40), container),
        out=contain(memory[200:400].reshape(5, 40), container),
    )


def test_out_overlapping_an_x_that_would_be_copied(container: str) -> None:
    memory = np.zeros(2000, np.uint16)
    x = memory[:400].reshape(5, 80)[:, ::2]
    out = memory[10:210].reshape(5, 40)
    refused(
        ValueError,
        "out",
        "overlaps x",
        function=lambda: call(container, x=contain(x, container), out=contain(out, container)),
    )


def test_out_overlapping_router_arrays(container: str) -> None:
    memory = np.zeros(400, np.uint16)
    out = contain(memory[:200].reshape(5, 40), container)
    weights = plain(memory.view(np.float32)[90:100].reshape(5, 2), container)
    ids = plain(memory.view(np.int64)[45:55].reshape(5, 2)[:, :], container)
    refused(ValueError, "out", "topk_weights", function=lambda: call(container, topk_weights=weights, out=out))
    call(container, topk_ids=ids[:5] * 0, out=out)  # a copy: no overlap
    overlapping = plain(memory.view(np.int64)[40:50].reshape(5, 2), container)
    refused(ValueError, "out", "topk_ids", function=lambda: call(container, topk_ids=overlapping, out=out))


@pytest.mark.parametrize("name", ["x", "topk_weights", "topk_ids"])
@pytest.mark.parametrize("last", [False, True])
def test_out_over_the_one_element_of_a_broadcast_input(container: str, name: str, last: bool) -> None:
    memory = np.zeros(400, np.uint16)
    dtype = {"x": np.uint16, "topk_weights": np.float32, "topk_ids": np.int64}[name]
    place = 200 if last else 100
    element = memory[place : place + 4].view(dtype)[:1]
    one = np.lib.stride_tricks.as_strided(element, (5, 40 if name == "x" else 2), (0, 0))
    broadcast = contain(one, container) if name == "x" else plain(one, container)
    first = place - 199 if last else place
    out = memory[first : first + 200].reshape(5, 40)
    refused(
        ValueError,
        "out",
        f"overlaps {name}",
        function=lambda: call(container, **{name: broadcast}, out=contain(out, container)),
    )


def test_out_overlapping_the_packed_weights(container: str) -> None:
    packed = mk.pack(**pack_arguments(LAYER, container))
    writable = packed._bytes[-400:].view(np.uint16).reshape(5, 40)
    before = packed.tobytes()
    refused(
        ValueError, "out", "packed", function=lambda: call(container, packed=packed, out=contain(writable, container))
    )
    assert packed.tobytes() == before


def test_read_only_out() -> None:
    out = np.zeros((5, 40), np.uint16)
    out.flags.writeable = False
    refused(ValueError, "out", "read-only", function=lambda: call("uint16", out=out))


# ---- packing ----------------------------------------------------------------------------------------


def pack(container: str, **changes: Any) -> Any:
    """pack with some arguments changed."""
    return mk.pack(**{**pack_arguments(LAYER, container), **changes})


@pytest.mark.parametrize("activation", ["relu", "SILU", None, 0, ""])
def test_activation(container: str, activation: Any) -> None:
    refused(
        ValueError,
        "activation",
        repr(activation),
        "silu",
        "swigluoai",
        function=lambda: pack(container, activation=activation),
    )


def test_gate_up(container: str) -> None:
    refused(ValueError, "gate_up", "'halves'", "interleaved", function=lambda: pack(container, gate_up="halves"))


def test_isa(container: str) -> None:
    refused((ValueError, RuntimeError), "isa", "avx9000", "scalar", function=lambda: pack(container, isa="avx9000"))
    refused(TypeError, "isa", "int", function=lambda: pack(container, isa=3))


def test_weight_shapes(container: str) -> None:
    w13, w2 = pack_arguments(LAYER, container)["w13"], pack_arguments(LAYER, container)["w2"]
    refused(ValueError, "w13", "[4, 47, 40]", "[4, 48, 40]", function=lambda: pack(container, w13=w13[:, 1:]))
    refused(ValueError, "w13", "[3, 48, 40]", "[4, 48, 40]", function=lambda: pack(container, w13=w13[1:]))
    refused(ValueError, "w13", "[48, 40]", "[E, 2I, H]", function=lambda: pack(container, w13=w13[0]))
    refused(ValueError, "w2", "[40, 24]", "[E, H, I]", function=lambda: pack(container, w2=w2[0]))
    refused(ValueError, "w13", "[0, 48, 40]", "at least 1", function=lambda: pack(container, w13=w13[:0], w2=w2[:0]))


@pytest.mark.parametrize("dtype", ["float64", "int32", "int8"])
def test_weight_dtypes(container: str, dtype: str) -> None:
    w2 = plain(np.zeros((4, 40, 24), dtype), container)
    refused(TypeError, "w2", dtype, "bfloat16", "float32", function=lambda: pack(container, w2=w2))


def test_weights_that_are_no_arrays(container: str) -> None:
    refused(TypeError, "w13", "list", function=lambda: pack(container, w13=[[[1.0]]]))
    refused(TypeError, "w2", "NoneType", function=lambda: pack(container, w2=None))
    refused(TypeError, "w13_bias", "list", function=lambda: pack(container, w13_bias=[1.0], w2_bias=[1.0]))


def test_one_bias_of_two(container: str) -> None:
    bias = plain(np.zeros((4, 48), np.float32), container)
    refused(ValueError, "w13_bias", "both or none", function=lambda: pack(container, w13_bias=bias))


def test_bias_shapes(container: str) -> None:
    biases = {
        "w13_bias": plain(np.zeros((4, 47), np.float32), container),
        "w2_bias": plain(np.zeros((4, 40), np.float32), container),
    }
    refused(ValueError, "w13_bias", "[4, 47]", "[4, 48]", function=lambda: pack(container, **biases))


@pytest.mark.parametrize(
    "options", [{"alpha": float("nan")}, {"alpha": float("inf")}, {"limit": float("nan")}, {"limit": -1.0}]
)
def test_swigluoai_numbers(container: str, options: dict[str, float]) -> None:
    refused(ValueError, *options, function=lambda: pack(container, activation="swigluoai", **options))


def test_swigluoai_numbers_of_another_type(container: str) -> None:
    refused(TypeError, "alpha", function=lambda: pack(container, activation="swigluoai", alpha="much"))


@pytest.mark.parametrize("name", ["num_experts", "hidden", "intermediate"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [(0, ValueError), (-3, ValueError), (2**31, ValueError), (2**70, ValueError), (1.5, TypeError), ("8", TypeError)],
)
def test_packer_sizes(name: str, value: Any, kind: type[Exception]) -> None:
    sizes = {"num_experts": 2, "hidden": 8, "intermediate": 4, name: value}
    refused(kind, name, function=lambda: mk.Packer(**sizes, activation="silu"))


def test_more_memory_than_there_is() -> None:
    refused(MemoryError, "bytes", function=lambda: mk.Packer(2**20, 2**20, 2**20, activation="silu"))


@pytest.mark.parametrize(
    ("expert", "kind"), [(-1, ValueError), (2, ValueError), (2**64, ValueError), ("0", TypeError), (None, TypeError)]
)
def test_packer_expert(expert: Any, kind: type[Exception]) -> None:
    packer = mk.Packer(2, 40, 24, activation="silu")
    refused(kind, "e", function=lambda: packer.add(expert, LAYER.w13[0], LAYER.w2[0], bf16_as_uint16=True))


def test_packer_biases_as_declared() -> None:
    w13, w2 = LAYER.w13[0], LAYER.w2[0]
    biases = np.zeros(48, np.float32), np.zeros(40, np.float32)
    without, with_bias = mk.Packer(2, 40, 24, activation="silu"), mk.Packer(2, 40, 24, activation="silu", bias=True)
    refused(
        ValueError, "w13_bias_e", "bias=False", function=lambda: without.add(0, w13, w2, *biases, bf16_as_uint16=True)
    )
    refused(ValueError, "w13_bias_e", "bias=True", function=lambda: with_bias.add(0, w13, w2, bf16_as_uint16=True))
    refused(
        ValueError, "w2_bias_e", "bias=True", function=lambda: with_bias.add(0, w13, w2, biases[0], bf16_as_uint16=True)
    )


# ---- information ------------------------------------------------------------------------------------


def test_peak_arguments() -> None:
    refused(ValueError, "kind", "'int8'", "bf16", function=lambda: mk.peak(cast("Any", "int8")))
    refused(ValueError, "seconds", "0", function=lambda: mk.peak("read", seconds=0))
    refused((ValueError, RuntimeError), "isa", "avx9000", function=lambda: mk.peak("bf16", isa="avx9000"))


def test_an_error_leaves_the_next_call_alone(container: str) -> None:
    good = call(container)
    ids = INPUTS.topk_ids.copy()
    ids[0, 0] = 77
    with pytest.raises(ValueError, match="77"):
        call(container, topk_ids=plain(ids, container))
    again = call(container)
    assert (
        (np.asarray(good.view(np.uint16)) == np.asarray(again.view(np.uint16))).all()
        if container != "torch"
        else good.equal(again)
    )
