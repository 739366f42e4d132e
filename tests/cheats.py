"""Backends that try to look faster, or right, without being so. Each must be caught, or gain nothing.

Loaded by workers as `FILE.py:Class`, like those in backends_for_tests, which holds the plainer ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from backends_for_tests import Honest
from moelab.backends import Output
from moelab.rounding import Rounding
from moelab.weights import Weights
from moelab.workloads import Case, Inputs, Layer, make_inputs

Call = Callable[[], object]


def key_of(inputs: Inputs) -> int:
    """By which a cache finds what it has seen."""
    return zlib.crc32(inputs.x.tobytes() + inputs.topk_ids.tobytes() + inputs.topk_weights.tobytes())


# ---- the work is done while the clock does not run ----------------------------------------------------------------


class WorksInBind(Honest):
    """Computes when it gets the inputs, and hands over when it is called."""

    def bind(self, inputs: Inputs) -> Call:
        out = self.layer_of(inputs)
        return lambda: out


class WorksBehindBind(Honest):
    """As WorksInBind, in a thread that works while the harness prepares the sample."""

    def bind(self, inputs: Inputs) -> Call:
        found: list[Output] = []
        thread = threading.Thread(target=lambda: found.append(self.layer_of(inputs)))
        thread.start()

        def call() -> object:
            thread.join()
            return found[0]

        return call


class WorksInPhases(Honest):
    """Computes when it is asked where the time went."""

    def bind(self, inputs: Inputs) -> Call:
        def call() -> object:
            out = np.zeros(inputs.x.shape, np.uint16)
            self.late = lambda: np.copyto(out, self.layer_of(inputs))
            return out

        return call

    def phases(self) -> dict[str, float]:
        self.late()
        return {}


class Lazy:
    """An array that computes itself when somebody reads it."""

    dtype = np.dtype(np.uint16)

    def __init__(self, compute: Callable[[], Output]) -> None:
        self.compute = compute

    def __array__(self, *_: object, **__: object) -> Output:
        return self.compute()


class WorksWhenRead(Honest):
    """Its result is computed when the harness copies it."""

    def bind(self, inputs: Inputs) -> Call:
        return lambda: Lazy(lambda: self.layer_of(inputs))

    def result(self, out: object) -> Output:
        return out  # type: ignore[return-value]


class WorksPartlyInResult(Honest):
    """Does a third of its work after the clock has stopped."""

    def result(self, out: object) -> Output:
        time.sleep(0.5 * self.seconds)
        return np.asarray(out)

    def bind(self, inputs: Inputs) -> Call:
        def call() -> object:
            start = time.perf_counter()
            out = self.layer_of(inputs)
            self.seconds = time.perf_counter() - start
            return out

        return call


class PredictsInputs(Honest):
    """Makes the inputs that it expects itself, as anybody can who knows case and seed, and has their outputs ready."""

    cache: ClassVar[dict[int, Output]] = {}

    def unsuited(self, case: Case) -> str | None:
        for index in range(1, 21):
            one = make_inputs(case, index)
            self.cache[key_of(one)] = self.layer_of(one)
        return None

    def bind(self, inputs: Inputs) -> Call:
        known = self.cache.get(key_of(inputs))
        if known is not None:
            note("PredictsInputs was right")
        return (lambda: self.layer_of(inputs)) if known is None else (lambda: known)


# ---- the work is not done -----------------------------------------------------------------------------------------


class TakesTheOthersAnswer(Honest):
    """Looks for a neighbour's output to the same inputs in the folder through which the harness gets them."""

    def bind(self, inputs: Inputs) -> Call:
        found = self.left_over(inputs)
        return (lambda: self.layer_of(inputs)) if found is None else (lambda: found)

    def left_over(self, inputs: Inputs) -> Output | None:
        one_row = self.layer_of(Inputs(inputs.x[:1], inputs.topk_weights[:1], inputs.topk_ids[:1]))[0]
        for file in folder_of_the_run().glob("output*"):
            if file.stat().st_size == inputs.x.nbytes:
                left: Output = np.fromfile(file, np.uint16).reshape(inputs.x.shape)
                if np.array_equal(left[0], one_row):
                    note("TakesTheOthersAnswer found one")
                    return left
        return None


def folder_of_the_run() -> Path:
    """Where the weights lie that this process has mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split(maxsplit=5)[5] for line in maps if line.endswith(".weights"))).parent


class SkipsRows(Honest):
    """Leaves one row in fifty as it finds it; never one of the first eight."""

    def layer_of(self, inputs: Inputs) -> Output:
        done = np.arange(len(inputs.x)) % 50 != 49
        out: Output = np.zeros(inputs.x.shape, np.uint16)
        out[done] = super().layer_of(Inputs(inputs.x[done], inputs.topk_weights[done], inputs.topk_ids[done]))
        return out


class CacheOnSomeContents(Honest):
    """Remembers outputs by the expert ids and weights alone, which may be the same when the tokens are others."""

    cache: ClassVar[dict[bytes, Output]] = {}

    def bind(self, inputs: Inputs) -> Call:
        def call() -> object:
            key = inputs.topk_weights.tobytes()
            if key in self.cache:
                note("CacheOnSomeContents had the answer")
            else:
                self.cache[key] = self.layer_of(inputs)
            return self.cache[key]

        return call


class RemembersRouting(Honest):
    """Remembers what it worked out from the expert ids, for the next call with the same ids. Gains nothing."""

    seen: ClassVar[set[bytes]] = set()

    def bind(self, inputs: Inputs) -> Call:
        def call() -> object:
            key = inputs.topk_ids.tobytes()
            if key in self.seen:
                note("RemembersRouting had met the ids")
            self.seen.add(key)
            return self.layer_of(inputs)

        return call


class DropsSmallWeights(Honest):
    """Leaves out experts that count less than a tenth in their token."""

    def bind(self, inputs: Inputs) -> Call:
        kept = np.where(inputs.topk_weights < 0.1, np.float32(0), inputs.topk_weights)
        return lambda: self.layer_of(Inputs(inputs.x, kept, inputs.topk_ids))


class OneBuffer(Honest):
    """Writes every output to the same memory."""

    def bind(self, inputs: Inputs) -> Call:
        def call() -> object:
            out = self.__dict__.setdefault("out", {}).setdefault(inputs.x.shape, np.empty(inputs.x.shape, np.uint16))
            out[...] = self.layer_of(inputs)
            return out

        return call


class EveryThirdTime(Honest):
    """Computes in every third call and otherwise hands over what it had."""

    calls = 0
    last: Any = None

    def bind(self, inputs: Inputs) -> Call:
        def call() -> object:
            self.calls += 1
            if self.calls % 3 == 1 or self.last is None or self.last.shape != inputs.x.shape:
                self.last = self.layer_of(inputs)
            return self.last

        return call


class AnswersNaN(Honest):
    """NaN, which compares as neither too large nor too small."""

    def layer_of(self, inputs: Inputs) -> Output:
        return np.full(inputs.x.shape, 0x7FC0, np.uint16)


class EightBits(Honest):
    """Multiplies with weights of 8 bits, a scale for each row."""

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        super().prepare(weights, layer, threads)
        for array in (self.w13, self.w2):
            scale = np.abs(array).max(axis=-1, keepdims=True) / 127
            array[...] = np.round(array / scale) * scale


class EightBitsAndLoose(EightBits):
    """The same, and says that it rounds wherever one can, to be given the widest bound."""

    rounding = Rounding(gemm1=True, bias="bf16", activation="steps", expert="weighted", combine="bf16")


# ---- what judges is changed -----------------------------------------------------------------------------------------


def harness() -> dict[str, Any]:
    """What the code that takes the time of a call looks its names up in."""
    frame = sys._getframe()
    while "_timed" not in frame.f_globals:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_globals


class SlowsTheClock(Honest):
    """Puts a clock of half the speed in the place of the harness's own, not just that of the module time."""

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        super().prepare(weights, layer, threads)
        real = time.perf_counter_ns
        harness()["perf_counter_ns"] = lambda: real() // 2


class ReportsATenth(Honest):
    """Replaces the function that times the calls by one that reports a tenth."""

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        super().prepare(weights, layer, threads)
        real = harness()["_timed"]

        def timed(calls: list[Call]) -> Any:
            outs, nanoseconds, *rest = real(calls)
            return outs, nanoseconds / 10, *rest

        harness()["_timed"] = timed


class AnswersForTheWorker(Honest):
    """Sends a reply of its own before the worker's, with a time that it likes better."""

    def bind(self, inputs: Inputs) -> Call:
        def call() -> object:
            out = self.layer_of(inputs)
            (folder_of_the_run() / "output").write_bytes(out.tobytes())
            answer = {"seconds": 1e-6, "result_seconds": 1e-6, "dtype": "uint16", "intact": True, "phases": None,
                      "probe_read": None, "probe_bf16": None}  # fmt: skip
            os.write(int(sys.argv[2]), json.dumps(answer).encode() + b"\n")
            return out

        return call


class JudgesItself(Honest):
    """Always wrong; where this file is loaded beside the oracle, the oracle agrees."""

    def layer_of(self, inputs: Inputs) -> Output:
        return np.zeros(inputs.x.shape, np.uint16)


if "moelab.engine" in sys.modules:
    import moelab.checking
    import moelab.engine
    from moelab.measurement import Check

    vars(moelab.engine)["compare"] = vars(moelab.checking)["compare"] = lambda *_: (Check(), None)


class EmptiesTheWeights(Honest):
    """Overwrites the file of the weights with zeros, for which the right answer is quickly found."""

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        super().prepare(weights, layer, threads)
        file = next(folder_of_the_run().glob("*.weights"))
        with file.open("r+b") as opened:
            opened.seek(4096)
            opened.write(bytes(file.stat().st_size - 4096))

    def layer_of(self, inputs: Inputs) -> Output:
        return np.zeros(inputs.x.shape, np.uint16)


# ---- the others are slowed down, or more is used than was granted ---------------------------------------------------


class SlowsNeighbours(Honest):
    """Changes the code of other backends in its process."""

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        super().prepare(weights, layer, threads)
        module = sys.modules.get("moelab_backend_backends_for_tests")
        if module is None:
            return
        note("SlowsNeighbours has a neighbour")
        honest = module.Honest
        real = honest.layer_of

        def slow(self: Honest, inputs: Inputs) -> Output:
            time.sleep(0.05)
            return real(self, inputs)  # type: ignore[no-any-return]

        honest.layer_of = slow
        self.layer_of = lambda inputs: real(self, inputs)  # type: ignore[method-assign]


class SetsTheEnvironment(Honest):
    """Asks for environment variables that slow the others down."""

    def process_settings(self, threads: int) -> dict[str, str]:
        return {"MOELAB_TEST_SLEEP": "0.05"}


class MindsTheEnvironment(Honest):
    """A library that is slow when a variable says so."""

    def bind(self, inputs: Inputs) -> Call:
        if "MOELAB_TEST_SLEEP" in os.environ:
            note("MindsTheEnvironment is slow")
            time.sleep(float(os.environ["MOELAB_TEST_SLEEP"]))
        return super().bind(inputs)


class LeavesAProcess(Honest):
    """Starts a process that keeps a CPU busy for ever, and cuts the ties to it."""

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        super().prepare(weights, layer, threads)
        spin = "import os, time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
        code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {spin!r}], start_new_session=True)"
        subprocess.run([sys.executable, "-c", code], check=True)


class TakesAllCpus(Honest):
    """Computes with two threads on two CPUs where it was granted one."""

    def bind(self, inputs: Inputs) -> Call:
        half = len(inputs.x) // 2
        parts = [
            Inputs(inputs.x[s], inputs.topk_weights[s], inputs.topk_ids[s]) for s in (slice(half), slice(half, None))
        ]

        def call() -> object:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
            outs: dict[int, Output] = {}
            other = threading.Thread(target=lambda: outs.update({1: self.layer_of(parts[1])}))
            other.start()
            outs[0] = self.layer_of(parts[0])
            other.join()
            return np.concatenate((outs[0], outs[1]))

        return call


class LowersPriorities(Honest):
    """Gives the other workers of the run the lowest priority."""

    def bind(self, inputs: Inputs) -> Call:
        for task in Path(f"/proc/{os.getppid()}/task").iterdir():
            for pid in (task / "children").read_text().split():
                if int(pid) != os.getpid():
                    os.setpriority(os.PRIO_PROCESS, int(pid), 19)
        return super().bind(inputs)


def note(text: str) -> None:
    with (Path(os.environ["MOELAB_TEST_FOLDER"]) / "notes").open("a") as file:
        file.write(text + "\n")
