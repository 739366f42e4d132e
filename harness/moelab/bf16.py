"""BFloat16 in numpy, held as the upper 16 bits of an IEEE single in uint16 arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

SMALLEST_NORMAL = 2.0**-126


def to_bits(values: npt.ArrayLike) -> Bits:
    """Rounds to BF16, to nearest even, once: fp64 is not rounded to fp32 on the way (that would round twice).

    NaN stays NaN, values beyond the largest BF16 become infinite.
    """
    wide = np.asarray(values)
    if wide.dtype != np.float32:
        wide = round_to_odd_float32(wide.astype(np.float64, copy=False))
    raw = np.ascontiguousarray(wide, dtype=np.float32).view(np.uint32)
    rounded = ((raw + (0x7FFF + ((raw >> 16) & 1))) >> 16).astype(np.uint16)
    nan = (raw & 0x7FFFFFFF) > 0x7F800000
    if nan.any():
        rounded[nan] = ((raw[nan] >> 16) | 0x0040).astype(np.uint16)
    return rounded.reshape(np.shape(values))


def round_to_odd_float32(values: Float64) -> Float32:
    """fp64 to fp32 such that a later rounding to BF16 equals one direct rounding.

    The result is the neighbour with an odd last bit wherever fp32 is not exact, so it never lies on a BF16 tie
    that the fp64 value was not on.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.atleast_1d(values).astype(np.float32)
        back = near.astype(np.float64)
        bits = near.view(np.int32)
        inexact = (back != values) & np.isfinite(back) & ((bits & 1) == 0)
        if inexact.any():
            # One step towards the exact value; in the sign-magnitude order of floats a step away from zero is +1.
            away = np.abs(values) > np.abs(back)
            # A step below zero's magnitude cannot happen: |value| < |0| is false.
            bits = bits + np.where(inexact, np.where(away, 1, -1), 0).astype(np.int32)
    return np.asarray(bits.view(np.float32)).reshape(np.shape(values))


def to_float32(bits: npt.NDArray[np.uint16]) -> Float32:
    """The exact value of each BF16."""
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def to_float64(bits: npt.NDArray[np.uint16]) -> Float64:
    with np.errstate(invalid="ignore"):  # signalling NaNs become quiet ones
        return to_float32(bits).astype(np.float64)


def round_float(values: npt.ArrayLike) -> Float64:
    """The nearest BF16 of each value, as fp64."""
    return to_float64(to_bits(values))


def ulp(values: npt.ArrayLike) -> Float64:
    """Distance of neighbouring BF16 numbers at each value: 2^(exponent - 7), never below the denormal step 2^-133."""
    magnitude = np.maximum(np.abs(np.asarray(values, dtype=np.float64)), SMALLEST_NORMAL)
    _, exponent = np.frexp(magnitude)  # magnitude = m * 2^exponent with m in [1/2, 1)
    return np.asarray(np.ldexp(1.0, exponent - 8), dtype=np.float64)
