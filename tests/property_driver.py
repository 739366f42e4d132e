"""One backend under test: layers, inputs and calls for the property suite, compared with the fp64 reference."""

from __future__ import annotations

import builtins
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from moelab import backend_loading, bf16
from moelab.bounds import reference
from moelab.check import check
from moelab.weights import Weights
from moelab.worker_process import package_path, python_of
from moelab.workloads import Inputs, Layer

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


class BackendCrashedError(Exception):
    """The process of the backend ended, or did not answer in time."""


class BackendError(RuntimeError):
    """An exception of the backend that is none of Python's own."""


class Worker:
    """The process that runs a backend; started anew after a crash."""

    def __init__(self, name: str, folder: Path, timeout: float = 120.0) -> None:
        self.name = name
        self.timeout = timeout
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, what: str, *arguments: object) -> Any:
        """The worker's answer. Raises what the backend raised, BackendCrashedError, or skips the test."""
        if self._process is None:
            self._start()
        assert self._process is not None
        try:
            self._connection.send((what, arguments))
            if not self._connection.poll(self.timeout):
                self.close()
                raise BackendCrashedError(f"{self.name}: no answer within {self.timeout:.0f} s")
            kind, answer = self._connection.recv()
        except (EOFError, ConnectionError):
            code = self._process.wait(30)
            self.close()
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            raise BackendCrashedError(f"{self.name}: its process ended by {how}\n{self._said()}") from None
        if kind == "not for it":
            pytest.skip(f"{self.name}: {answer}")
        if kind == "raised":
            error, message = answer
            known = getattr(builtins, error, None)
            if isinstance(known, type) and issubclass(known, Exception):
                raise known(message)
            raise BackendError(f"{error}: {message}")
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        python = python_of(backend_loading.load(self.name).environment)
        command = [*python, str(Path(__file__).with_name("property_worker.py")), str(theirs.fileno()), self.name]
        path = package_path(python == [sys.executable], self._folder)
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **path, "PYTHONSAFEPATH": "1"},
                pass_fds=(theirs.fileno(),),
            )
        self._connection = Connection(ours.detach())

    @property
    def _log(self) -> Path:
        return self._folder / "worker.log"

    def _said(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").strip().splitlines()[-5:])


class Driver:
    """Calls a backend through its worker; a case that it cannot run skips the test with its own reason."""

    def __init__(self, worker: Worker) -> None:
        self.name = worker.name
        self._worker = worker
        if reason := worker.ask("unavailable"):
            pytest.skip(f"{self.name}: {reason}")

    def outputs(self, problem: Problem, *calls: Problem, threads: int = 2, repeat: int = 1) -> list[Array]:
        """Packs the layer of `problem` once; the outputs of it and of other calls of the same layer."""
        return self._run(problem, calls, threads, repeat)[0]

    def output(self, problem: Problem, *, threads: int = 2) -> Array:
        return self.outputs(problem, threads=threads)[0]

    def changed(self, problem: Problem) -> list[str]:
        """Names of the caller's arrays that packing or a call wrote to."""
        return self._run(problem, (), 2, 1)[1]

    def check(self, problem: Problem, *, threads: int = 2) -> None:
        """The output lies within the bound that the backend's own rounding points give."""
        out = self.output(problem, threads=threads)
        rounding = self._worker.ask("rounding")
        verdict = check(out, reference(problem.weights, problem.layer, problem.inputs, rounding))
        assert verdict.ok, f"{self.name}, {problem.layer}: {verdict.reason}"

    def _run(
        self, problem: Problem, calls: tuple[Problem, ...], threads: int, repeat: int
    ) -> tuple[list[Array], list[str]]:
        inputs = [call.inputs for call in (problem, *calls)]
        found: tuple[list[Array], list[str]] = self._worker.ask(
            "outputs", problem.layer, problem.weights, inputs, threads, repeat
        )
        return found


def assert_same_bits(first: Array, second: Array, what: str) -> None:
    different = np.argwhere(bits(first) != bits(second))
    assert not len(different), f"{what}: {len(different)} outputs differ, the first at {different[0].tolist()}"


def bits(out: Array) -> Array:
    return out if out.dtype == np.uint16 else out.view(np.uint32)


def floats(out: Array) -> Array:
    return bf16.to_float32(out) if out.dtype == np.uint16 else out
