"""From cycles of loops to a range of time for a layer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from predict_cores import CORES, MACHINES, Core, Machine
from predict_mca import Prediction

from moelab import routing
from moelab.plan import TOKENS, WORKLOADS
from moelab.roofline import work
from moelab.workloads import LAYERS, Layer

ROOT = Path(__file__).resolve().parents[1]

# The tile of a block of so many pairs of rows. SVE vectors hold two columns per 128 bits.
TILES = {
    "neon_bf16": {6: "12x8", 5: "10x8", 4: "8x12", 3: "6x16", 2: "4x24", 1: "2x24"},
    "sve_bf16": {6: "12x4v", 5: "10x4v", 4: "8x4v", 3: "6x4v", 2: "4x8v", 1: "2x8v"},
}
COLUMNS = [
    "layer",
    "tokens",
    "machine",
    "kernel",
    {"name": "predicted, fast", "unit": "µs"},
    {"name": "predicted, slow", "unit": "µs"},
    {"name": "roofline bound", "unit": "µs"},
    "bound by",
    {"name": "bytes moved", "unit": "MB"},
]


def table(loops: Sequence[Prediction]) -> dict[str, Any]:
    """`columns` and `rows`: every default workload, number of tokens and machine."""
    rates = {(p.core, p.kernel, p.tile): p for p in loops}
    rows = [
        row(LAYERS[name], tokens, machine, rates) for name in WORKLOADS for tokens in TOKENS for machine in MACHINES
    ]
    return {"columns": COLUMNS, "rows": rows}


def row(
    layer: Layer, tokens: int, machine: Machine, rates: Mapping[tuple[str, str, str], Prediction]
) -> list[str | int | float]:
    core = next(core for core in CORES if core.name == machine.core)
    ids, _ = routing.route("uniform", tokens=tokens, num_experts=layer.num_experts, topk=layer.topk, seed=0, index=0)
    needed = work(layer, ids)
    per_second = machine.cores * machine.ghz * 1e9
    predicted, known_error = (
        cycles / per_second
        for cycles in loop_cycles(layer, rows_of(ids, layer.num_experts), core, machine.kernel, rates)
    )
    compute = needed.flops / (per_second * core.pipes * 32)
    memory = needed.bytes / (machine.top * 1e9)
    fast = max(predicted, needed.bytes / (machine.high * 1e9))
    slow = known_error + needed.bytes / (machine.low * 1e9)
    times = [round(1e6 * seconds, 1) for seconds in (fast, slow, max(compute, memory))]
    bound = "memory" if memory >= compute else "multiplications"
    return [layer.name, tokens, machine.name, machine.kernel, *times, bound, round(needed.bytes / 1e6, 1)]


def rows_of(ids: npt.NDArray[np.integer], experts: int) -> list[int]:
    """Rows of each expert that has any."""
    return [int(n) for n in np.bincount(ids.ravel(), minlength=experts) if n]


def loop_cycles(
    layer: Layer, rows: Sequence[int], core: Core, kernel: str, rates: Mapping[tuple[str, str, str], Prediction]
) -> tuple[float, float]:
    """Cycles of all inner loops, summed over cores: as predicted, and with the model's known error."""
    # Columns times k of both GEMMs: a BFMMLA of one segment covers two columns and four k of two rows.
    per_pair = (2 * layer.intermediate * layer.hidden + layer.hidden * layer.intermediate) / 8
    total = with_error = 0.0
    for count in rows:
        for pairs in blocks(count):
            rate = rates[core.name, kernel, TILES[kernel][pairs]]
            width = core.vector_bits // 128 if kernel == "sve_bf16" else 1
            cycles = pairs * per_pair * rate.cycles / (rate.multiplications * width)
            total += cycles
            wide = rate.multiplications // rate.steps == 24
            with_error += cycles * (core.wide_error if wide else core.other_error)
    return total, with_error


def blocks(rows: int) -> list[int]:
    """Pairs of rows in each block of an expert: the rule and the table of bfmmla_blocks.h."""
    first = first_blocks()
    found = []
    for start in range(0, rows, 24):
        pairs = min((rows - start + 1) // 2, 12)
        found += [part for part in (first[pairs], pairs - first[pairs]) if part]
    return found


def first_blocks() -> list[int]:
    """kFirst of the kernels' source. Raises ValueError where it is not there as expected."""
    source = (ROOT / "kernels/src/isa/bfmmla_blocks.h").read_text()
    match = re.search(r"kFirst\[[^]]*\] = \{([\d, ]+)\};", source)
    values = [int(part) for part in match[1].split(",")] if match else []
    if len(values) != 13:
        raise ValueError("bfmmla_blocks.h: no table of 13 first blocks")
    return values
