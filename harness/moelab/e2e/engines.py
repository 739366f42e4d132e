"""The engines: which module runs them, in which environment, and what each is compared with."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from moelab.worker_process import WorkerProcess


@dataclass(frozen=True)
class Entry:
    """`module` offers the class `Engine` (see `engine_worker`); `baselines`: engines that this one is compared with."""

    framework: str
    module: str
    baselines: tuple[str, ...] = ()


ENGINES: dict[str, Entry] = {
    "eager": Entry("transformers", "moelab.e2e.transformers_engine"),
    "grouped_mm": Entry("transformers", "moelab.e2e.transformers_engine"),
    "moelab": Entry("transformers", "moelab.e2e.transformers_engine", ("eager", "grouped_mm")),
}
REFERENCE = "eager"
"""The engine whose outputs the others' are compared with: transformers' definition of each model."""


class EngineProcess(WorkerProcess):
    """One engine in a process of its own."""

    def __init__(self, name: str, *, threads: int, cpus: list[int], log: Path) -> None:
        self.name = name
        self.entry = ENGINES[name]
        super().__init__(
            [sys.executable],
            threads=threads,
            cpus=cpus,
            settings={"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
            log=log,
            timeout=1200.0,
            module="moelab.e2e.engine_worker",
        )
