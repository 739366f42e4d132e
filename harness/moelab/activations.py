"""The four activations in fp64, with the derivatives that error bounds need.

An activation turns gate g and up u into value(g) * up_factor(u).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moelab.bf16 import Float64
from moelab.workloads import SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT

Function = Callable[[Float64], Float64]
_TANH_SCALE = float(np.sqrt(2 / np.pi))
_TANH_CUBE = 0.044715


@dataclass(frozen=True)
class ActivationFunction:
    """value and slope (its derivative) of the gate's part; curvature bounds |second derivative| everywhere.

    gate_limit and up_limit are the clamps (infinite where there is none), up_offset is added to the clamped up.
    `value` and `slope` take the gate before its clamp; at the clamp's kink `slope` is the left one.
    """

    value: Function
    slope: Function
    curvature: float
    gate_limit: float = np.inf
    up_limit: float = np.inf
    up_offset: float = 0.0

    def up_factor(self, up: Float64) -> Float64:
        return np.asarray(np.clip(up, -self.up_limit, self.up_limit) + self.up_offset)


def sigmoid(z: Float64) -> Float64:
    """1 / (1 + exp(-z)), without overflow and with full relative accuracy for large negative z."""
    power = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, 1.0, power) / (1.0 + power))


def _swish(alpha: float, limit: float) -> tuple[Function, Function]:
    def value(gate: Float64) -> Float64:
        g = np.minimum(gate, limit)
        return g * sigmoid(alpha * g)

    def slope(gate: Float64) -> Float64:
        s = sigmoid(alpha * np.minimum(gate, limit))
        return np.where(gate > limit, 0.0, s * (1.0 + alpha * np.minimum(gate, limit) * (1.0 - s)))

    return value, slope


def _normal_cdf(g: Float64) -> Float64:
    from scipy.special import ndtr  # numpy has no erf

    return np.asarray(ndtr(g))


def _gelu_slope(g: Float64) -> Float64:
    return np.asarray(_normal_cdf(g) + g * np.exp(-0.5 * g * g) / np.sqrt(2 * np.pi))


def _gelu_tanh_argument(g: Float64) -> Float64:
    """z such that (1 + tanh(z / 2)) / 2 = sigmoid(z): no cancellation for negative g."""
    return np.asarray(2 * _TANH_SCALE * (g + _TANH_CUBE * g**3))


def _gelu_tanh_slope(g: Float64) -> Float64:
    s = sigmoid(_gelu_tanh_argument(g))
    return np.asarray(s + g * s * (1 - s) * 2 * _TANH_SCALE * (1 + 3 * _TANH_CUBE * g * g))


_silu, _silu_slope = _swish(1.0, np.inf)
_swigluoai, _swigluoai_slope = _swish(SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT)

# The largest second derivatives, all at 0, are 1/2, sqrt(2 / pi) twice, and alpha / 2.
ACTIVATIONS: dict[str, ActivationFunction] = {
    "silu": ActivationFunction(_silu, _silu_slope, 0.501),
    "gelu": ActivationFunction(lambda g: g * _normal_cdf(g), _gelu_slope, 0.799),
    "gelu_tanh": ActivationFunction(lambda g: g * sigmoid(_gelu_tanh_argument(g)), _gelu_tanh_slope, 0.799),
    "swigluoai": ActivationFunction(
        _swigluoai, _swigluoai_slope, 0.852, gate_limit=SWIGLUOAI_LIMIT, up_limit=SWIGLUOAI_LIMIT, up_offset=1.0
    ),
}
