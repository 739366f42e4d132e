"""llama.cpp's ggml: the graph that its models build for a layer of experts, around ggml_mul_mat_id."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from moelab.backends import amx, environments
from moelab.backends.base import Backend, Facts, Output
from moelab.backends.ggml_library import BF16, F32, I32, Ggml, InitParams, load_ggml
from moelab.backends.torch_common import no_skipped_slots, rows_ordered
from moelab.bf16 import to_float32
from moelab.rounding import Rounding
from moelab.weights import Weights
from moelab.workloads import SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT, Inputs, Layer

Array = npt.NDArray[Any]

_ACTIVATION = {"silu": "ggml_swiglu_split", "gelu": "ggml_geglu_erf_split", "gelu_tanh": "ggml_geglu_split"}


class GgmlBackend(Backend):
    """Activations between operators are fp32, as in llama.cpp; each product rounds its rows to BF16 first."""

    name = "ggml"
    environment = "ggml"
    rounding = Rounding(output=False, gelu_tanh="fp16-table")

    def unavailable(self) -> str | None:
        missing = environments.missing("ggml")
        if missing:
            return missing
        try:
            load_ggml(environments.folder("ggml"))
        except OSError as error:
            return f"libggml cannot be loaded: {error}"
        return None

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        lib = self._lib = load_ggml(environments.folder("ggml"))
        self.layer, self.threads = layer, threads
        self._backend = lib.ggml_backend_cpu_init()
        lib.ggml_backend_cpu_set_n_threads(self._backend, threads)
        self._buffer_type = lib.ggml_backend_get_default_buffer_type(self._backend)
        # Scratch between operators, by number of tokens: llama.cpp keeps its own too, and a graph of the same shape
        # finds the same addresses in it.
        self._allocators: dict[int, int] = {}
        w13, b13 = rows_ordered(weights, layer, "split")
        experts, hidden, inner = layer.num_experts, layer.hidden, layer.intermediate
        self._context = _context(lib, tensors=4)
        new_3d, new_2d = lib.ggml_new_tensor_3d, lib.ggml_new_tensor_2d
        self._w13 = new_3d(self._context, BF16, hidden, 2 * inner, experts)
        self._w2 = new_3d(self._context, BF16, inner, hidden, experts)
        self._b13 = self._b2 = None
        if b13 is not None:
            self._b13 = new_2d(self._context, F32, 2 * inner, experts)
            self._b2 = new_2d(self._context, F32, hidden, experts)
        self._weights = _allocated(lib, self._context, self._backend)
        self._put(self._w13, w13)
        self._put(self._w2, weights.w2)
        if b13 is not None and weights.w2_bias is not None:
            self._put(self._b13, b13)
            self._put(self._b2, weights.w2_bias)

    def _put(self, tensor: int | None, array: Array) -> None:
        whole = np.ascontiguousarray(array)
        expected = self._lib.ggml_nbytes(tensor)
        assert whole.nbytes == expected, f"{whole.nbytes} bytes for a tensor of {expected}"
        self._lib.ggml_backend_tensor_set(tensor, whole.ctypes.data, 0, whole.nbytes)

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        no_skipped_slots(inputs, self.name)
        graph = _Graph(self, inputs)
        compute, backend, handle = self._lib.ggml_backend_graph_compute, self._backend, graph.graph

        def call() -> _Graph:
            status = compute(backend, handle)
            if status != 0:
                raise RuntimeError(f"ggml_backend_graph_compute returned {status}")
            return graph

        return call

    def result(self, out: object) -> Output:
        assert isinstance(out, _Graph)
        return out.array(self.layer.hidden)

    def allocator(self, tokens: int) -> int:
        """The graph allocator for this many tokens."""
        if tokens not in self._allocators:
            self._allocators[tokens] = self._lib.ggml_gallocr_new(self._buffer_type)
        return self._allocators[tokens]

    def describe(self) -> Facts:
        made = environments.facts("ggml")
        lib = load_ggml(environments.folder("ggml"))
        return {
            "version": f"ggml {made.get('ggml_version')} of {made.get('requirement')}",
            "compiler": made.get("ggml_compiler"),
            "options": made.get("ggml_options"),
            "library_sha256": made.get("libggml-cpu.so"),
            "threads": self.threads,
            "avx512_bf16": bool(lib.ggml_cpu_has_avx512_bf16()),
            "packing": "none: gate and up in one [E, 2I, H], as llama.cpp merges them",
            "amx": amx.without_amx(),  # its AMX code multiplies quantised weights only
        }

    def close(self) -> None:
        lib = self._lib
        for allocator in self._allocators.values():
            lib.ggml_gallocr_free(allocator)
        lib.ggml_backend_buffer_free(self._weights)
        lib.ggml_free(self._context)
        lib.ggml_backend_free(self._backend)


class _Graph:
    """One graph with inputs and output of its own: build_moe_ffn of llama.cpp, on merged gate and up weights."""

    def __init__(self, owner: GgmlBackend, inputs: Inputs) -> None:
        lib, layer = owner._lib, owner.layer
        self.tokens, topk = inputs.topk_ids.shape
        held = _context(lib, tensors=3)
        x = lib.ggml_new_tensor_3d(held, F32, layer.hidden, 1, self.tokens)
        ids = lib.ggml_new_tensor_2d(held, I32, topk, self.tokens)
        router = lib.ggml_new_tensor_3d(held, F32, 1, topk, self.tokens)
        given = _allocated(lib, held, owner._backend)
        for tensor, array in ((x, to_float32(inputs.x)), (ids, inputs.topk_ids), (router, inputs.topk_weights)):
            owner._put(tensor, array)

        context = _context(lib, tensors=3 * topk + 16, graphs=1)
        self.graph = lib.ggml_new_graph(context)
        experts = self._experts(owner, context, x, ids, topk)
        experts = lib.ggml_mul(context, experts, router)
        lib.ggml_build_forward_expand(self.graph, experts)
        row, token = 4 * layer.hidden, 4 * layer.hidden * topk
        slots = [
            lib.ggml_view_2d(context, experts, layer.hidden, self.tokens, token, slot * row) for slot in range(topk)
        ]
        for slot in slots:
            lib.ggml_build_forward_expand(self.graph, slot)
        self.output = slots[0] if topk > 1 else lib.ggml_cont(context, slots[0])
        for slot in slots[1:]:
            self.output = lib.ggml_add(context, self.output, slot)
        lib.ggml_build_forward_expand(self.graph, self.output)

        made = lib.ggml_backend_buft_alloc_buffer(owner._buffer_type, lib.ggml_nbytes(self.output) + 64)
        lib.ggml_backend_buffer_clear(made, 0)  # touches its pages before the clock runs
        self._base = lib.ggml_backend_buffer_get_base(made)
        lib.ggml_backend_tensor_alloc(made, self.output, self._base)
        if not lib.ggml_gallocr_alloc_graph(owner.allocator(self.tokens), self.graph):
            raise RuntimeError(f"ggml found no memory for a graph of {self.tokens} tokens")
        weakref.finalize(self, _free, lib, (given, made), (held, context))

    def array(self, hidden: int) -> Array:
        """The output where ggml writes it, [tokens, hidden] fp32; keeps the graph, and with it the memory, alive.

        Not a copy: on a machine short of memory the pages of a fresh array take longer than a small call.
        """
        memory = (ctypes.c_float * (self.tokens * hidden)).from_address(self._base)
        memory.graph = self
        return np.ctypeslib.as_array(memory).reshape(self.tokens, hidden)

    def _experts(self, owner: GgmlBackend, context: int, x: int, ids: int, topk: int) -> int:
        """[H, topk, tokens], not yet weighted."""
        lib, inner = owner._lib, owner.layer.intermediate
        both = lib.ggml_mul_mat_id(context, owner._w13, x, ids)
        if owner._b13 is not None:
            both = lib.ggml_add_id(context, both, owner._b13, ids)
        row = 8 * inner
        gate, up = (
            lib.ggml_view_3d(context, both, inner, topk, self.tokens, row, row * topk, offset)
            for offset in (0, 4 * inner)
        )
        if owner.layer.activation == "swigluoai":
            hidden = lib.ggml_swiglu_oai(context, gate, up, SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT)
        else:
            hidden = getattr(lib, _ACTIVATION[owner.layer.activation])(context, gate, up)
        experts: int = lib.ggml_mul_mat_id(context, owner._w2, hidden, ids)
        if owner._b2 is not None:
            experts = lib.ggml_add_id(context, experts, owner._b2, ids)
        return experts


def _context(lib: Ggml, tensors: int, graphs: int = 0) -> int:
    """A context that holds descriptions of tensors; their data lies in buffers."""
    size = tensors * lib.ggml_tensor_overhead() + graphs * lib.ggml_graph_overhead()
    context: int | None = lib.ggml_init(InitParams(size, None, True))
    if context is None:
        raise RuntimeError(f"ggml_init found no {size} bytes")
    return context


def _allocated(lib: Ggml, context: int, backend: int) -> int:
    """A buffer for all tensors of a context."""
    buffer: int | None = lib.ggml_backend_alloc_ctx_tensors(context, backend)
    if buffer is None:
        raise RuntimeError("ggml_backend_alloc_ctx_tensors found no memory")
    return buffer


def _free(lib: Ggml, buffers: tuple[int, ...], contexts: tuple[int, ...]) -> None:
    for buffer in buffers:
        lib.ggml_backend_buffer_free(buffer)
    for context in contexts:
        lib.ggml_free(context)
