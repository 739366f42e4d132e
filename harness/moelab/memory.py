"""Private memory of this process: how much, and the most while something runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self


def private_bytes() -> int:
    """Bytes of anonymous memory that are resident; mapped files do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


class Growth:
    """Within `with Growth() as growth`: how far private memory grows. Looked at every few milliseconds.

    most, left: bytes beyond those at the start, at most and at the end.
    """

    def __enter__(self) -> Self:
        self.most = self.left = 0
        self._before = private_bytes()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, private_bytes() - self._before)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()
        self.left = max(0, private_bytes() - self._before)
        self.most = max(self.most, self.left)
