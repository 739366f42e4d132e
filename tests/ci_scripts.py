"""The scripts of ci/ as modules: they are no package, and run by themselves."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

CI = Path(__file__).parents[1] / "ci"


def load(path: str, name: str) -> ModuleType:
    """ci/`path`, once, as the module `name`."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, CI / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
