"""Arrays that engine and workers hand to each other through files in a shared folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moelab.workloads import Inputs

Output = npt.NDArray[np.uint16] | npt.NDArray[np.float32]


def write_inputs(path: Path, inputs: Inputs) -> None:
    """x, topk_weights and topk_ids one after the other, without a header: both sides know the shapes."""
    with path.open("wb") as file:
        for array in (inputs.x, inputs.topk_weights, inputs.topk_ids):
            np.ascontiguousarray(array).tofile(file)


def read_inputs(path: Path, tokens: int, hidden: int, topk: int) -> Inputs:
    """A private, writable copy of what `write_inputs` wrote."""
    with path.open("rb") as file:
        x = np.fromfile(file, np.uint16, tokens * hidden).reshape(tokens, hidden)
        weights = np.fromfile(file, np.float32, tokens * topk).reshape(tokens, topk)
        ids = np.fromfile(file, np.int32, tokens * topk).reshape(tokens, topk)
    return Inputs(x=x, topk_weights=weights, topk_ids=ids)


def same_inputs(left: Inputs, right: Inputs) -> bool:
    """Whether all bits agree (bits, so that NaN equals itself)."""
    pairs = ((left.x, right.x), (left.topk_weights, right.topk_weights), (left.topk_ids, right.topk_ids))
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def write_outputs(path: Path, outputs: Sequence[Output]) -> str:
    """Copies outputs of one dtype into a file, one after the other; returns their dtype for `read_output`."""
    with path.open("wb") as file:
        for output in outputs:
            np.ascontiguousarray(output).tofile(file)
    return str(outputs[0].dtype)


def read_output(path: Path, dtype: str, tokens: int, hidden: int) -> Output:
    """The output [tokens, hidden] that `write_output` wrote. ValueError if the file has another size."""
    flat = np.fromfile(path, np.dtype(dtype))
    if flat.size != tokens * hidden:
        raise ValueError(f"output has {flat.size} elements, must have {tokens} x {hidden}")
    shaped: Output = flat.reshape(tokens, hidden)
    return shaped
