"""Backends for tests of the measurement engine: honest ones, and cheats that must all be caught.

Loaded by workers as `FILE.py:Class`. Small layers and numpy only, so that an engine run takes seconds.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from moelab import bf16
from moelab.backends import Backend, Facts, Output
from moelab.rounding import FUSED
from moelab.weights import Weights
from moelab.workloads import Case, Inputs, Layer

Array = npt.NDArray[np.float32]


class Honest(Backend):
    """silu layers with fp32 matrix products and the fused rounding points."""

    name = "Honest"
    rounding = FUSED

    def unavailable(self) -> str | None:
        return None

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        self.layer = layer
        self.w13, self.w2 = bf16.to_float32(weights.w13), bf16.to_float32(weights.w2)

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        return lambda: self.layer_of(inputs)

    def layer_of(self, inputs: Inputs) -> Output:
        x = bf16.to_float32(inputs.x)
        out = np.zeros(x.shape, np.float32)
        for expert in np.unique(inputs.topk_ids):
            tokens, slots = np.nonzero(inputs.topk_ids == expert)
            y = self.expert(int(expert), x[tokens])
            np.add.at(out, tokens, inputs.topk_weights[tokens, slots][:, None] * y)
        return bf16.to_bits(out)

    def expert(self, expert: int, rows: Array) -> Array:
        both = rows @ self.w13[expert].T
        gate, up = both[:, : self.layer.intermediate], both[:, self.layer.intermediate :]
        inner = bf16.to_float32(bf16.to_bits(gate / (1 + np.exp(-gate)) * up))
        return np.asarray(inner @ self.w2[expert].T)

    def result(self, out: object) -> Output:
        return np.asarray(out)

    def describe(self) -> Facts:
        return {"version": "1", "packing": "fp32", "amx": "no"}


class Slower(Honest):
    """Right, with twelve times the work."""

    name = "Slower"

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        def call() -> object:
            for _ in range(11):
                self.layer_of(inputs)
            return self.layer_of(inputs)

        return call


# ---- cheats ---------------------------------------------------------------------------------------------------------


class CacheOnShape(Honest):
    """Remembers the output of a shape."""

    name = "CacheOnShape"

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        def call() -> object:
            cache: dict[tuple[int, ...], Output] = self.__dict__.setdefault("cache", {})
            if inputs.x.shape not in cache:
                cache[inputs.x.shape] = self.layer_of(inputs)
            return cache[inputs.x.shape]

        return call


class CacheOnPointer(Honest):
    """Remembers the output that belongs to an address, which a later input may have again."""

    name = "CacheOnPointer"
    cache: ClassVar[dict[int, Output]] = {}

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        self.held = np.empty_like(inputs.x) if not hasattr(self, "held") else self.held
        if self.held.shape != inputs.x.shape:
            self.held = np.empty_like(inputs.x)
        self.held[...] = inputs.x  # a buffer of its own, the same for every call of this shape
        own = Inputs(self.held, inputs.topk_weights, inputs.topk_ids)

        def call() -> object:
            key = own.x.ctypes.data
            if key not in self.cache:
                self.cache[key] = self.layer_of(own)
            return self.cache[key]

        return call


class CacheOnContents(Honest):
    """Remembers outputs by the contents of the inputs: pays as soon as a set comes twice."""

    name = "CacheOnContents"
    cache: ClassVar[dict[bytes, Output]] = {}
    hits = 0

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        def call() -> object:
            key = inputs.x.tobytes() + inputs.topk_ids.tobytes() + inputs.topk_weights.tobytes()
            if key in self.cache:
                CacheOnContents.hits += 1
                return self.cache[key]
            self.cache[key] = self.layer_of(inputs)
            return self.cache[key]

        return call

    def describe(self) -> Facts:
        return super().describe() | {"hits": CacheOnContents.hits}


class SkipsExperts(Honest):
    """Leaves out each token's least important expert."""

    name = "SkipsExperts"

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        kept = inputs.topk_weights.copy()
        kept[np.arange(len(kept)), kept.argmin(axis=1)] = 0
        return lambda: self.layer_of(Inputs(inputs.x, kept, inputs.topk_ids))


class WritesLate(Honest):
    """Returns at once; another thread writes the output a little later."""

    name = "WritesLate"

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        def call() -> object:
            out = np.zeros(inputs.x.shape, np.uint16)

            def write() -> None:
                time.sleep(0.005)
                out[...] = self.layer_of(inputs)

            threading.Thread(target=write).start()
            return out

        return call


class WorksInResult(Honest):
    """Does nothing while the clock runs and everything when the output is asked for."""

    name = "WorksInResult"

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        return lambda: inputs

    def result(self, out: object) -> Output:
        assert isinstance(out, Inputs)
        time.sleep(0.005)  # as a real layer would take
        return self.layer_of(out)


class ChangesInputs(Honest):
    """Scales the caller's router weights in place."""

    name = "ChangesInputs"

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        def call() -> object:
            out = self.layer_of(inputs)
            inputs.topk_weights[...] *= 0.5
            return out

        return call


class ChangesWeights(Honest):
    """Writes to the shared weights."""

    name = "ChangesWeights"

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        super().prepare(weights, layer, threads)
        weights.w2[0, 0, 0] ^= 1


class LowPrecision(Honest):
    """Multiplies with weights of 4 significant bits, as an 8-bit float has."""

    name = "LowPrecision"

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        super().prepare(weights, layer, threads)
        for array in (self.w13, self.w2):
            mantissa, exponent = np.frexp(array)
            array[...] = np.ldexp(np.round(mantissa * 16) / 16, exponent)


class RightWhileWarmingUp(Honest):
    """Right in its first calls, wrong when it is timed."""

    name = "RightWhileWarmingUp"
    calls = 0

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        def call() -> object:
            self.calls += 1
            return self.layer_of(inputs) if self.calls <= 6 else np.zeros(inputs.x.shape, np.uint16)

        return call


class StopsTheClock(Honest):
    """Puts a clock that stands still in the place of the real one."""

    name = "StopsTheClock"

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        super().prepare(weights, layer, threads)
        now = time.perf_counter_ns()
        time.perf_counter_ns = lambda: now


CHEATS = (
    CacheOnShape, CacheOnPointer, SkipsExperts, WritesLate, WorksInResult, ChangesInputs, ChangesWeights, LowPrecision,
    RightWhileWarmingUp,
)  # fmt: skip


# ---- trouble that is no cheat ---------------------------------------------------------------------------------------


class Raises(Honest):
    name = "Raises"

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        def call() -> object:
            raise RuntimeError("out of luck")

        return call


class Crashes(Honest):
    """Takes its process down."""

    name = "Crashes"

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        def call() -> object:
            os.kill(os.getpid(), signal.SIGSEGV)
            return None

        return call


class NotHere(Honest):
    name = "NotHere"

    def unavailable(self) -> str | None:
        return "its library is not installed"


class NotThis(Honest):
    name = "NotThis"

    def unsuited(self, case: Case) -> str | None:
        return "too many tokens" if case.tokens > 4 else None


class WrongShape(Honest):
    name = "WrongShape"

    def result(self, out: object) -> Output:
        return np.asarray(out)[:, :-1]


# ---- neighbours -----------------------------------------------------------------------------------------------------


class Spins(Honest):
    """A peer whose threads spin for ever once it has run, as those of OpenMP runtimes do for a while."""

    name = "Spins"
    environment = "ggml"  # any environment other than the first one: a process of its own

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        super().prepare(weights, layer, threads)
        (Path(os.environ["MOELAB_TEST_FOLDER"]) / "pid").write_text(str(os.getpid()))

        def spin() -> None:
            while True:
                np.ones(1000).sum()

        threading.Thread(target=spin, daemon=True).start()


class Watches(Honest):
    """Writes down the state of the process of Spins whenever it is called."""

    name = "Watches"

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        folder = Path(os.environ["MOELAB_TEST_FOLDER"])

        def call() -> object:
            if (folder / "pid").exists():
                stat = Path(f"/proc/{(folder / 'pid').read_text()}/stat").read_text()
                with (folder / "states").open("a") as file:
                    file.write(stat.rpartition(")")[2].split()[0] + "\n")
            return self.layer_of(inputs)

        return call
