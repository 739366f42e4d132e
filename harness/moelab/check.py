"""Is an output right? The per-element bound, and the statistical gates beside it (see `moelab.bounds`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moelab import bf16
from moelab.bf16 import Float64
from moelab.bounds import Reference

FLIP_ALLOWANCE = 0.01
"""Share of outputs that may be off by more than one ulp beyond what the rounding points predict."""
SPREAD_ALLOWANCE = 1.1
"""Error against model, root mean square: correct outputs stay near 1, or below where the model is generous."""


@dataclass(frozen=True)
class CheckResult:
    """ok, and why not (`reason`, "" if ok).

    max_err: largest |output - reference|; max_err_over_bound at `worst_index` (row, column), where `got` was found
    and `expected` is right; flips: share of outputs more than one BF16 ulp from the rounded reference, beside what the
    rounding points predict, at most flip_limit; spread: root mean square of error / model, at most spread_limit.
    """

    ok: bool
    reason: str
    max_err: float
    max_err_over_bound: float
    worst_index: tuple[int, int] | None
    got: float
    expected: float
    flips: float
    flips_predicted: float
    flip_limit: float
    spread: float
    spread_limit: float


def check(out: npt.NDArray[np.uint16] | npt.NDArray[np.float32], reference: Reference) -> CheckResult:
    """Compares an output [M, H] (uint16 BF16 bits, or float32) with its reference.

    NaN and infinities must be where the reference has them; a reference beyond BF16's range may come out infinite.
    Raises ValueError if the shape differs.
    """
    expected = reference.output
    if out.shape != expected.shape:
        raise ValueError(f"output has shape {list(out.shape)}, must be {list(expected.shape)}")
    got = bf16.to_float64(out.astype(np.uint16)) if out.dtype == np.uint16 else out.astype(np.float64)
    if out.size == 0:
        return CheckResult(True, "", 0.0, 0.0, None, 0.0, 0.0, 0.0, 0.0, FLIP_ALLOWANCE, 0.0, SPREAD_ALLOWANCE)
    error, ratio = _errors(got, reference)
    index = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    worst = (int(index[0]), int(index[1]))
    flips, predicted, flip_limit = _flips(got, reference)
    spread, spread_limit = _spread(error, reference)
    reasons = []
    if not ratio[worst] <= 1.0:
        reasons.append(
            f"output[{worst[0]}, {worst[1]}] is {got[worst]:.9g}, must be within {reference.bound[worst]:.3g} of "
            f"{expected[worst]:.9g} (error is {ratio[worst]:.3g} times the bound; {int((~(ratio <= 1)).sum())} of "
            f"{ratio.size} outputs are beyond theirs)"
        )
    if flips > flip_limit:
        reasons.append(
            f"{flips:.2%} of the outputs are more than one ulp off, the rounding points predict {predicted:.2%} "
            f"(limit {flip_limit:.2%})"
        )
    if spread > spread_limit:
        reasons.append(
            f"errors are {spread:.3f} times as large as the rounding points predict (limit {spread_limit:.3f})"
        )
    return CheckResult(
        ok=not reasons,
        reason="; ".join(reasons),
        max_err=float(np.max(error)),
        max_err_over_bound=float(ratio[worst]),
        worst_index=worst,
        got=float(got[worst]),
        expected=float(expected[worst]),
        flips=flips,
        flips_predicted=predicted,
        flip_limit=flip_limit,
        spread=spread,
        spread_limit=spread_limit,
    )


def _errors(got: Float64, reference: Reference) -> tuple[Float64, Float64]:
    """|got - expected| and its ratio to the bound; infinite ratio where one is finite and the other is not."""
    expected = reference.output
    finite = np.isfinite(expected)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(got - expected)
        ratio = np.where(error == 0, 0.0, error / reference.bound)
        rounded = bf16.round_float(expected)
        overflow_allowed = np.isinf(bf16.round_float(np.abs(expected) + reference.bound)) & np.isinf(got) & finite
        same_special = (np.isnan(expected) & np.isnan(got)) | (np.isinf(rounded) & (rounded == got))
        same_special |= overflow_allowed & (np.sign(got) == np.sign(expected))
    fine = same_special
    wrong = ~fine & ~(finite & np.isfinite(got))
    error = np.where(fine, 0.0, np.where(wrong, np.inf, error))
    ratio = np.where(fine, 0.0, np.where(wrong | np.isnan(ratio), np.inf, ratio))
    return error, ratio


def _usable(got: Float64, reference: Reference) -> npt.NDArray[np.bool_]:
    """Elements that statistics can use: finite, with some error expected."""
    return np.isfinite(got) & np.isfinite(reference.output) & (reference.variance > 0)


def _flips(got: Float64, reference: Reference) -> tuple[float, float, float]:
    """Share of outputs more than one ulp from the rounded reference: seen, predicted, and the limit for the seen."""
    use = _usable(got, reference)
    count = int(use.sum())
    if count == 0:
        return 0.0, 0.0, FLIP_ALLOWANCE
    exact, sigma = reference.output[use], np.sqrt(reference.variance[use])
    nearest = bf16.to_bits(exact)
    steps = np.abs(_order(bf16.to_bits(got[use])) - _order(nearest))
    flips = float(np.mean(steps > 1))
    unit = bf16.ulp(bf16.to_float64(nearest))
    offset = exact - bf16.to_float64(nearest)
    if reference.rounding.to == "zero":
        # Two steps away once |exact| + e is below |nearest| - 1 ulp. All errors go that way if the one before the last
        # rounding had the output's sign: so many at most.
        predicted = float(np.mean(2 * _tail((unit + offset * np.sign(exact)) / sigma)))
    else:
        # With a normal error e before the last rounding: two steps away if |exact + e - nearest| > 1.5 ulp.
        predicted = float(np.mean(_tail((1.5 * unit - offset) / sigma) + _tail((1.5 * unit + offset) / sigma)))
    scatter = 5 * np.sqrt(max(predicted, 1 / count) / min(count, reference.freedom))
    return flips, predicted, predicted + FLIP_ALLOWANCE + float(scatter)


def _spread(error: Float64, reference: Reference) -> tuple[float, float]:
    use = np.isfinite(error) & (reference.variance > 0) & np.isfinite(reference.output)
    count = int(use.sum())
    if count == 0:
        return 0.0, SPREAD_ALLOWANCE
    model = reference.variance[use]
    if reference.rounding.output:
        unit = bf16.ulp(np.abs(reference.output[use]) + np.sqrt(model))
        # Inputs of the second GEMM rounded to zero make the output smaller, and so does its own rounding: at most their
        # root mean squares add, not their squares.
        to_zero = reference.rounding.to == "zero"
        model = (np.sqrt(model) + unit / np.sqrt(3)) ** 2 if to_zero else model + unit**2 / 12
    spread = float(np.sqrt(np.mean(error[use] ** 2 / model)))
    # The root mean square of n independent normal errors scatters by 1 / sqrt(2n).
    return spread, SPREAD_ALLOWANCE + 5 / float(np.sqrt(2 * min(count, reference.freedom)))


def _order(bits: bf16.Bits) -> npt.NDArray[np.int32]:
    """Consecutive integers for consecutive BF16 numbers, both zeros at 0."""
    signed = bits.astype(np.int32)
    return np.asarray(np.where(signed & 0x8000, 0x8000 - signed, signed), dtype=np.int32)


def _tail(z: Float64) -> Float64:
    """P(standard normal > z)."""
    from scipy.special import ndtr  # numpy has no error function

    return np.asarray(ndtr(-z))
