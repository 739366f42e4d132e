"""Packed weights: exact to unpack, to copy, to store and to share; damage and mix-ups are errors."""

from __future__ import annotations

import copy
import mmap
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moelab_kernels as mk
from face_layer import ALPHA, CONTAINERS, LIMIT, Layer, bits_of, contain, make_inputs, make_layer, pack_arguments

pytest.importorskip("ml_dtypes")


@pytest.fixture
def packed() -> mk.PackedExperts:
    return mk.pack(**pack_arguments(make_layer(experts=3, hidden=20, intermediate=12, bias=True), "uint16"))


def assert_unpacks(packed: mk.PackedExperts, layer: Layer) -> None:
    w13, w2, w13_bias, w2_bias = packed.unpack()
    assert np.array_equal(bits_of(w13), layer.w13)
    assert np.array_equal(bits_of(w2), layer.w2)
    for bias, original in ((w13_bias, layer.w13_bias), (w2_bias, layer.w2_bias)):
        if original is None:
            assert bias is None
        else:
            assert np.array_equal(np.asarray(bias), original)


@pytest.mark.parametrize("isa", mk.isas())
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 1), (2, 8, 4), (3, 37, 21), (2, 64, 130)])
def test_unpacking_is_exact(size: tuple[int, int, int], bias: bool, isa: str) -> None:
    experts, hidden, intermediate = size
    layer = make_layer(experts=experts, hidden=hidden, intermediate=intermediate, bias=bias)
    assert_unpacks(mk.pack(**pack_arguments(layer, "uint16"), isa=isa), layer)


def test_unpacking_restores_the_order_of_rows() -> None:
    layer = make_layer(bias=True)
    assert_unpacks(mk.pack(**pack_arguments(layer, "uint16"), gate_up="interleaved"), layer)


@pytest.mark.parametrize("container", CONTAINERS)
def test_unpacking_returns_the_container_that_was_packed(container: str) -> None:
    if container == "torch":
        pytest.importorskip("torch")
    arguments = pack_arguments(make_layer(bias=True), container)
    packed = mk.pack(**arguments)
    for copied in (packed, copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        w13, w2, w13_bias, _ = copied.unpack()
        assert type(w13) is type(arguments["w13"])
        assert w13.dtype == w2.dtype == arguments["w13"].dtype
        assert type(w13_bias) is type(arguments["w13_bias"])


def test_unpacking_of_every_bit_pattern() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    w13 = bits.reshape(1, 256, 256)
    w2 = bits[::-1].reshape(1, 512, 128)[:, :256]
    packed = mk.pack(w13, w2.copy(), activation="silu", bf16_as_uint16=True)
    assert np.array_equal(packed.unpack()[0], w13)
    assert np.array_equal(packed.unpack()[1], w2)


def test_attributes() -> None:
    layer = make_layer(experts=3, hidden=20, intermediate=12, activation="swigluoai", bias=True)
    packed = mk.pack(**pack_arguments(layer, "uint16"), alpha=ALPHA, limit=LIMIT, isa="scalar")
    assert (packed.isa, packed.num_experts, packed.hidden, packed.intermediate) == ("scalar", 3, 20, 12)
    assert (packed.activation, packed.has_bias, packed.limit) == ("swigluoai", True, LIMIT)
    assert packed.alpha == pytest.approx(ALPHA, rel=1e-7)
    assert packed.nbytes == len(packed.tobytes()) == packed.buffer.nbytes
    assert "swigluoai" in repr(packed)


def test_alpha_and_limit_are_used() -> None:
    layer = make_layer(activation="swigluoai")
    inputs = make_inputs(layer)
    changes: tuple[dict[str, Any], ...] = ({}, {"alpha": 0.5}, {"limit": 0.25})
    outs = [
        mk.fused_moe(*with_packed(inputs, mk.pack(**pack_arguments(layer, "uint16"), **options)), bf16_as_uint16=True)
        for options in changes
    ]
    assert not np.array_equal(outs[0], outs[1])
    assert not np.array_equal(outs[0], outs[2])


def with_packed(inputs: Any, packed: mk.PackedExperts) -> tuple[Any, mk.PackedExperts, Any, Any]:
    return inputs.x, packed, inputs.topk_weights, inputs.topk_ids


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(packed: mk.PackedExperts, protocol: int) -> None:
    assert pickle.loads(pickle.dumps(packed, protocol)).tobytes() == packed.tobytes()


def test_pickle_out_of_band_copies_nothing(packed: mk.PackedExperts) -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(packed, 5, buffer_callback=buffers.append)
    assert len(data) < 500 < packed.nbytes
    assert pickle.loads(data, buffers=buffers).tobytes() == packed.tobytes()


def test_deepcopy_has_memory_of_its_own(packed: mk.PackedExperts) -> None:
    copied = copy.deepcopy(packed)
    assert copied.tobytes() == packed.tobytes()
    assert not np.shares_memory(np.asarray(copied.buffer), np.asarray(packed.buffer))


def test_buffer_is_read_only(packed: mk.PackedExperts) -> None:
    assert packed.buffer.readonly


def test_from_buffer_shares_a_mapped_file(packed: mk.PackedExperts, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(packed.buffer)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    shared = mk.PackedExperts.from_buffer(mapped)
    assert np.shares_memory(np.asarray(shared.buffer), np.frombuffer(mapped, np.uint8))
    layer_inputs = make_inputs(make_layer(experts=3, hidden=20, intermediate=12))
    expected = mk.fused_moe(*with_packed(layer_inputs, packed), bf16_as_uint16=True)
    assert np.array_equal(mk.fused_moe(*with_packed(layer_inputs, shared), bf16_as_uint16=True), expected)
    with pytest.raises(BufferError):  # the weights keep the mapping open
        mapped.close()


@pytest.mark.parametrize("offset", [0, 1, 8, 63])
def test_from_buffer_at_any_address(packed: mk.PackedExperts, offset: int) -> None:
    data = bytearray(offset) + packed.tobytes()
    assert mk.PackedExperts.from_buffer(memoryview(data)[offset:]).tobytes() == packed.tobytes()


def test_from_buffer_takes_a_tensor(packed: mk.PackedExperts) -> None:
    pytest.importorskip("torch")
    assert mk.PackedExperts.from_buffer(packed.tensor.clone()).tobytes() == packed.tobytes()


@pytest.mark.parametrize("where", np.linspace(0, 1, 40))
def test_one_changed_byte_anywhere_is_found(packed: mk.PackedExperts, where: float) -> None:
    data = bytearray(packed.tobytes())
    payload = [i for i in range(0, packed.nbytes, 7) if data[i]]  # gaps between blocks are checked by nobody
    data[payload[int(where * (len(payload) - 1))]] ^= 0x40
    with pytest.raises((ValueError, RuntimeError), match=r"damaged|magic|version|isa|checksum|expects|asks"):
        mk.PackedExperts.from_buffer(data)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data[:-1], "bytes"),
        (lambda data: data[: len(data) // 2], "bytes"),
        (lambda data: data[:50], "bytes"),
        (lambda data: data + b"\0", "bytes"),
        (lambda data: b"", "empty"),
        (lambda data: b"not weights at all" * 100, "magic"),
        (lambda data: bytes(len(data)), "magic"),
        (lambda data: data[:4096] + data[5000:] + data[4096:5000], "damaged"),
    ],
)
def test_other_data_is_refused(packed: mk.PackedExperts, spoil: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mk.PackedExperts.from_buffer(spoil(packed.tobytes()))


@pytest.mark.skipif(len(mk.isas()) < 2, reason="this CPU has one instruction set")
def test_weights_for_an_instruction_set_that_is_not_here_are_refused(tmp_path: Path) -> None:
    """A file packed on one machine and opened on another."""
    isa = mk.isas()[0]
    file = tmp_path / "packed"
    file.write_bytes(mk.pack(**pack_arguments(make_layer(), "uint16"), isa=isa).tobytes())
    script = f"""
import moelab_kernels as mk
assert {isa!r} not in mk.isas()
try:
    mk.PackedExperts.from_buffer(open({str(file)!r}, "rb").read())
except (RuntimeError, ValueError) as error:
    print(error)
"""
    environment = {**os.environ, "MOELAB_CPU_MASK": "avx2,avx512,avx512_bf16,amx_bf16,neon,bf16"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert re.search(rf"isa '{isa}'.*lacks", done.stdout), done.stdout


def test_verify_false_reads_the_header_only(packed: mk.PackedExperts) -> None:
    data = bytearray(packed.tobytes())
    data[-8 * 1024 if packed.nbytes > 8 * 1024 else -64] ^= 0xFF
    assert mk.PackedExperts.from_buffer(data, verify=False).nbytes == packed.nbytes
    data[0] ^= 0xFF
    with pytest.raises(ValueError, match="magic"):
        mk.PackedExperts.from_buffer(data, verify=False)


@pytest.mark.parametrize("buffer", [None, 3, "text", [1, 2]])
def test_from_buffer_wants_a_buffer(buffer: Any) -> None:
    with pytest.raises(TypeError, match="buffer"):
        mk.PackedExperts.from_buffer(buffer)


def test_from_buffer_wants_contiguous_bytes(packed: mk.PackedExperts) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        mk.PackedExperts.from_buffer(np.frombuffer(packed.tobytes(), np.uint8)[::2])


def test_packer_expert_by_expert_in_any_order() -> None:
    layer = make_layer(experts=3, bias=True)
    packer = mk.Packer(3, 40, 24, activation="silu", bias=True)
    assert layer.w13_bias is not None
    assert layer.w2_bias is not None
    for e in (2, 0, 1):
        packer.add(e, layer.w13[e], layer.w2[e], layer.w13_bias[e], layer.w2_bias[e], bf16_as_uint16=True)
    assert packer.finish().tobytes() == mk.pack(**pack_arguments(layer, "uint16")).tobytes()


def test_packer_wants_every_expert() -> None:
    layer = make_layer(experts=3)
    packer = mk.Packer(3, 40, 24, activation="silu")
    packer.add(0, layer.w13[0], layer.w2[0], bf16_as_uint16=True)
    packer.add(2, layer.w13[2], layer.w2[2], bf16_as_uint16=True)
    with pytest.raises(ValueError, match="expert 1"):
        packer.finish()
    packer.add(1, layer.w13[1], layer.w2[1], bf16_as_uint16=True)
    packer.finish()
    for again in (packer.finish, lambda: packer.add(0, layer.w13[0], layer.w2[0], bf16_as_uint16=True)):
        with pytest.raises(ValueError, match="finish"):
            again()


def test_memory_outlives_the_packer_and_the_source() -> None:
    layer = make_layer()
    inputs = make_inputs(layer)
    expected = mk.fused_moe(*with_packed(inputs, mk.pack(**pack_arguments(layer, "uint16"))), bf16_as_uint16=True)
    arguments: dict[str, Any] = {
        k: v.copy() if isinstance(v, np.ndarray) else v for k, v in pack_arguments(layer, "uint16").items()
    }
    packed = mk.pack(**arguments)
    for name in ("w13", "w2"):
        arguments[name][...] = 0
    buffer = packed.buffer
    again = mk.PackedExperts.from_buffer(buffer)
    del packed, buffer
    assert np.array_equal(mk.fused_moe(*with_packed(inputs, again), bf16_as_uint16=True), expected)


def test_weights_with_gradients_can_be_packed() -> None:
    torch = pytest.importorskip("torch")
    layer = make_layer()
    w13 = torch.nn.Parameter(contain(layer.w13, "torch"))
    w2 = torch.nn.Parameter(contain(layer.w2, "torch"))
    assert mk.pack(w13, w2, activation="silu").tobytes() == mk.pack(**pack_arguments(layer, "torch")).tobytes()
