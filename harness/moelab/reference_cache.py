"""References kept on disk, so that a right answer is computed once.

They are found by content: the bits of weights and inputs, the layer, the rounding points, and the source text of what
computes them. Nothing that has changed can be found by accident.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np

from moelab.bounds import Reference, references
from moelab.rounding import Rounding
from moelab.weights import Weights
from moelab.workloads import Inputs, Layer

_SOURCES = ("activations.py", "bf16.py", "bounds.py", "error_model.py", "oracle.py", "rounding.py")


def cached_references(
    folder: Path, weights: Weights, layer: Layer, inputs: Inputs, roundings: tuple[Rounding, ...]
) -> tuple[Reference, ...]:
    """What `bounds.references` gives, from `folder` where it is known, computed and stored there where it is not."""
    paths = [folder / f"{_key(weights, layer, inputs, rounding)}.npz" for rounding in roundings]
    found = {rounding: _load(path, rounding) for path, rounding in zip(paths, roundings, strict=True)}
    missing = tuple(rounding for rounding, known in found.items() if known is None)
    for rounding, computed in zip(missing, references(weights, layer, inputs, missing) if missing else (), strict=True):
        found[rounding] = computed
        _store(paths[roundings.index(rounding)], computed)
    return tuple(known for rounding in roundings if (known := found[rounding]) is not None)


def _key(weights: Weights, layer: Layer, inputs: Inputs, rounding: Rounding) -> str:
    shape = (layer.activation, layer.gate_up, layer.num_experts, layer.hidden, layer.intermediate)
    digest = hashlib.sha256(
        repr((_sources_digest(), weights.digest, shape, sorted(rounding.as_dict().items()))).encode()
    )
    for array in (inputs.x, inputs.topk_weights, inputs.topk_ids):
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


@lru_cache(maxsize=1)
def _sources_digest() -> str:
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(resources.files("moelab").joinpath(name).read_bytes())
    return digest.hexdigest()


def _load(path: Path, rounding: Rounding) -> Reference | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as stored:
        return Reference(
            rounding,
            stored["output"],
            stored["bound"].astype(np.float64),
            stored["variance"].astype(np.float64),
            int(stored["freedom_per_token"]),
        )


def _store(path: Path, reference: Reference) -> None:
    """The file appears whole or not at all. Bounds are stored in single precision: 1e-7 of their size is nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file, np.errstate(over="ignore"):
            np.savez(
                file,
                output=reference.output,
                bound=reference.bound.astype(np.float32),
                variance=reference.variance.astype(np.float32),
                freedom_per_token=np.array(reference.freedom_per_token),
            )
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
