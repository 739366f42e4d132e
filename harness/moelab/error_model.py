"""Values with what is known about their errors, and how elementwise operations carry those errors on.

Every error is split in two:

random      sum of independent errors of mean zero, each bounded. It is held as its sub-Gaussian variance proxy v, that
            is: P(|error| > t) <= 2 exp(-t^2 / 2v). A rounding to nearest is uniform over +-u/2, where u is one ulp
            (of a continuous quantity), whose proxy equals its variance u^2/12 (a uniform distribution is strictly
            sub-Gaussian). Proxies of independent errors add; a factor c scales the proxy by c^2. A rounding to zero
            is uniform over 0..u with the value's sign, mean square u^2/3. Its mean is not zero: that counts as random
            because the values' signs are as good as random, as are those of the weights that they meet next.
systematic  of unknown sign and correlation, held as a bound b. Bounds add; a factor c scales by |c|.

Beside them `worst` bounds the whole error without any assumption on independence; it is what holds for few terms, where
`spread` standard deviations would claim more than all roundings together can do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moelab import bf16
from moelab.bf16 import Float64

SPREAD = 8.0
"""Standard deviations allowed to random errors: exceeded with probability below 2 exp(-32) = 3e-14 per element."""

FP32_ULP = 2.0**-23
FLUSH = bf16.SMALLEST_NORMAL
"""Instructions may take a denormal for zero, as argument and as result."""


@dataclass(frozen=True)
class Approximate:
    """value, and its error as variance proxy `variance`, bound `systematic`, and bound of everything `worst`."""

    value: Float64
    variance: Float64
    systematic: Float64
    worst: Float64

    @property
    def radius(self) -> Float64:
        """What the error does not exceed: with certainty, or with the probability that SPREAD stands for."""
        return np.minimum(self.worst, SPREAD * np.sqrt(self.variance) + self.systematic)

    def times(self, other: Approximate) -> Approximate:
        """The exact product; the two errors are independent of each other, so theirs has mean zero too."""
        a, b = np.abs(self.value), np.abs(other.value)
        return Approximate(
            self.value * other.value,
            b * b * self.variance + a * a * other.variance + self.variance * other.variance,
            b * self.systematic
            + a * other.systematic
            + self.systematic * other.radius
            + other.systematic * self.radius,
            b * self.worst + a * other.worst + self.worst * other.worst,
        )

    def through(self, value: Float64, slope: Float64, curvature: float) -> Approximate:
        """f of it, given f(value), |f'(value)| and a bound of |f''|: |f(a + e) - f(a)| <= |f'(a)| |e| + |f''|/2 e^2.

        The mean of e^2 counts as systematic, its scatter (variance at most 2 v^2) as random.
        """
        slope, half = np.abs(slope), curvature / 2
        return Approximate(
            value,
            slope * slope * self.variance + 2 * (half * self.variance) ** 2,
            slope * self.systematic + half * (self.variance + self.systematic * (self.systematic + 2 * self.radius)),
            slope * self.worst + curvature / 2 * self.worst * self.worst,
        )

    def with_random(self, bound: Float64, variance: Float64) -> Approximate:
        """A further independent error of mean zero."""
        return Approximate(self.value, self.variance + variance, self.systematic, self.worst + bound)

    def with_systematic(self, bound: Float64 | float) -> Approximate:
        return Approximate(self.value, self.variance, self.systematic + bound, self.worst + bound)

    def rounded(
        self, digits: int = 8, smallest_normal: float = bf16.SMALLEST_NORMAL, *, to_zero: bool = False
    ) -> Approximate:
        """Rounded to nearest, or to zero, with this many significant bits: BF16 has 8, FP16 has 11."""
        step = ulp(np.abs(self.value) + self.radius, digits, smallest_normal)
        here = ulp(self.value, digits, smallest_normal)
        if to_zero:
            return self.with_random(step, here * here / 3).with_systematic(FLUSH)
        return self.with_random(step / 2, here * here / 12).with_systematic(FLUSH)

    def scaled(self, factor: Float64) -> Approximate:
        """Times an exact factor."""
        size = np.abs(factor)
        return Approximate(factor * self.value, size * size * self.variance, size * self.systematic, size * self.worst)

    def plus(self, other: Approximate) -> Approximate:
        """The exact sum; the errors are independent of each other."""
        return Approximate(
            self.value + other.value,
            self.variance + other.variance,
            self.systematic + other.systematic,
            self.worst + other.worst,
        )


def ulp(values: Float64, digits: int, smallest_normal: float) -> Float64:
    """Distance of neighbouring numbers of `digits` significant bits at each value."""
    _, exponent = np.frexp(np.maximum(np.abs(values), smallest_normal))
    return np.asarray(np.ldexp(1.0, exponent - digits), dtype=np.float64)


def accumulation(depth: int, magnitude: Float64) -> tuple[Float64, Float64]:
    """Bound and variance proxy of an fp32 accumulation of `depth` products whose absolute values sum to `magnitude`.

    Bound: every partial sum is at most `magnitude`, and each of the `depth` additions rounds by half an ulp (2^-24
    relative), or every second one by a whole ulp (BFMMLA without FEAT_EBF16 rounds to odd, after adding products in
    pairs); one more ulp for the pairs and the bias: (depth/2 + 1) 2^-23 magnitude, in whatever order it is added.

    Proxy: those roundings are independent and uniform. depth/2 + 1 of them with +-2^-23 magnitude give the larger sum:
    (depth/2 + 1) (2^-23 magnitude)^2 / 3.
    """
    steps = depth / 2 + 1
    step = FP32_ULP * magnitude
    return steps * step, steps * step * step / 3
