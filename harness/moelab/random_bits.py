"""Random numbers that are the same on every machine and with every numpy.

Only raw bits of a numpy bit generator are used: numpy keeps those streams fixed, while the distributions of
`numpy.random.Generator` may change from version to version.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from moelab import bf16

Key = tuple[object, ...]


def bit_generator(key: Key) -> np.random.SFC64:
    """A generator for this key: keys that differ anywhere give independent streams."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.SFC64(np.random.SeedSequence(int.from_bytes(digest, "little")))


def uint16_stream(key: Key, count: int) -> npt.NDArray[np.uint16]:
    """`count` uniform 16-bit numbers."""
    words = bit_generator(key).random_raw((count + 3) // 4)
    return np.asarray(words, dtype="<u8").view("<u2")[:count].astype(np.uint16, copy=False)


def unit_stream(key: Key, count: int) -> npt.NDArray[np.float64]:
    """`count` uniform fp64 numbers, strictly between 0 and 1."""
    words = np.asarray(bit_generator(key).random_raw(count), dtype=np.uint64)
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


@lru_cache(maxsize=16)
def normal_table(scale: float) -> npt.NDArray[np.uint16]:
    """BF16 bits of 65536 quantiles of the normal distribution of this standard deviation.

    Indexed by uniform 16-bit numbers it gives normal BF16 numbers at the speed of a table look-up.
    """
    table = bf16.to_bits(_standard_quantiles() * scale)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=1)
def _standard_quantiles() -> npt.NDArray[np.float64]:
    inverse = NormalDist().inv_cdf
    return np.array([inverse((i + 0.5) / 65536) for i in range(65536)])
