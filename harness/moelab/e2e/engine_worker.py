"""The process of one engine: `python -m moelab.e2e.engine_worker READ_FD WRITE_FD THREADS`, one JSON object per line.

Commands and answers are those of `Engine`'s methods. The first, `start`, says which engine this is.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from moelab.e2e.cells import Cell
from moelab.e2e.models import Variant
from moelab.worker import environment, main

Json = dict[str, Any]

TOP = 20
"""How many of the best tokens of a position an engine tells, with their log-probabilities."""


class Engine(Protocol):
    """What a framework's module offers as its class `Engine`. Ids are lists of lists; every method may raise."""

    def __init__(self, name: str, threads: int) -> None: ...

    def facts(self) -> Json:
        """version, isa (None where it is the framework's own choice), batching, notes."""
        ...

    def load(self, variant: Variant, most_tokens: int, most_sequences: int) -> None:
        """Makes the model ready; most_tokens of one sequence, and sequences at once, will be asked for."""
        ...

    def top(self, prompts: list[list[int]], continuation: list[int]) -> tuple[Any, Any, Any]:
        """After each token of the prompts: the best ids [N, TOP], log-probabilities [N, TOP], and all of them or None.

        `continuation` follows the last prompt token by token, as in decoding; engines that cannot be told what to
        generate leave it out: N is smaller then.
        """
        ...

    def noise(self, prompts: list[list[int]], continuation: list[int]) -> Any:
        """All log-probabilities [N, V] with every product rounded once more; asked of the reference alone."""
        ...

    def run(self, cell: Cell, ids: Any) -> Json:
        """One sample: seconds, first_token, per_token (None where the phase has none)."""
        ...

    def time_experts(self, on: bool) -> None:
        """Starts or ends the timing of the experts modules."""
        ...

    def experts_seconds(self) -> float:
        """Seconds spent in the experts during the timed part of the last `run`."""
        ...


class EngineWorker:
    """State of the process."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.engine: Any = None

    def start(self, module: str, name: str) -> Json:
        """What `Engine.facts` says, and this process's packages and libraries. Errors are why it cannot run."""
        self.engine = importlib.import_module(module).Engine(name, self.threads)
        return {**self.engine.facts(), "environment": environment()}

    def load(self, variant: Json, most_tokens: int, most_sequences: int) -> Json:
        self.engine.load(Variant(**variant), most_tokens, most_sequences)
        return {}

    def reference_logits(self, prompts: list[list[int]], continuation: list[int], out: str) -> Json:
        """Writes all log-probabilities for `compare`; answers how far another right rounding takes them."""
        _, _, everything = self.engine.top(prompts, continuation)
        np.save(out, everything)
        other = self.engine.noise(prompts, continuation)
        best = best_ids(everything)
        difference = np.take_along_axis(other, best, 1) - np.take_along_axis(everything, best, 1)
        return {"noise": _distances(difference, prompts)}

    def save(self, folder: str) -> Json:
        """Writes the model as a checkpoint, for engines that load nothing else."""
        self.engine.model.save_pretrained(folder)
        return {}

    def compare(self, prompts: list[list[int]], continuation: list[int], reference: str) -> Json:
        """How far this engine's log-probabilities are from the reference's; how often the best token agrees."""
        ids, own, _ = self.engine.top(prompts, continuation)
        theirs = np.load(reference, mmap_mode="r")[: len(ids)]
        difference = np.asarray(own, np.float64) - np.take_along_axis(theirs, ids, 1)
        return {
            "positions": len(ids),
            "distances": _distances(difference, prompts),
            # Values, not ids: two tokens may be equally good.
            "agreement": float(np.mean(np.take_along_axis(theirs, ids[:, :1], 1)[:, 0] == theirs.max(axis=1))),
        }

    def run(self, cell: Json, ids: list[list[int]]) -> Json:
        result: Json = self.engine.run(_cell(cell), ids)
        return result

    def profile(self, cell: Json, ids: list[list[int]]) -> Json:
        """The same as `run` with the experts' share of `seconds`."""
        self.engine.time_experts(on=True)
        try:
            sample = self.engine.run(_cell(cell), ids)
        finally:
            self.engine.time_experts(on=False)
        return {**sample, "experts_seconds": self.engine.experts_seconds()}

    def forget_peak(self) -> Json:
        """Lets the peak begin anew, so that loading does not count."""
        Path("/proc/self/clear_refs").write_text("5")
        return {}

    def peak(self) -> Json:
        """Bytes of VmHWM since `forget_peak`."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return {"bytes": int(found[1]) * 1024 if found else None}


def best_ids(log_probabilities: Any) -> Any:
    """Ids of the TOP best tokens of each row of [N, V], best first; all V where there are fewer."""
    count = min(TOP, log_probabilities.shape[1])
    ids = np.argpartition(log_probabilities, -count, axis=1)[:, -count:]
    order = np.argsort(-np.take_along_axis(log_probabilities, ids, 1), axis=1)
    return np.take_along_axis(ids, order, 1)


def _distances(difference: Any, prompts: list[list[int]]) -> list[float]:
    """Root mean square of a position [N, TOP], the median over positions: of the prompts, and of decoding if there.

    The median, since a router that is torn between two experts may take the other one in any rounding: such a position
    is far off, and right.
    """
    each = np.sqrt(np.mean(np.square(difference, dtype=np.float64), axis=1))
    inside = sum(map(len, prompts))
    parts = (each[:inside], each[inside:])
    return [float(np.median(part)) for part in parts if part.size]


def _cell(cell: Json) -> Cell:
    return Cell(cell["phase"], tuple(cell["prompts"]), tuple(cell["outputs"]))


if __name__ == "__main__":
    main(EngineWorker)
