"""Backends by name, from a file of one's own (`--backend path/to/file.py:Class`), or of another revision of ours."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from moelab import backends, revision_backend
from moelab.backends import Backend


def load(name: str) -> Backend:
    """The backend of this name. ValueError naming it where there is none."""
    if name.startswith(revision_backend.PREFIX):
        return revision_backend.MoelabRevision(name)
    if ".py:" not in name:
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


def label_of(name: str) -> str:
    """Short label for results: the class for a backend from a file, otherwise the name."""
    if name.startswith(revision_backend.PREFIX):
        return name.partition("=")[0]
    return name.rpartition(":")[2] if ".py:" in name else name
