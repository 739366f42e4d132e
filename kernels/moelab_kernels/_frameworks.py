"""torch where it is installed. Everything else in this package works without it, and without ml_dtypes."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from types import ModuleType


def _import_torch() -> ModuleType | None:
    if find_spec("torch") is None:
        return None
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken installation fails in many ways
        message = f"torch is installed but cannot be imported ({error}); moelab takes numpy arrays only"
        warnings.warn(message, stacklevel=2)
        return None
    module: ModuleType = torch
    return module


torch = _import_torch()
