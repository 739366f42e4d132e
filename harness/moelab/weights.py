"""Weights of a layer: made from a seed, written to one file once, and mapped by every process that needs them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from moelab import bf16
from moelab.random_bits import normal_table, uint16_stream
from moelab.workloads import Layer

_HEADER_BYTES = 4096
_FORMAT = "moelab-weights-1"
# Spread of biases. b13 takes swigluoai's gate beyond its limit of 7 now and then, so that the clamp is exercised;
# b2 stays small enough that it does not hide the second GEMM.
_BIAS13_SCALE = 1.5
_BIAS2_SCALE = 0.1


@dataclass(frozen=True)
class Weights:
    """w13 uint16 BF16 bits [E, 2I, H], w2 [E, H, I]; biases fp32 [E, 2I] and [E, H], each value a BF16, or None.

    The order of w13's rows (and of w13_bias) is the layer's `gate_up`.
    """

    w13: bf16.Bits
    w2: bf16.Bits
    w13_bias: npt.NDArray[np.float32] | None
    w2_bias: npt.NDArray[np.float32] | None

    @cached_property
    def digest(self) -> str:
        """SHA-256 over shapes and bits of all arrays. About a second per gigabyte."""

        def of(array: npt.NDArray[np.generic]) -> bytes:
            whole = hashlib.sha256(repr((array.shape, array.dtype.str)).encode())
            whole.update(np.ascontiguousarray(array).data)
            return whole.digest()

        arrays = [a for a in (self.w13, self.w2, self.w13_bias, self.w2_bias) if a is not None]
        with ThreadPoolExecutor(max_workers=min(8, len(os.sched_getaffinity(0)))) as pool:
            parts = [part for array in arrays for part in np.array_split(array, min(len(array), 64))]
            return hashlib.sha256(b"".join(pool.map(of, parts))).hexdigest()


def _arrays(layer: Layer) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
    experts, hidden, inner = layer.num_experts, layer.hidden, layer.intermediate
    shapes: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]] = {
        "w13": ((experts, 2 * inner, hidden), np.dtype(np.uint16)),
        "w2": ((experts, hidden, inner), np.dtype(np.uint16)),
    }
    if layer.bias:
        shapes["w13_bias"] = ((experts, 2 * inner), np.dtype(np.float32))
        shapes["w2_bias"] = ((experts, hidden), np.dtype(np.float32))
    return shapes


def _fill(arrays: dict[str, npt.NDArray[np.generic]], layer: Layer, seed: int) -> None:
    """Normal weights of variance 1/K, so that every stage's values are of the order of 1."""
    scales = {
        "w13": layer.hidden**-0.5,
        "w2": layer.intermediate**-0.5,
        "w13_bias": _BIAS13_SCALE,
        "w2_bias": _BIAS2_SCALE,
    }

    def fill_expert(expert: int) -> None:
        for name, array in arrays.items():
            target = array[expert]
            raw = uint16_stream(("weights", layer.hidden, layer.intermediate, seed, name, expert), target.size)
            bits = normal_table(scales[name])[raw].reshape(target.shape)
            target[...] = bits if target.dtype == np.uint16 else bf16.to_float32(bits)

    for name in arrays:
        normal_table(scales[name])  # filled before the threads start, so that they do not all compute it
    with ThreadPoolExecutor(max_workers=min(8, len(os.sched_getaffinity(0)))) as pool:
        list(pool.map(fill_expert, range(layer.num_experts)))


def make_weights(layer: Layer, seed: int = 0) -> Weights:
    """The layer's weights in this process's own memory. The same (sizes, bias, seed) give the same bits anywhere."""
    arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in _arrays(layer).items()}
    _fill(arrays, layer, seed)
    return _weights(arrays)


def materialise(layer: Layer, seed: int, folder: Path) -> Path:
    """Writes the layer's weights to a file in `folder` (best in /dev/shm) unless it is there; returns its path.

    The file appears whole or not at all. Raises OSError when there is no room, naming the bytes needed.
    """
    shapes = _arrays(layer)
    offsets, end = {}, _HEADER_BYTES
    for name, (shape, dtype) in shapes.items():
        offsets[name] = end
        end += -(-int(np.prod(shape)) * dtype.itemsize // 4096) * 4096
    header = {
        "format": _FORMAT,
        "layer": asdict(layer),
        "seed": seed,
        "arrays": {name: [list(shape), dtype.str, offsets[name]] for name, (shape, dtype) in shapes.items()},
    }
    text = json.dumps(header, sort_keys=True).encode()
    digest = hashlib.sha256(text).hexdigest()[:12]
    path = folder / f"{layer.name.replace('/', '_')}-s{seed}-{digest}.weights"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=folder)
    try:
        try:
            os.posix_fallocate(descriptor, 0, end)  # fails here and now, not as SIGBUS while writing
        except OSError as error:
            raise OSError(error.errno, f"no room for the {end} bytes of {layer.name}'s weights in {folder}") from error
        finally:
            os.close(descriptor)
        arrays = _map(Path(temporary), header, "r+")
        _fill(arrays, layer, seed)
        del arrays
        with Path(temporary).open("r+b") as file:
            file.write(text.ljust(_HEADER_BYTES))
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def open_weights(path: Path) -> Weights:
    """Maps a file of `materialise`: all processes share its pages.

    The mapping is copy-on-write: a library that wants writable memory gets it, and whatever it writes stays in its
    own process. Raises ValueError for any other file.
    """
    with path.open("rb") as file:
        text = file.read(_HEADER_BYTES)
    try:
        header = json.loads(text)
        known = header["format"] == _FORMAT
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(f"{path} is not a weights file of this version ({_FORMAT})")
    return _weights(_map(path, header, "c"))


def _map(path: Path, header: dict[str, object], mode: Literal["r+", "c"]) -> dict[str, npt.NDArray[np.generic]]:
    arrays = header["arrays"]
    assert isinstance(arrays, dict)
    return {
        name: np.memmap(path, dtype=np.dtype(dtype), mode=mode, offset=offset, shape=tuple(shape))
        for name, (shape, dtype, offset) in arrays.items()
    }


def _weights(arrays: dict[str, npt.NDArray[np.generic]]) -> Weights:
    plain = {name: array.view(np.ndarray) for name, array in arrays.items()}
    return Weights(plain["w13"], plain["w2"], plain.get("w13_bias"), plain.get("w2_bias"))
