"""torch.ops.moelab: fakes, torch.compile, torch.export, autograd, modes."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest

import moelab_kernels as mk
from face_layer import make_inputs, make_layer, pack_arguments

torch: Any = pytest.importorskip("torch")

LAYER = make_layer(experts=4, hidden=40, intermediate=24, activation="swigluoai", bias=True)
# torch's own compiler needs Python's headers, which Debian and Ubuntu keep in a package of their own.
PYTHON_HEADERS = Path(sysconfig.get_paths()["include"], "Python.h").exists()


@pytest.fixture
def packed() -> mk.PackedExperts:
    return mk.pack(**pack_arguments(LAYER, "torch"))


@pytest.fixture
def inputs() -> tuple[Any, Any, Any]:
    return make_inputs(LAYER).contained("torch")


def geometry(packed: mk.PackedExperts) -> tuple[int, int, int, str]:
    return packed.num_experts, packed.hidden, packed.intermediate, packed.activation


def op_arguments(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> tuple[Any, ...]:
    x, weights, ids = inputs
    return (x, packed.tensor, weights, ids, *geometry(packed))


def test_ops_are_the_face(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    x, weights, ids = inputs
    expected = mk.fused_moe(x, packed, weights, ids)
    assert torch.equal(torch.ops.moelab.fused_moe(*op_arguments(packed, inputs)), expected)
    out = torch.full_like(x, float("nan"))
    assert torch.ops.moelab.fused_moe_out(*op_arguments(packed, inputs), out=out) is None
    assert torch.equal(out, expected)


def test_op_options(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    x, weights, ids = inputs
    expected = mk.fused_moe(x, packed, weights, ids, apply_router_weight_on_input=True)
    options = {"apply_router_weight_on_input": True, "num_threads": 2}
    assert torch.equal(torch.ops.moelab.fused_moe(*op_arguments(packed, inputs), **options), expected)


def test_opcheck(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    x, weights, ids = inputs
    arguments = op_arguments(packed, inputs)
    torch.library.opcheck(torch.ops.moelab.fused_moe.default, arguments)
    torch.library.opcheck(torch.ops.moelab.fused_moe.default, (*arguments, True, 1))
    torch.library.opcheck(torch.ops.moelab.fused_moe_out.default, arguments, {"out": torch.zeros_like(x)})
    several = (x.expand(3, -1, -1).reshape(15, -1), packed.tensor, weights.repeat(3, 1), ids.repeat(3, 1))
    torch.library.opcheck(torch.ops.moelab.fused_moe.default, (*several, *geometry(packed)))


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (4, 5, "num_experts"),
        (5, 41, "x"),
        (6, 25, "intermediate"),
        (7, "silu", "activation"),
        (7, "relu", "activation"),
    ],
)
def test_geometry_must_agree_with_the_packed_weights(
    packed: mk.PackedExperts, inputs: tuple[Any, Any, Any], position: int, value: Any, message: str
) -> None:
    arguments = list(op_arguments(packed, inputs))
    arguments[position] = value
    with pytest.raises(ValueError, match=message):
        torch.ops.moelab.fused_moe(*arguments)


def test_packed_must_be_packed_weights(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    x, weights, ids = inputs
    good = packed.tensor
    for bad, kind in (
        (good.to(torch.int16), TypeError),
        (good[::2], TypeError),
        (torch.zeros_like(good), ValueError),
        (good[:-64], ValueError),
        (good[:0], ValueError),
    ):
        with pytest.raises(kind, match="packed"):
            torch.ops.moelab.fused_moe(x, bad, weights, ids, *geometry(packed))


def test_a_module_keeps_packed_weights_as_a_buffer(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    x, weights, ids = inputs
    module = Experts(packed)
    restored = Experts(mk.pack(**pack_arguments(make_layer(activation="swigluoai", bias=True, seed=9), "torch")))
    restored.load_state_dict(module.state_dict())
    assert torch.equal(restored(x, weights, ids), mk.fused_moe(x * 2, packed, weights, ids) + 1)


class Experts(torch.nn.Module):  # type: ignore[misc]
    """How a model would hold a layer."""

    def __init__(self, packed: mk.PackedExperts) -> None:
        super().__init__()
        self.register_buffer("packed", packed.tensor)
        self.geometry = geometry(packed)

    def forward(self, x: Any, weights: Any, ids: Any) -> Any:
        return torch.ops.moelab.fused_moe(x * 2, self.packed, weights, ids, *self.geometry) + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_whole_graph(
    packed: mk.PackedExperts, inputs: tuple[Any, Any, Any], backend: str, dynamic: bool
) -> None:
    torch.compiler.reset()
    x, weights, ids = inputs

    def through_face(x: Any, weights: Any, ids: Any) -> Any:
        return mk.fused_moe(x * 2, packed, weights, ids) + 1

    expected = through_face(x, weights, ids)
    for function in (through_face, Experts(packed)):
        compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
        with torch.no_grad():
            assert torch.equal(compiled(x, weights, ids), expected)
            assert torch.equal(compiled(x[:3], weights[:3], ids[:3]), expected[:3])


@pytest.mark.skipif(not PYTHON_HEADERS, reason="inductor needs Python.h")
def test_compile_with_inductor(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    torch.compiler.reset()
    x, weights, ids = inputs
    # The op alone: every operation of torch around it would cost a C++ compilation of half a minute.
    compiled = torch.compile(lambda x, weights, ids: mk.fused_moe(x, packed, weights, ids), fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(x, weights, ids), mk.fused_moe(x, packed, weights, ids))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_with_out(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any], backend: str) -> None:
    torch.compiler.reset()
    x, weights, ids = inputs

    def into(x: Any, weights: Any, ids: Any, out: Any) -> Any:
        mk.fused_moe(x, packed, weights, ids, out=out)
        return out * 2

    with torch.no_grad():
        out = torch.zeros_like(x)
        result = torch.compile(into, fullgraph=True, backend=backend)(x, weights, ids, out)
    expected = mk.fused_moe(x, packed, weights, ids)
    assert torch.equal(out, expected)
    assert torch.equal(result, expected * 2)


@pytest.mark.parametrize("strict", [False, True])
def test_export(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any], strict: bool) -> None:
    x, weights, ids = inputs
    module = Experts(packed)
    tokens = torch.export.Dim("tokens", min=2, max=4096)
    shapes = ({0: tokens}, {0: tokens}, {0: tokens})
    program = torch.export.export(module, (x, weights, ids), dynamic_shapes=shapes, strict=strict)
    assert any("moelab.fused_moe" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(x[:3], weights[:3], ids[:3]), module(x[:3], weights[:3], ids[:3]))


def test_fake_and_meta_tensors(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    _, weights, ids = inputs
    wide = torch.zeros(5, 99, dtype=torch.bfloat16)[:, :40]
    real = mk.fused_moe(wide, packed, weights, ids)
    fake = mk.fused_moe(wide.to("meta"), packed, weights.to("meta"), ids.to("meta"))
    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in (wide, packed.tensor, weights, ids)]
        fake = torch.ops.moelab.fused_moe(*fakes, *geometry(packed))
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())
        with pytest.raises(Exception, match="bfloat16"):
            torch.ops.moelab.fused_moe(fakes[0].float(), *fakes[1:], *geometry(packed))


# ---- autograd ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1])
def test_backward_is_refused_with_a_sentence(
    packed: mk.PackedExperts, inputs: tuple[Any, Any, Any], which: int
) -> None:
    leaves = list(inputs)
    leaves[which] = leaves[which].clone().requires_grad_()
    out = mk.fused_moe(leaves[0], packed, leaves[1], leaves[2])
    assert torch.equal(out, mk.fused_moe(inputs[0], packed, *inputs[1:]))
    with pytest.raises(RuntimeError, match="no backward"):
        out.sum().backward()


def test_out_with_gradients_is_refused(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    x, weights, ids = inputs
    x = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="no backward"):
        mk.fused_moe(x, packed, weights, ids, out=torch.zeros_like(x))


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_without_gradients(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any], mode: str) -> None:
    x, weights, ids = inputs
    with getattr(torch, mode)():
        out = mk.fused_moe(x.clone().requires_grad_(mode == "no_grad"), packed, weights, ids)
    assert not out.requires_grad
    assert torch.equal(out.clone(), mk.fused_moe(x, packed, weights, ids))


def test_out_counts_as_a_mutation(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    x, weights, ids = inputs
    leaf = torch.ones_like(x).requires_grad_()
    saved = torch.ones_like(x)
    product = leaf * saved
    mk.fused_moe(x, packed, weights, ids, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


# ---- other tensors ----------------------------------------------------------------------------------


def test_every_mode_sees_the_op(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x, weights, ids = inputs
    expected = mk.fused_moe(x, packed, weights, ids)
    with Watch():
        assert torch.equal(mk.fused_moe(x, packed, weights, ids), expected)
    assert "moelab.fused_moe.default" in seen


def test_the_profiler_sees_the_op(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    x, weights, ids = inputs
    with torch.autograd.profiler.profile() as profile:
        mk.fused_moe(x, packed, weights, ids)
    assert any(event.name == "moelab::fused_moe" for event in profile.function_events)


def test_tensors_that_are_not_dense_on_the_cpu(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    x, weights, ids = inputs
    with pytest.raises(ValueError, match=r"x: torch.sparse_coo .* expected torch.strided on cpu"):
        mk.fused_moe(x.to_sparse(), packed, weights, ids)
    for argument in ("w13", "w2"):
        arguments = pack_arguments(LAYER, "torch")
        with pytest.raises(ValueError, match=f"{argument}: on device meta, expected cpu"):
            mk.pack(**{**arguments, argument: arguments[argument].to("meta")})


def test_threads_follow_torch(packed: mk.PackedExperts, inputs: tuple[Any, Any, Any]) -> None:
    x, weights, ids = inputs
    before = torch.get_num_threads()
    expected = mk.fused_moe(x, packed, weights, ids)
    try:
        torch.set_num_threads(3)
        from moelab_kernels import _openmp

        assert _openmp.resolve(None) == 3
        assert torch.equal(mk.fused_moe(x, packed, weights, ids), expected)
    finally:
        torch.set_num_threads(before)
