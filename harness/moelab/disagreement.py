"""Which row to look at most: the one on which backends that computed the same disagree.

The oracle is too dear for every row of every output, and a few random ones seldom hit the one that was left out. The
backends' outputs lie side by side anyway: where one differs from the others far beyond rounding, the oracle decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moelab import bf16
from moelab.exchange import Output

FAR = 0.05
"""Of a row's length; roundings to BF16 make ten times less."""


def disputed_row(outputs: Sequence[Output]) -> int | None:
    """The row [H] of outputs [M, H] in which one is farthest from the first; None where all are close."""
    if len(outputs) < 2:
        return None
    first = _floats(outputs[0])
    length = np.linalg.norm(first, axis=1)
    far = np.zeros(len(first), np.float32)
    for output in outputs[1:]:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            distance = np.linalg.norm(_floats(output) - first, axis=1) / np.maximum(length, 1e-30)
        far = np.maximum(far, np.where(np.isfinite(distance), distance, np.inf))
    worst = int(np.argmax(far))
    return worst if far[worst] > FAR else None


def _floats(output: Output) -> bf16.Float32:
    return bf16.to_float32(output.astype(np.uint16)) if output.dtype == np.uint16 else output.astype(np.float32)
