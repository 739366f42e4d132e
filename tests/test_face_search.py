"""Hypothesis over everything that a caller can vary at once: one call in plain form is right, any other form of it has
the same bits, and an id that is none is refused. A failure is shrunk to the smallest call that fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import moelab_kernels as mk
from face_layer import (
    ACTIVATIONS,
    CONTAINERS,
    Bits,
    Inputs,
    Layer,
    assert_close,
    bits_of,
    contain,
    flags,
    make_inputs,
    make_layer,
    pack_arguments,
    plain,
    widen,
)

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

LAYOUTS = ("rows", "columns", "gaps", "reversed")


@dataclass(frozen=True)
class Form:
    """How a call is written down, which must not show in its bits."""

    container: str
    weights_layout: str
    weights_fp32: bool
    interleaved: bool
    x_layout: str
    router_layout: str
    narrow_ids: bool
    out_gap: int | None  # None: no out given
    threads: int | None


@st.composite
def forms(draw: st.DrawFn) -> Form:
    container = draw(st.sampled_from(CONTAINERS))
    layouts = st.sampled_from(LAYOUTS[:3] if container == "torch" else LAYOUTS)  # torch has no negative strides
    return Form(
        container=container,
        weights_layout=draw(layouts),
        weights_fp32=draw(st.booleans()),
        interleaved=draw(st.booleans()),
        x_layout=draw(layouts),
        router_layout=draw(layouts),
        narrow_ids=draw(st.booleans()),
        out_gap=draw(st.none() | st.integers(0, 5)),
        threads=draw(st.none() | st.integers(1, 5)),
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[Layer, Inputs, str, bool]:
    """A layer, a call of it, an instruction set, and whether the router weights go on the input."""
    layer = make_layer(
        experts=draw(st.integers(1, 6)),
        hidden=draw(st.integers(1, 70)),
        intermediate=draw(st.integers(1, 70)),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 100)),
    )
    tokens, topk = draw(st.integers(0, 20)), draw(st.integers(1, 5))
    inputs = make_inputs(layer, tokens=tokens, topk=topk, seed=draw(st.integers(0, 100)))
    random = np.random.default_rng(draw(st.integers(0, 100)))
    inputs.topk_ids[random.random((tokens, topk)) < draw(st.sampled_from([0, 0.3, 1]))] = -1
    inputs.topk_weights[:] *= random.choice(np.float32([1, 0, -2]), (tokens, topk))
    return layer, inputs, draw(st.sampled_from(mk.isas())), draw(st.booleans())


def laid_out(array: Any, layout: str) -> Any:
    """The same values with other strides of the last two dimensions."""
    if layout == "columns":
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "gaps":
        wide = np.full((*array.shape[:-2], array.shape[-2] * 2, array.shape[-1] + 3), 1, array.dtype)
        wide[..., ::2, 2:-1] = array
        return wide[..., ::2, 2:-1]
    return array[..., ::-1, :].copy()[..., ::-1, :] if layout == "reversed" else array


def packed_in(layer: Layer, form: Form, isa: str) -> mk.PackedExperts:
    """The layer packed from arrays in this form."""
    w13, w13_bias = layer.w13, layer.w13_bias
    if form.interleaved:
        order = np.arange(w13.shape[1]).reshape(2, -1).T.ravel()
        w13, w13_bias = w13[:, order], None if w13_bias is None else w13_bias[:, order]

    def weights(bits: Bits) -> Any:
        if form.weights_fp32:
            return plain(laid_out(widen(bits).astype(np.float32), form.weights_layout), form.container)
        return contain(laid_out(bits, form.weights_layout), form.container)

    biases = {"w13_bias": w13_bias, "w2_bias": layer.w2_bias}
    return mk.pack(
        weights(w13),
        weights(layer.w2),
        **{name: plain(bias, form.container) for name, bias in biases.items() if bias is not None},
        activation=layer.activation,
        gate_up="interleaved" if form.interleaved else "split",
        isa=isa,
        **flags(form.container),
    )


def called_in(form: Form, packed: mk.PackedExperts, inputs: Inputs, *, on_input: bool) -> Bits:
    """The output's bits of the call in this form. Fails if an input or a gap of `out` was written to."""
    ids = inputs.topk_ids.astype(np.int32) if form.narrow_ids else inputs.topk_ids
    arrays = [laid_out(inputs.x, form.x_layout)] + [
        laid_out(array, form.router_layout) for array in (inputs.topk_weights, ids)
    ]
    before = [array.tobytes() for array in arrays]
    x, weights, ids = contain(arrays[0], form.container), *(plain(array, form.container) for array in arrays[1:])
    tokens, hidden = inputs.x.shape
    options: dict[str, Any] = flags(form.container)
    memory = np.full((tokens, hidden + (form.out_gap or 0)), 0xDEAD, np.uint16)
    if form.out_gap is not None:
        options["out"] = contain(memory[:, :hidden], form.container)
    out = mk.fused_moe(
        x, packed, weights, ids, apply_router_weight_on_input=on_input, num_threads=form.threads, **options
    )
    assert [array.tobytes() for array in arrays] == before
    assert form.out_gap is None or (memory[:, hidden:] == 0xDEAD).all()
    return bits_of(out)


# derandomize: the same examples in every run, so that a failure in CI can be repeated; the deadline is the machine's.
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(problem=problems(), form=forms())
def test_any_form_of_any_call(problem: tuple[Layer, Inputs, str, bool], form: Form) -> None:
    layer, inputs, isa, on_input = problem
    packed = mk.pack(**pack_arguments(layer, "uint16"), isa=isa)
    out = mk.fused_moe(
        inputs.x,
        packed,
        inputs.topk_weights,
        inputs.topk_ids,
        apply_router_weight_on_input=on_input,
        num_threads=1,
        bf16_as_uint16=True,
    )
    assert_close(out, layer.reference(inputs.x, inputs.topk_weights, inputs.topk_ids, on_input=on_input))
    other = packed_in(layer, form, isa)
    if not form.interleaved:  # the order of rows is remembered, for unpacking
        assert other.tobytes() == packed.tobytes()
    assert np.array_equal(called_in(form, other, inputs, on_input=on_input), out)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(problem=problems(), form=forms(), data=st.data())
def test_any_id_that_is_none_is_refused(
    problem: tuple[Layer, Inputs, str, bool], form: Form, data: st.DataObject
) -> None:
    layer, inputs, isa, on_input = problem
    if not inputs.topk_ids.size:
        return
    limits = np.iinfo(np.int32 if form.narrow_ids else np.int64)
    bad = data.draw(st.integers(layer.num_experts, int(limits.max)) | st.integers(int(limits.min), -2), label="id")
    token, slot = (data.draw(st.integers(0, size - 1)) for size in inputs.topk_ids.shape)
    inputs.topk_ids[token, slot] = bad
    packed = mk.pack(**pack_arguments(layer, "uint16"), isa=isa)
    with pytest.raises(ValueError, match=rf"topk_ids\[{token}, {slot}\].*{bad}"):
        called_in(form, packed, inputs, on_input=on_input)
