"""Backends by name, from a file of one's own (`--backend path/to/file.py:Class`), or of another revision of ours.

Code from a file runs in workers only. The process that judges asks another one for the facts that it needs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from moelab import backends, revision_backend
from moelab.backends import Backend, Facts, Output
from moelab.rounding import Rounding
from moelab.weights import Weights
from moelab.workloads import Inputs, Layer


def is_foreign(name: str) -> bool:
    """Whether it is from a file of somebody's own."""
    return ".py:" in name and not name.startswith(revision_backend.PREFIX)


def load(name: str) -> Backend:
    """The backend of this name. ValueError naming it where there is none."""
    if name.startswith(revision_backend.PREFIX):
        return revision_backend.MoelabRevision(name)
    if not is_foreign(name):
        return backends.create(name)
    path, _, kind = name.rpartition(":")
    file = Path(path).resolve()
    if not file.is_file():
        raise ValueError(f"backend {name!r}: there is no file {path}")
    module_name = f"moelab_backend_{file.stem}"
    module = sys.modules.get(module_name)
    if module is None or getattr(module, "__file__", None) != str(file):
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    made = getattr(module, kind, None)
    if not (isinstance(made, type) and issubclass(made, Backend)):
        wrong = f"backend {name!r}: {path} has no class {kind} derived from moelab.backends.Backend"
        raise ValueError(wrong)  # noqa: TRY004 - what is wrong is the text that was typed
    return made()


class Described(Backend):
    """What a backend from a file says of itself; it computes nothing."""

    def __init__(self, name: str, facts: Mapping[str, object]) -> None:
        rounding, settings = facts["rounding"], facts["settings"]
        assert isinstance(rounding, dict)
        assert isinstance(settings, dict)
        self.name = label_of(name)
        self.environment = str(facts["environment"])  # type: ignore[misc, assignment]
        self.rounding = Rounding(**rounding)
        self._settings = {str(key): str(value) for key, value in settings.items()}

    def process_settings(self, threads: int) -> Mapping[str, str]:
        return self._settings

    def unavailable(self) -> str | None:
        raise NotImplementedError

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        raise NotImplementedError

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        raise NotImplementedError

    def result(self, out: object) -> Output:
        raise NotImplementedError

    def describe(self) -> Facts:
        raise NotImplementedError


def described(name: str, threads: int) -> Backend:
    """The backend of this name for its facts alone. ValueError naming it where there is none."""
    if not is_foreign(name):
        return load(name)
    path = name.rpartition(":")[0]
    if not Path(path).is_file():
        raise ValueError(f"backend {name!r}: there is no file {path}")
    return Described(name, _facts(name, threads))


@lru_cache
def _facts(name: str, threads: int) -> Mapping[str, object]:
    """Asks a process for the facts of a backend from a file."""
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "moelab.backend_loading", name, str(threads)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=120
    )
    lines = done.stdout.strip().splitlines()
    facts: dict[str, object] = (
        json.loads(lines[-1]) if done.returncode == 0 and lines else {"wrong": _last_line(done.stderr)}
    )
    if "wrong" in facts:
        raise ValueError(str(facts["wrong"]) or f"backend {name!r}: its file ended the process that loaded it")
    return facts


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def label_of(name: str) -> str:
    """Short label for results: the class for a backend from a file, otherwise the name."""
    if name.startswith(revision_backend.PREFIX):
        return name.partition("=")[0]
    return name.rpartition(":")[2] if ".py:" in name else name


def main(name: str, threads: int) -> None:
    """Prints the facts as the last line."""
    try:
        backend = load(name)
        facts: dict[str, object] = {
            "environment": backend.environment,
            "rounding": backend.rounding.as_dict(),
            "settings": dict(backend.process_settings(threads)),
        }
    except ValueError as error:
        facts = {"wrong": str(error)}
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
