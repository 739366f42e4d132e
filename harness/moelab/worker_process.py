"""The engine's end of a worker: starts it, asks it, stops it from disturbing others, and tells how it died."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

Json = dict[str, Any]


class WorkerError(RuntimeError):
    """What a backend raised inside a worker; the worker lives on."""


class WorkerDied(RuntimeError):
    """The worker ended or did not answer in time; it is gone."""


class WorkerProcess:
    """One worker. While `pause`d it is stopped by SIGSTOP, so that its threads cannot spin."""

    def __init__(
        self,
        python: Sequence[str],
        *,
        threads: int,
        cpus: Sequence[int],
        settings: Mapping[str, str],
        log: Path,
        timeout: float = 300.0,
    ) -> None:
        self.timeout = timeout
        self.paused = False
        self._log = log
        to_worker, from_worker = os.pipe(), os.pipe()
        command = [*python, "-m", "moelab.worker", str(to_worker[0]), str(from_worker[1]), str(threads)]
        environment = {**os.environ, **_settings(threads), **settings}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=(to_worker[0], from_worker[1]),
                preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            )
        os.close(to_worker[0])
        os.close(from_worker[1])
        self._commands: IO[str] = os.fdopen(to_worker[1], "w")
        self._replies = from_worker[0]
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, /, **arguments: object) -> Json:
        """The worker's answer. Raises WorkerError or WorkerDied."""
        self.resume()
        try:
            self._commands.write(json.dumps({"do": do, **arguments}) + "\n")
            self._commands.flush()
        except (BrokenPipeError, OSError):
            raise WorkerDied(self._how_it_died()) from None
        answer: Json = json.loads(self._line())
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _line(self) -> bytes:
        deadline = time.monotonic() + self.timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                self.kill()
                raise WorkerDied(f"no answer within {self.timeout:.0f} s")
            chunk = os.read(self._replies, 65536)
            if not chunk:
                raise WorkerDied(self._how_it_died())
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _how_it_died(self) -> str:
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its pipe"
        how = f"exit status {code}" if code >= 0 else f"{signal.Signals(-code).name}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"process ended by {how}" + (f": {lines[-1]}" if lines and code > 0 else "")

    def pause(self) -> None:
        """Stops all threads of the worker until it is next asked."""
        if not self.paused and self._process.poll() is None:
            os.kill(self.pid, signal.SIGSTOP)
            self.paused = True

    def resume(self) -> bool:
        """Lets a paused worker go on; whether it was paused."""
        was, self.paused = self.paused, False
        if was:
            os.kill(self.pid, signal.SIGCONT)
        return was

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the worker, by force if it does not go."""
        if self._process.poll() is None:
            self.resume()
            self._commands.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        elif not self._commands.closed:
            try:
                self._commands.close()
            except OSError:
                pass
        if self._replies >= 0:
            os.close(self._replies)
            self._replies = -1

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _settings(threads: int) -> dict[str, str]:
    """Environment of every worker: thread counts of all the libraries, and this package on its path."""
    package_root = str(Path(__file__).resolve().parents[1])
    path = os.environ.get("PYTHONPATH", "")
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join([package_root, *([path] if path else [])]),
        "PYTHONUNBUFFERED": "1",
    }


def python_of(environment: str) -> list[str]:
    """The interpreter of an environment: "main" is the one that runs the engine."""
    if environment == "main":
        return [sys.executable]
    from moelab.backends import environments  # only where a peer is asked for

    return [str(environments.python(environment))]
