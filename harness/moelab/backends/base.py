"""What a backend is: one implementation of a fused MoE layer that can be checked and timed beside the others.

A worker process uses one backend like this:

    backend = backends.create("vllm")
    if (reason := backend.unavailable() or backend.unsuited(case)) is None:
        backend.prepare(weights, case.layer, case.threads)     # packs; once per layer, not timed
        calls = [backend.bind(inputs) for inputs in pool]      # converts inputs to the backend's own form; not timed
        out = calls[i]()                                       # timed
        array = backend.result(out)                            # not timed
        backend.close()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from moelab.rounding import FUSED, Rounding
from moelab.weights import Weights
from moelab.workloads import Case, Inputs, Layer

Environment = Literal["main", "vllm", "zentorch", "ggml"]
Output = npt.NDArray[np.uint16] | npt.NDArray[np.float32]
Facts = dict[str, str | int | float | bool | None]


class Backend(ABC):
    """One implementation. Methods raise RuntimeError, with the library's own words, when it fails."""

    name: str
    """The name in results."""
    environment: ClassVar[Environment] = "main"
    """The environment whose Python can run it: see `moelab.backends.environments`."""
    rounding: Rounding = FUSED
    """Its rounding points, from which bound and flip gate follow."""

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why this backend cannot run at all in this process (not installed, not for this CPU); None if it can."""

    def unsuited(self, case: Case) -> str | None:
        """Why it cannot run this case (an activation it lacks, a size it rejects); None if it can."""
        del case
        return None

    def process_settings(self, threads: int) -> Mapping[str, str]:
        """Environment variables to set before its process starts, beside the engine's own (OMP_NUM_THREADS)."""
        del threads
        return {}

    @abstractmethod
    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        """Packs the weights in the backend's preferred layout and sets its thread count. Once per object.

        Keeps no reference to `weights` unless the backend computes on the raw layout.
        """

    @abstractmethod
    def bind(self, inputs: Inputs) -> Callable[[], object]:
        """A call without arguments that runs the layer on these inputs, converted beforehand.

        Each call computes everything anew. Its output stays as it is until the same callable is called again; calls
        bound to other inputs leave it alone.
        """

    @abstractmethod
    def result(self, out: object) -> Output:
        """An output as numpy array [M, H]: uint16 BF16 bits, or float32 where the backend's output is not BF16."""

    @abstractmethod
    def describe(self) -> Facts:
        """What is needed to trace its results; complete after `prepare`.

        Always holds "version", "packing" (the layout chosen) and "amx": "absent" (this CPU has none), "no" (it has, the
        code path does not use it), "yes", or "possible" where the library does not tell.
        """

    def phases(self) -> Mapping[str, float] | None:
        """Seconds of the last call by phase, where the worker was started to profile and the backend can tell."""
        return None

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Gives back memory and threads. The object is of no use afterwards."""
