"""Makes weights cold: in a model the other layers run between two calls of one, so its weights are not in a cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

LEAST_BYTES = 64 << 20
MOST_BYTES = 1 << 30


def eviction_bytes(last_level_bytes: int) -> int:
    """Twice the last-level cache, within bounds: some caches keep part of what was there before one pass."""
    return max(LEAST_BYTES, min(MOST_BYTES, 2 * last_level_bytes))


def write_buffer(path: Path, size: int) -> None:
    """What all workers read to empty the caches: one file for all of them, since it may be as large as a layer."""
    np.ones(size // 8, np.uint64).tofile(path)


class Evictor:
    """Reads the buffer in a file with all threads, so that nothing else stays in the caches."""

    def __init__(self, path: Path, threads: int) -> None:
        self._parts = np.array_split(np.memmap(path, np.uint64, mode="r"), threads)
        self._pool = ThreadPoolExecutor(threads)

    def evict(self) -> None:
        """numpy gives up the GIL while it reduces, so the parts are read at the same time."""
        list(self._pool.map(np.max, self._parts))

    def close(self) -> None:
        self._pool.shutdown()
