"""Our kernels as another revision built them: `moelab@LABEL=FOLDER`, where FOLDER holds that build's moelab_kernels.

Two builds of one library must not meet in a process, so each revision runs in a worker of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moelab.backends.moelab_backend import Moelab

PREFIX = "moelab@"


def parse(name: str) -> tuple[str, Path]:
    """Label and folder. ValueError naming what is wrong."""
    label, equals, folder = name.removeprefix(PREFIX).partition("=")
    if not equals or not label or not (Path(folder) / "moelab_kernels").is_dir():
        raise ValueError(f"backend {name!r}: must be moelab@LABEL=FOLDER with FOLDER/moelab_kernels in it")
    return PREFIX + label, Path(folder).resolve()


class MoelabRevision(Moelab):
    """As `Moelab`, in a process whose moelab_kernels is the one in `folder`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self._folder = parse(name)
        self.environment = f"main@{self.name}"  # type: ignore[misc, assignment]  # one for each revision

    def process_settings(self, threads: int) -> Mapping[str, str]:
        package = Path(__file__).resolve().parents[1]
        return {**super().process_settings(threads), "PYTHONPATH": f"{self._folder}:{package}", "MOELAB_LIBRARY": ""}
