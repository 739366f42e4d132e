"""What experts compute between their two products, as the packer takes it."""

from __future__ import annotations

from dataclasses import dataclass

from moelab_kernels._pack import Activation, GateUp


@dataclass(frozen=True)
class Gate:
    """Arguments of `Packer`: activation, the order of w13's rows, and swigluoai's alpha and limit."""

    activation: Activation
    gate_up: GateUp
    alpha: float = 1.702
    limit: float = 7.0
