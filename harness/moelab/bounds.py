"""How far a correct implementation may be from the fp64 reference, element by element, and the check that follows.

Derivation. For one expert and one row x let g, u be gate and up, h = act(g, u) and y = W2 h + b2, all known in fp64.
Errors come from (`Rounding` says which of the BF16 ones a backend has):

 1. g, u: the fp32 accumulation over K = H of products that are exact in fp32 (`error_model.accumulation`, with
    magnitude |W13| |x| + |b13|). If stored as BF16: half an ulp.
 2. h = act(g) * u': the errors of g and u pass through act with its slope at g, and half its largest second derivative
    for the square of the error; through the clamps with slope 1 or 0. The function itself is computed in fp32 with a
    relative error of at most 2^-14 (`ACTIVATION_RELATIVE`: polynomial and reciprocal estimate in vector code; it moves
    one BF16 result in 64 at most) and 2^-22 |g u'| absolute (cancellation in 1 + tanh). Then BF16: half an ulp; in
    "steps" half an ulp after every operation, each carried through those that follow.
 3. y: W2 applied to the errors of h (variances with the squares of W2's elements, bounds with their absolute values),
    and the fp32 accumulation over K = I, magnitude |W2| |h| + |b2|. If stored as BF16: half an ulp.
 4. out = sum of router * y over the slots: variances times router^2, bounds times |router|; fp32 accumulation over the
    slots; if the sum runs in BF16, half an ulp of the partial sums for each slot.
 5. out as BF16: half an ulp, as a certain bound.

Where a backend rounds to zero instead of to nearest, "half an ulp" reads "an ulp", and the mean square u^2/12 u^2/3.

Denormals (below 2^-126) may be read or written as zero: 2^-126 times the other factor for each product.

The bound is min(worst, 8 sqrt(variance) + systematic) + the last half ulp. `worst` assumes nothing. The other is
exceeded by one correct element in 3e13 if rounding errors are independent, which they are to good approximation for
weights that are not constructed against it; for layers of real depth it is so much sharper that one lost product in a
sum of thousands shows. Because variance and systematic part are known, the errors' spread itself is checked too:

flips   share of outputs more than one ulp from the correctly rounded reference: at most 1 % above the share that the
        model predicts for these rounding points;
spread  root mean square of error / model: at most 1.1 and the scatter of that estimate.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moelab import bf16
from moelab.activations import ACTIVATIONS, ActivationFunction, sigmoid
from moelab.bf16 import Float64
from moelab.error_model import FLUSH, Approximate, accumulation
from moelab.oracle import Expert, Index, Stage, add_rows, stages, used_experts
from moelab.rounding import Rounding
from moelab.weights import Weights
from moelab.workloads import SWIGLUOAI_ALPHA, Inputs, Layer

ACTIVATION_RELATIVE = 2.0**-14
ACTIVATION_ABSOLUTE = 2.0**-22


@dataclass(frozen=True)
class Reference:
    """The right output fp64 [M, H] and what an implementation with these rounding points may make of it.

    bound: largest admissible |output - reference|, the last rounding included. variance: of the error before the last
    rounding. freedom_per_token: how many independent errors a token's outputs stand for, at least.
    """

    rounding: Rounding
    output: Float64
    bound: Float64
    variance: Float64
    freedom_per_token: int

    @property
    def freedom(self) -> int:
        return len(self.output) * self.freedom_per_token

    def rows(self, part: slice | npt.NDArray[np.intp]) -> Reference:
        """The reference of some tokens alone."""
        return replace(self, output=self.output[part], bound=self.bound[part], variance=self.variance[part])


def reference(weights: Weights, layer: Layer, inputs: Inputs, rounding: Rounding) -> Reference:
    """Output and error bounds for one set of rounding points."""
    return references(weights, layer, inputs, (rounding,))[0]


def references(
    weights: Weights, layer: Layer, inputs: Inputs, roundings: tuple[Rounding, ...]
) -> tuple[Reference, ...]:
    """The same for several at once: the fp64 matrix products, most of the work, are shared."""
    shape = inputs.x.shape
    output, magnitude = np.zeros(shape), np.zeros(shape)
    sums = [Approximate(output, np.zeros(shape), np.zeros(shape), np.zeros(shape)) for _ in roundings]
    with ThreadPoolExecutor(max_workers=min(4, len(os.sched_getaffinity(0)))) as pool:
        # Experts are added in ascending order, whichever is ready first.
        for parts in pool.map(
            lambda e: _expert_parts(weights, layer, inputs, roundings, e), used_experts(layer, inputs)
        ):
            for rows, errors in parts:
                add_rows(output, rows, errors[0].value)
                add_rows(magnitude, rows, np.abs(errors[0].value))
                for total, error in zip(sums, errors, strict=True):
                    add_rows(total.variance, rows, error.variance)
                    add_rows(total.systematic, rows, error.systematic)
                    add_rows(total.worst, rows, error.worst)
    topk = inputs.topk_ids.shape[1]
    return tuple(
        _combined(total, rounding, magnitude, layer, topk) for total, rounding in zip(sums, roundings, strict=True)
    )


def _expert_parts(
    weights: Weights, layer: Layer, inputs: Inputs, roundings: tuple[Rounding, ...], number: int
) -> list[tuple[Index, list[Approximate]]]:
    """What one expert adds to the tokens `rows`: router * y for each set of rounding points."""
    parts = []
    sizes: _Sizes | None = None
    for stage in stages(weights, layer, inputs, number):
        sizes = sizes or _Sizes(stage.expert)
        with np.errstate(over="ignore", invalid="ignore"):
            gate, up = _gate_and_up(stage, sizes)
            errors = []
            for rounding in roundings:
                first = gate, up
                if rounding.bias == "bf16" and stage.expert.bias13 is not None:
                    first = gate.rounded(), up.rounded()
                if rounding.gemm1:
                    first = first[0].rounded(), first[1].rounded()
                inner = _activated(*first, ACTIVATIONS[layer.activation], rounding)
                y = _second_gemm(stage, sizes, inner, rounding)
                if rounding.expert == "unweighted":
                    y = y.rounded()
                y = y.scaled(stage.router[:, None])
                if rounding.expert == "weighted":
                    y = y.rounded()
                errors.append(y)
        parts.append((stage.tokens, errors))
    return parts


def _combined(total: Approximate, rounding: Rounding, magnitude: Float64, layer: Layer, topk: int) -> Reference:
    total = total.with_random(*accumulation(2 * topk, magnitude))
    if rounding.combine == "bf16":
        step = bf16.ulp(magnitude)
        total = total.with_random(topk * step / 2, topk * step * step / 12)
    bound = total.radius
    if rounding.output:
        bound = bound + bf16.ulp(np.abs(total.value) + bound) / (1 if rounding.to == "zero" else 2) + FLUSH
    return Reference(rounding, total.value, bound, total.variance, min(layer.hidden, layer.intermediate))


def _gate_and_up(stage: Stage, sizes: _Sizes) -> tuple[Approximate, Approximate]:
    """fp32 results of the first GEMM."""
    depth = stage.x.shape[1]
    magnitude = sizes.w13.applied_to(np.abs(stage.x))
    if stage.expert.bias13 is not None:
        magnitude = magnitude + np.abs(stage.expert.bias13)
    flushed = FLUSH * depth * (sizes.w13.peak + _peak(stage.x))
    both = np.concatenate((stage.gate, stage.up), axis=1)
    zero = np.zeros_like(both)
    exact = Approximate(both, zero, zero, zero)
    result = exact.with_random(*accumulation(depth, magnitude)).with_systematic(flushed)
    half = stage.gate.shape[1]
    first, second = (slice(0, half), slice(half, None))
    gate, up = (
        Approximate(*(getattr(result, name)[:, part] for name in ("value", "variance", "systematic", "worst")))
        for part in (first, second)
    )
    return gate, up


def _activated(gate: Approximate, up: Approximate, activation: ActivationFunction, rounding: Rounding) -> Approximate:
    """act(gate) * up as the second GEMM reads it: BF16."""
    steps = rounding.activation == "steps"
    clamped_gate = _clamped(gate, activation.gate_limit, below=False)
    offset_up = _clamped(up, activation.up_limit, below=True)
    offset_up = Approximate(
        offset_up.value + activation.up_offset, offset_up.variance, offset_up.systematic, offset_up.worst
    )
    g = clamped_gate.value
    if rounding.gelu_tanh == "fp16-table" and activation is ACTIVATIONS["gelu_tanh"]:
        clamped_gate = clamped_gate.rounded(11, 2.0**-14)
    factor = clamped_gate.through(activation.value(g), activation.slope(g), activation.curvature)
    if rounding.gelu_tanh == "fp16-table" and activation is ACTIVATIONS["gelu_tanh"]:
        factor = factor.rounded(11, 2.0**-14)
    if steps and activation is ACTIVATIONS["swigluoai"]:
        factor = _sigmoid_in_steps(factor, g)
        offset_up = offset_up.rounded()
    # Errors of the function are smooth in g and as good as random from channel to channel, but not uniform.
    own = ACTIVATION_RELATIVE * np.abs(factor.value) + ACTIVATION_ABSOLUTE * np.abs(g)
    factor = factor.with_random(own, own * own).with_systematic(FLUSH)
    if steps:
        factor = factor.rounded()
    return factor.times(offset_up).rounded(to_zero=rounding.to == "zero")


def _sigmoid_in_steps(factor: Approximate, g: Float64) -> Approximate:
    """g * sigmoid(alpha * g) with alpha * g and the sigmoid each stored as BF16."""
    argument = SWIGLUOAI_ALPHA * g
    s = sigmoid(argument)
    zero = np.zeros_like(g)
    rounded_argument = Approximate(argument, zero, zero, zero).rounded()
    return _add_errors(factor, rounded_argument.through(s, s * (1 - s), 0.1).rounded().scaled(g))


def _add_errors(target: Approximate, source: Approximate) -> Approximate:
    return Approximate(
        target.value,
        target.variance + source.variance,
        target.systematic + source.systematic,
        target.worst + source.worst,
    )


def _clamped(a: Approximate, limit: float, *, below: bool) -> Approximate:
    """Clamped to [-limit, limit], or from above only. Where value and error lie beyond the clamp nothing is left."""
    if np.isinf(limit):
        return a
    beyond = a.value - a.radius > limit
    if below:
        beyond |= a.value + a.radius < -limit
    value = np.clip(a.value, -limit if below else -np.inf, limit)
    return Approximate(value, *(np.where(beyond, 0.0, e) for e in (a.variance, a.systematic, a.worst)))


def _second_gemm(stage: Stage, sizes: _Sizes, inner: Approximate, rounding: Rounding) -> Approximate:
    depth = inner.value.shape[1]
    variance = sizes.w2_squared.applied_to(inner.variance)
    stacked = np.concatenate((inner.systematic, inner.worst, np.abs(inner.value)))
    systematic, worst, magnitude = np.split(sizes.w2.applied_to(stacked), 3)
    if stage.expert.bias2 is not None:
        magnitude = magnitude + np.abs(stage.expert.bias2)
    flushed = FLUSH * depth * (sizes.w2.peak + _peak(inner.value))
    y = Approximate(stage.y, variance, systematic, worst)
    y = y.with_random(*accumulation(depth, magnitude)).with_systematic(flushed)
    if rounding.bias == "bf16" and stage.expert.bias2 is not None:
        y = y.rounded()
    return y


class _Magnitudes:
    """A matrix [m, K] of elements >= 0 in single precision, scaled by its peak to stay clear of under- and overflow."""

    def __init__(self, bits: bf16.Bits, power: int) -> None:
        size = bits & np.uint16(0x7FFF)
        finite = size.max(initial=0, where=size < 0x7F80)
        base = max(float(bf16.to_float32(np.atleast_1d(finite))[0]), 2.0**-100)
        self.peak = base**power
        with np.errstate(over="ignore", invalid="ignore"):
            self._scaled = bf16.to_float32(size)
            self._scaled *= np.float32(1 / base)
            if power == 2:
                np.square(self._scaled, out=self._scaled)

    def applied_to(self, rows: Float64) -> Float64:
        """rows [n, K] of elements >= 0 times the matrix transposed, [n, m], rounded up.

        Infinite or NaN elements stay in their own rows and columns, where the output is not finite either.
        """
        scale = max(_peak(rows), 1e-300)
        product = (rows / scale).astype(np.float32) @ self._scaled.T
        slack = 1.0 + 2.0**-23 * (rows.shape[1] + 8)
        return np.asarray(product.astype(np.float64) * (slack * scale * self.peak))


class _Sizes:
    """Absolute values and squares of one expert's weights."""

    def __init__(self, expert: Expert) -> None:
        self.expert = expert
        self.w13 = _Magnitudes(expert.bits13, 1)
        self.w2 = _Magnitudes(expert.bits2, 1)
        self.w2_squared = _Magnitudes(expert.bits2, 2)


def _peak(values: npt.NDArray[np.float64]) -> float:
    """The largest finite magnitude."""
    size = np.abs(values)
    return float(np.max(size, initial=0.0, where=np.isfinite(size)))
