"""A backend under test, in a process of its own: `python property_worker.py DESCRIPTOR NAME`.

A kernel that reads out of bounds may take its process down; the suite must outlive it, and say so. Requests and answers
are pickled over a socket. Needs numpy and the package `moelab` alone, so that a peer's own environment can run it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from moelab import backend_loading
from moelab.weights import Weights
from moelab.workloads import Case, Inputs, Layer


class NotForItError(Exception):
    """The backend says itself that it is not here, or not for this case."""


class Server:
    """Answers one request at a time."""

    def __init__(self, name: str) -> None:
        self.name = name

    def unavailable(self) -> str | None:
        return backend_loading.load(self.name).unavailable()

    def rounding(self) -> Any:
        return backend_loading.load(self.name).rounding

    def outputs(
        self, layer: Layer, weights: Weights, calls: Sequence[Inputs], threads: int, repeat: int
    ) -> tuple[list[Any], list[str]]:
        """Packs once, runs each of the calls `repeat` times: the outputs, and the names of arrays written to."""
        backend = backend_loading.load(self.name)
        for inputs in calls:
            if reason := backend.unsuited(Case(layer, len(inputs.x), threads=threads)):
                raise NotForItError(reason)
        arrays = {f"weights.{name}": array for name, array in vars(weights).items()}
        arrays |= {f"{name} of call {i}": a for i, inputs in enumerate(calls) for name, a in vars(inputs).items()}
        arrays = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
        before = {name: array.copy() for name, array in arrays.items()}
        backend.prepare(weights, layer, threads)
        try:
            found = []
            for inputs in calls:
                run = backend.bind(inputs)
                found += [np.array(backend.result(run()), copy=True) for _ in range(repeat)]
        finally:
            backend.close()
        return found, [name for name, array in arrays.items() if array.tobytes() != before[name].tobytes()]


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    server = Server(sys.argv[2])
    while True:
        try:
            what, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = ("done", getattr(server, what)(*arguments))
        except NotForItError as error:
            answer = ("not for it", str(error))
        except Exception as error:  # noqa: BLE001 - whatever a backend raises is its result, in its own words
            answer = ("raised", (type(error).__name__, str(error)))
        connection.send(answer)


if __name__ == "__main__":
    main()
