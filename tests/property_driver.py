"""One backend under test: layers, inputs and calls for the property suite, compared with the fp64 reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from moelab import backends, bf16
from moelab.bounds import reference
from moelab.check import check
from moelab.weights import Weights
from moelab.workloads import Case, Inputs, Layer

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Problem:
    """A layer with its weights, and one call's inputs."""

    layer: Layer
    weights: Weights
    inputs: Inputs

    def with_inputs(self, **changes: Array) -> Problem:
        return replace(self, inputs=replace(self.inputs, **changes))

    def rows(self, rows: Array | list[int]) -> Problem:
        """The same layer, called with some of the tokens."""
        part = {name: np.ascontiguousarray(getattr(self.inputs, name)[rows]) for name in vars(self.inputs)}
        return self.with_inputs(**part)


def make_problem(
    *,
    experts: int = 4,
    hidden: int = 64,
    intermediate: int = 64,
    tokens: int = 9,
    topk: int = 2,
    activation: Any = "silu",
    bias: bool = False,
    gate_up: Any = "split",
    seed: int = 0,
) -> Problem:
    """Weights of variance 1/K, inputs of variance 1, router weights in (0, 1), ids distinct within a token."""
    layer = Layer("property", experts, topk, hidden, intermediate, activation, bias, gate_up)
    random = np.random.default_rng([seed, experts, hidden, intermediate, tokens, topk])

    def normal(scale: float, *shape: int) -> Array:
        return np.asarray(bf16.to_bits(random.normal(0, scale, shape)))

    weights = Weights(
        w13=normal(hidden**-0.5, experts, 2 * intermediate, hidden),
        w2=normal(intermediate**-0.5, experts, hidden, intermediate),
        w13_bias=bf16.to_float32(normal(0.5, experts, 2 * intermediate)) if bias else None,
        w2_bias=bf16.to_float32(normal(0.5, experts, hidden)) if bias else None,
    )
    ids = np.array([random.permutation(experts)[:topk] for _ in range(tokens)], np.int32).reshape(tokens, topk)
    router = random.uniform(0.05, 1, (tokens, topk)).astype(np.float32)
    return Problem(layer, weights, Inputs(normal(1, tokens, hidden), router, ids))


class Driver:
    """Calls a backend by name; a case that it cannot run skips the test with its own reason."""

    def __init__(self, name: str) -> None:
        self.name = name
        backend = backends.create(name)
        if reason := backend.unavailable():
            pytest.skip(f"{name}: {reason}")

    def outputs(self, problem: Problem, *calls: Problem, threads: int = 2, repeat: int = 1) -> list[Array]:
        """Packs the layer of `problem` once; the outputs of it and of other calls of the same layer."""
        backend = backends.create(self.name)
        for call in (problem, *calls):
            case = Case(problem.layer, len(call.inputs.x), threads=threads)
            if reason := backend.unsuited(case):
                pytest.skip(f"{self.name}: {reason}")
        backend.prepare(problem.weights, problem.layer, threads)
        try:
            found = []
            for call in (problem, *calls):
                run = backend.bind(call.inputs)
                found += [np.array(backend.result(run()), copy=True) for _ in range(repeat)]
            return found
        finally:
            backend.close()

    def output(self, problem: Problem, *, threads: int = 2) -> Array:
        return self.outputs(problem, threads=threads)[0]

    def check(self, problem: Problem, *, threads: int = 2) -> None:
        """The output lies within the bound that the backend's own rounding points give."""
        self.check_output(problem, self.output(problem, threads=threads))

    def check_output(self, problem: Problem, out: Array) -> None:
        rounding = backends.create(self.name).rounding
        verdict = check(out, reference(problem.weights, problem.layer, problem.inputs, rounding))
        assert verdict.ok, f"{self.name}, {problem.layer}: {verdict.reason}"


def assert_same_bits(first: Array, second: Array, what: str) -> None:
    different = np.argwhere(bits(first) != bits(second))
    assert not len(different), f"{what}: {len(different)} outputs differ, the first at {different[0].tolist()}"


def bits(out: Array) -> Array:
    return out if out.dtype == np.uint16 else out.view(np.uint32)


def floats(out: Array) -> Array:
    return bf16.to_float32(out) if out.dtype == np.uint16 else out
