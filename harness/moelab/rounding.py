"""Where an implementation rounds to BF16: what its error bound is derived from (see `moelab.bounds`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Rounding:
    """The rounding points between x and the output. Whatever is not named here is done in fp32.

    gemm1       gate and up (bias included) are stored as BF16 before the activation
    bias        "fp32": added to the fp32 accumulator; "bf16": added to a result already rounded to BF16, and rounded
                again (both GEMMs; matters only for layers with biases)
    activation  "once": act(gate) * up in fp32, then one rounding to BF16, as the second GEMM's input needs;
                "steps": BF16 after each elementwise operation, as written in a tensor library
    expert      an expert's output row is stored as BF16: "no", "unweighted" (before the router weight is applied) or
                "weighted" (after)
    combine     the sum over a token's experts runs in "fp32" or in "bf16" (rounded after each addition)
    output      the output is BF16 (False: fp32)
    gelu_tanh   "fp32", or "fp16-table": looked up by the FP16 of its argument, which rounds argument and value to FP16
    to          BF16 is the "nearest", or "zero": the lower half of the fp32 is cut off, an error up to twice as large
    """

    gemm1: bool = False
    bias: Literal["fp32", "bf16"] = "fp32"
    activation: Literal["once", "steps"] = "once"
    expert: Literal["no", "unweighted", "weighted"] = "no"
    combine: Literal["fp32", "bf16"] = "fp32"
    output: bool = True
    gelu_tanh: Literal["fp32", "fp16-table"] = "fp32"
    to: Literal["nearest", "zero"] = "nearest"

    def __post_init__(self) -> None:
        """Raises ValueError for combinations whose errors the model does not predict."""
        if self.to == "zero" and replace(self, output=True, to="nearest") != Rounding():
            # Each makes its value smaller: over several in a row these errors add up, where the model has them
            # independent. Two in a row are provided for, see moelab.check.
            raise ValueError(f"to: 'zero' goes with no rounding points but activation and output, got {self}")

    def as_dict(self) -> dict[str, str | bool]:
        """For result files."""
        return asdict(self)


# BF16 only where it cannot be avoided: as input of the second GEMM and as output.
FUSED = Rounding()
