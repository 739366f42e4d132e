"""The engine's end of a worker: starts it, asks it, stops it from disturbing others, and tells how it died."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

Json = dict[str, Any]


# Bound to its CPUs before any library is loaded, since libraries start threads. Killed with its parent (prctl 1 is
# PR_SET_PDEATHSIG): a stopped worker would not notice that the pipe was closed. prctl 36 is PR_SET_CHILD_SUBREAPER:
# whatever processes a backend starts, and their orphans, stay children of the worker, where they are seen.
_START = """
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
ctypes.CDLL(None).prctl(36, 1)
os.sched_setaffinity(0, map(int, sys.argv.pop(1).split(",")))
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


class WorkerError(RuntimeError):
    """What a backend raised inside a worker; the worker lives on."""


class WorkerDiedError(RuntimeError):
    """The worker ended or did not answer in time; it is gone."""


class WorkerProcess:
    """One worker; `module` names another program that serves in the same way.

    While `pause`d it is stopped by SIGSTOP, so that its threads cannot spin.
    """

    def __init__(
        self,
        python: Sequence[str],
        *,
        threads: int,
        cpus: Sequence[int],
        settings: Mapping[str, str],
        log: Path,
        timeout: float = 300.0,
        module: str = "moelab.worker",
    ) -> None:
        self.timeout = timeout
        self.paused = False
        self._log = log
        self._kills = _kills_for_memory()
        to_worker, from_worker = os.pipe(), os.pipe()
        command = [*python, "-c", _START, ",".join(map(str, cpus)), module]
        command += [str(number) for number in (to_worker[0], from_worker[1], threads)]
        own = python == [sys.executable]
        environment = {**os.environ, **_settings(threads), **package_path(own, log.parent), **settings}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=(to_worker[0], from_worker[1]),
            )
        self._blame(most=True)
        os.close(to_worker[0])
        os.close(from_worker[1])
        self._commands: IO[str] = os.fdopen(to_worker[1], "w")
        self._replies = from_worker[0]
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, /, **arguments: object) -> Json:
        """The worker's answer. Raises WorkerError or WorkerDiedError."""
        self.resume()
        token = secrets.token_hex(8)
        try:
            self._commands.write(json.dumps({"do": do, "token": token, **arguments}) + "\n")
            self._commands.flush()
        except (BrokenPipeError, OSError):
            raise WorkerDiedError(self._how_it_died()) from None
        answer = _answer(self._line(), token)
        if answer is None:
            self.kill()
            raise WorkerDiedError("something other than the harness wrote to the pipe of its answers")
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _line(self) -> bytes:
        deadline = time.monotonic() + self.timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                self.kill()
                raise WorkerDiedError(f"no answer within {self.timeout:.0f} s")
            chunk = os.read(self._replies, 65536)
            if not chunk:
                raise WorkerDiedError(self._how_it_died())
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _how_it_died(self) -> str:
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its pipe"
        if code == -signal.SIGKILL and _kills_for_memory() > self._kills:
            return "the kernel ended its process, since memory ran out"
        how = f"exit status {code}" if code >= 0 else f"{signal.Signals(-code).name}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"process ended by {how}" + (f": {lines[-1]}" if lines and code > 0 else "")

    def pause(self) -> None:
        """Stops all threads of the worker until it is next asked."""
        if not self.paused and self._process.poll() is None:
            os.kill(self.pid, signal.SIGSTOP)
            self.paused = True
            self._blame(most=False)

    def resume(self) -> bool:
        """Lets a paused worker go on; whether it was paused."""
        was, self.paused = self.paused, False
        if was:
            self._blame(most=True)
            os.kill(self.pid, signal.SIGCONT)
        return was

    def _blame(self, *, most: bool) -> None:
        """Where memory runs out, the kernel shall end the worker that takes it: the one that runs, not the largest."""
        with contextlib.suppress(OSError):
            usual = Path("/proc/self/oom_score_adj").read_text()
            Path(f"/proc/{self.pid}/oom_score_adj").write_text("1000" if most else usual)

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
            with contextlib.suppress(OSError):
                self._commands.close()
        if self._replies >= 0:
            os.close(self._replies)
            self._replies = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _kills_for_memory() -> int:
    """How many processes this machine's kernel has ended so far because memory ran out."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _answer(line: bytes, token: str) -> Json | None:
    """The answer to the question with this token; None if the line is anything else."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and answer.pop("token", None) == token else None


def _settings(threads: int) -> dict[str, str]:
    """Environment of every worker: thread counts of all the libraries."""
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }


def package_path(own: bool, folder: Path) -> dict[str, str]:
    """Lets a worker import this package, and in another interpreter nothing else of this one's packages."""
    package = Path(__file__).resolve().parent
    if own:
        rest = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": os.pathsep.join([str(package.parent), *filter(None, [rest])])}
    linked = folder / "path"
    linked.mkdir(exist_ok=True)
    for source in (package, *_kernels_package()):
        link = linked / source.name
        if not link.exists():
            link.symlink_to(source)
    return {"PYTHONPATH": str(linked)}


def _kernels_package() -> list[Path]:
    """Folder of moelab_kernels, for the probes; empty where it is not installed."""
    spec = importlib.util.find_spec("moelab_kernels")
    return [Path(spec.origin).parent] if spec is not None and spec.origin is not None else []


def python_of(environment: str) -> list[str]:
    """The interpreter of an environment ("NAME@…": a process of its own in it); "main" is that of the engine."""
    name = environment.partition("@")[0]
    if name == "main":
        return [sys.executable]
    from moelab.backends import environments  # only where a peer is asked for

    return [str(environments.python(name))]
