"""Orders of the main loop of neon_bf16, so that a native run can tell which one a core likes best.

On Neoverse V2 public figures come out at half of what the manual gives; kernels/README.md says how to find out why.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

VARIABLE = "MOELAB_NEON_TILE"  # read by the kernels, once per process
ISA = "neon_bf16"
NAMES = ("12x8", "12x8-rows", "12x8-swapped")
"""Neighbours share the operand of the weights (the default), the operand of A, or the operands are exchanged."""


def check(name: str | None, backends: Sequence[str]) -> None:
    """Raises ValueError unless each of our backends in the run would use this order on this machine."""
    if name is None:
        return
    if name not in NAMES:
        raise ValueError(f"tile {name!r} is unknown; known: {', '.join(NAMES)}")
    ours = [backend for backend in backends if backend.partition(":")[0].partition("@")[0] == "moelab"]
    if not ours:
        raise ValueError(f"tile {name!r} is for our kernels, and none of {', '.join(backends)} is one")
    for backend in ours:
        isa = backend.partition(":")[2] if ":" in backend and "@" not in backend else chosen_isa()
        if isa != ISA:
            raise ValueError(f"tile {name!r} is an order of {ISA}; {backend} runs {isa} on this machine")


def chosen_isa() -> str:
    """The instruction set that our kernels take here."""
    try:
        import moelab_kernels as mk  # the harness also works without our kernels
    except (ImportError, OSError) as error:
        return f"nothing ({error})"
    return os.environ.get("MOELAB_ISA") or mk.isas()[0]


def in_use(isa: str | None) -> str | None:
    """The order that this process's kernels run in; None where the instruction set has but one."""
    if isa != ISA:
        return None
    name = os.environ.get(VARIABLE)
    return name if name in NAMES else NAMES[0]
