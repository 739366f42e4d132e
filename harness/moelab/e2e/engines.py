"""The engines: which module runs them, in which environment, and what each is compared with."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moelab.worker_process import WorkerProcess


@dataclass(frozen=True)
class Entry:
    """`module` offers the class `Engine` (see `engine_worker`); `baselines`: engines that this one is compared with.

    checkpoint: it loads models from a folder only. python: an interpreter that has the framework; missing: why there is
    none, or None.
    """

    framework: str
    module: str
    baselines: tuple[str, ...] = ()
    checkpoint: bool = False
    python: Callable[[], str] = lambda: sys.executable
    missing: Callable[[], str | None] = lambda: None


def _vllm_environment() -> Any:
    """The module that makes vLLM's environment: only where somebody asks for vLLM."""
    return importlib.import_module("moelab.vllm_environment")


def _vllm_python() -> str:
    """Of the environment that has all of vLLM; MOELAB_VLLM_PYTHON names another one."""
    return os.environ.get("MOELAB_VLLM_PYTHON") or str(_vllm_environment().python())


def _vllm_missing() -> str | None:
    if os.environ.get("MOELAB_VLLM_PYTHON"):
        return None
    try:
        missing: str | None = _vllm_environment().missing()
    except ImportError:
        return "this moelab comes without vLLM's environment"
    return missing


ENGINES: dict[str, Entry] = {
    "eager": Entry("transformers", "moelab.e2e.transformers_engine"),
    "grouped_mm": Entry("transformers", "moelab.e2e.transformers_engine"),
    "moelab": Entry("transformers", "moelab.e2e.transformers_engine", ("eager", "grouped_mm")),
    "vllm": Entry("vllm", "moelab.e2e.vllm_engine", checkpoint=True, python=_vllm_python, missing=_vllm_missing),
    "vllm+moelab": Entry(
        "vllm", "moelab.e2e.vllm_engine", ("vllm",), checkpoint=True, python=_vllm_python, missing=_vllm_missing
    ),
}
REFERENCE = "eager"
"""The engine whose outputs the others' are compared with: transformers' definition of each model."""


class EngineProcess(WorkerProcess):
    """One engine in a process of its own."""

    def __init__(self, name: str, *, threads: int, cpus: list[int], log: Path) -> None:
        self.name = name
        self.entry = ENGINES[name]
        super().__init__(
            [self.entry.python()],
            threads=threads,
            cpus=cpus,
            settings={"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
            log=log,
            timeout=1200.0,
            module="moelab.e2e.engine_worker",
        )
