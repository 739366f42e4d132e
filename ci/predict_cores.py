"""What is known of the cores and machines that are predicted for.

Sources: the cores' software optimisation guides and the makers' data sheets; what is not published says assumed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Core:
    """One model of LLVM's.

    `pipes`: 128-bit multiply-accumulate instructions per cycle. `dispatch`: operations per cycle that the model may
    start; LLVM's own widths count more for some cores than they rename. `wide_error`, `other_error`: how far the model
    is known to be off, as a factor of time, for loops of 24 sums and for others. `vector_bits`: of SVE, 0 where unused.
    """

    name: str
    multiply: str
    kernels: tuple[str, ...]
    pipes: int
    dispatch: int
    wide_error: float
    other_error: float
    error: str
    vector_bits: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kernels": list(self.kernels)}


_HALF = (
    "several public figures of V2 and X2 come out at half this rate, perhaps a hazard that no model holds: up to 1.9 "
    "times slower until a native run says otherwise"
)
CORES = (
    Core("neoverse-n1", "fmla", ("neon",), 2, 4, 1.06, 1.53, "as for V1; nothing was compared on this core"),
    Core("neoverse-n2", "bfmmla", ("neon_bf16",), 2, 5, 1.06, 1.06,
         "packed loops of 24 sums: within 6 % of Arm's own figures"),
    Core("neoverse-v1", "bfmmla", ("neon_bf16", "sve_bf16"), 4, 8, 1.06, 1.53,
         "packed loops of 24 sums: within 6 % of Arm's own figures; others up to 53 % off", vector_bits=256),
    Core("neoverse-v2", "bfmmla", ("neon_bf16",), 4, 8, 1.9, 1.9, _HALF),
    Core("neoverse-v3", "bfmmla", ("neon_bf16",), 4, 8, 1.9, 1.9, f"LLVM gives it V2's model; {_HALF}"),
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """One socket. Bandwidths in GB/s: `top` bounds the roofline, `high` and `low` the prediction."""

    name: str
    core: str
    kernel: str
    cores: int
    ghz: float
    top: float
    high: float
    low: float
    bandwidth: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


MACHINES = (
    Machine("Graviton3", "neoverse-v1", "sve_bf16", 64, 2.6, 307, 307, 246,
            "8 channels of DDR5-4800: 307 in theory; 80 % of that assumed as low"),
    Machine("Graviton4", "neoverse-v2", "neon_bf16", 96, 2.8, 538, 465, 465,
            "12 channels of DDR5-5600: 538 in theory, 465 read in public measurements"),
    Machine("Grace", "neoverse-v2", "neon_bf16", 72, 3.1, 512, 486, 410,
            "LPDDR5X: 512 in theory, 410 to 486 in public STREAM runs"),
    Machine("Cobalt 100", "neoverse-n2", "neon_bf16", 128, 3.4, 538, 538, 430,
            "not published; 12 channels of DDR5-5600 assumed, 80 % of that as low"),
)  # fmt: skip
