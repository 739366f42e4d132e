"""The workers of one process round: one per environment, only one of them running at any time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moelab import guard
from moelab.backends import Backend
from moelab.conditions import Monitor
from moelab.measurement import Probing
from moelab.worker_process import WorkerDiedError, WorkerError, WorkerProcess, python_of

Json = dict[str, Any]


class BackendError(RuntimeError):
    """A backend raised, or took its process down (`crashed`)."""

    def __init__(self, label: str, reason: str, *, crashed: bool) -> None:
        super().__init__(f"{label}: {reason}")
        self.label, self.reason, self.crashed = label, reason, crashed


@dataclass(frozen=True)
class Contender:
    """One label of a run. `backend` is a copy for its facts; the one that computes lives in a worker."""

    label: str
    name: str
    backend: Backend
    copy_of: str | None = None
    """The label whose prepared weights it shares."""


class Team:
    """Workers with their backends. Use as a context manager: leaving it ends every process it started."""

    def __init__(
        self, contenders: Sequence[Contender], *, threads: int, cpus: Sequence[int], folder: Path, monitor: Monitor
    ) -> None:
        self._threads, self._cpus, self._folder, self._monitor = threads, list(cpus), folder, monitor
        self._workers: dict[str, WorkerProcess] = {}
        self._worker_of: dict[str, str] = {}
        self._contenders = {c.label: c for c in contenders}
        self._numbers = itertools.count()

    def start(self, weights: Path, workload: str, evict: Path | None, *, probes: Probing) -> dict[str, Json]:
        """Starts a worker for each environment; first answers by environment. BackendError where one cannot start.

        evict: file that is read to empty the caches; None leaves them as they are.
        """
        answers: dict[str, Json] = {}
        for environment, members in self._environments().items():
            settings: dict[str, str] = {}
            for contender in members:
                settings.update(contender.backend.process_settings(self._threads))
            worker = WorkerProcess(
                python_of(environment),
                threads=self._threads,
                cpus=self._cpus,
                settings=settings,
                log=self._folder / f"{environment.replace('/', '_')}.log",
            )
            self._workers[environment] = worker
            self._monitor.pids.add(worker.pid)
            for contender in members:
                self._worker_of[contender.label] = environment
            try:
                wanted = probes == "all" or (probes == "one" and not any(a["probe_isa"] for a in answers.values()))
                path = None if evict is None else str(evict)
                answers[environment] = worker.ask("hello", evict=path, probes=wanted)
                worker.ask("open", path=str(weights), workload=workload)
            except (WorkerDiedError, WorkerError) as error:
                raise BackendError(members[0].label, f"its process did not start: {error}", crashed=True) from None
            worker.pause()
        return answers

    def _environments(self) -> Mapping[str, list[Contender]]:
        groups: dict[str, list[Contender]] = {}
        for contender in self._contenders.values():
            groups.setdefault(contender.backend.environment, []).append(contender)
        return groups

    def mates(self, label: str) -> Iterable[str]:
        """Labels that live in the same worker, `label` included."""
        return [other for other, environment in self._worker_of.items() if environment == self._worker_of[label]]

    def activate(self, label: str) -> bool:
        """Stops all other workers and lets this label's go on; whether it had been stopped."""
        chosen = self._worker_of[label]
        for environment, worker in self._workers.items():
            if environment != chosen:
                worker.pause()
        return self._workers[chosen].resume()

    def ask(self, label: str, do: str, /, **arguments: object) -> Json:
        """The answer of the label's worker. Raises BackendError."""
        self.activate(label)
        try:
            return self._workers[self._worker_of[label]].ask(do, **arguments)
        except WorkerError as error:
            raise BackendError(label, str(error), crashed=False) from None
        except WorkerDiedError as error:
            raise BackendError(label, str(error), crashed=True) from None

    def waited(self, label: str) -> float:
        """Seconds that this process and the label's worker have waited for a CPU until now."""
        return guard.waited(os.getpid(), self._workers[self._worker_of[label]].pid)

    def trespass(self, label: str) -> str | None:
        """What the label's worker does that it may not; processes that it has started are ended."""
        pid = self._workers[self._worker_of[label]].pid
        found = guard.trespass(pid, self._cpus)
        if found is not None:
            guard.end_descendants(pid)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            self._monitor.retire(worker.pid)
            guard.end_descendants(worker.pid)
            worker.close()
