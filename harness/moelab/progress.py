"""Shows on stderr what a run is doing: one line that changes on a terminal, a line per step elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO


class Progress:
    """`step` for what is worth a line in a log, `tick` for what only a terminal should show."""

    def __init__(self, stream: TextIO | None = None, *, budget: float | None = None) -> None:
        self._stream = stream or sys.__stderr__ or sys.stderr
        self._terminal = self._stream.isatty()
        self._start = time.monotonic()
        self._budget = budget
        self._open_line = False

    def _stamp(self) -> str:
        elapsed = int(time.monotonic() - self._start)
        clock = f"{elapsed // 60}:{elapsed % 60:02d}"
        if self._budget:
            clock += f"/{int(self._budget) // 60}:{int(self._budget) % 60:02d}"
        return clock

    def step(self, text: str) -> None:
        self._clear()
        print(f"[{self._stamp()}] {text}", file=self._stream, flush=True)

    def tick(self, text: str) -> None:
        if not self._terminal:
            return
        width = shutil.get_terminal_size().columns - 1
        line = f"[{self._stamp()}] {text}"[:width]
        print(f"\r{line:<{width}}", end="", file=self._stream, flush=True)
        self._open_line = True

    def _clear(self) -> None:
        if self._open_line:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + " " * width + "\r", end="", file=self._stream)
            self._open_line = False
