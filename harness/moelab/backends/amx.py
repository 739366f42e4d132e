"""Whether AMX can be at work in a peer. Ours has no AMX path, so results must say where one took part."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Literal

AmxUse = Literal["absent", "no", "possible", "yes"]


@lru_cache(maxsize=1)
def cpu_has_amx() -> bool:
    """Whether this CPU multiplies BF16 tiles and the system lets programs see it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return "amx_tile" in flags and "amx_bf16" in flags


def allowed() -> bool:
    """False where MOELAB_PEER_AMX=0 asks that peers run without it, for a comparison at equal instruction sets."""
    return os.environ.get("MOELAB_PEER_AMX", "1") != "0"


def onednn_settings() -> dict[str, str]:
    """What keeps oneDNN off AMX where that is asked for; must be set before the process starts."""
    return {} if allowed() or not cpu_has_amx() else {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


def without_amx() -> AmxUse:
    """For a code path that has no AMX."""
    return "no" if cpu_has_amx() else "absent"


def with_amx() -> AmxUse:
    """For a code path that takes AMX wherever the CPU has it."""
    return "yes" if cpu_has_amx() else "absent"


def in_onednn() -> AmxUse:
    """For BF16 products of oneDNN: it takes AMX by itself unless ONEDNN_MAX_CPU_ISA names a lesser instruction set.

    ONEDNN_VERBOSE=1 shows it: implementations `brg_matmul:avx10_1_512_amx` and, with the limit, `avx512_core_bf16`.
    """
    if not cpu_has_amx():
        return "absent"
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    return "yes" if limit in ("", "DEFAULT", "ALL") or "AMX" in limit else "no"
