"""How fast packing is, beside memcpy of the same run.

    .nox/lab/bin/python harness/benchmarks/packing.py [--workload gpt-oss-20b] [--threads 2] …

For every type and layout that weights come in: GB/s of bytes read plus bytes written, of `moelab_kernels.pack` (which
asks for the memory itself) and of a copy of as many bytes by the C library on the same number of threads, once into
memory asked for each time, as packing does, and once into memory that is already there. All of them take turns, and a
share is the median over the turns. Also: the time until a first call has its result, packing included, and how far
the process's memory grows beyond sources and packed weights while packing expert by expert.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import moelab_kernels as mk
from moelab.memory import Growth
from moelab.workloads import Layer, layer_by_name
from moelab_kernels._memory import allocate

Array = np.ndarray[Any, Any]
WIDTHS = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32}
LAYOUTS = ("split", "interleaved", "transposed")


def source(layer: Layer, experts: int, dtype: str, layout: str) -> tuple[Array, Array]:
    """w13 and w2 as numpy arrays; "transposed" is gpt-oss: interleaved, [E, H, 2I] and [E, I, H] in memory."""
    shapes = (experts, 2 * layer.intermediate, layer.hidden), (experts, layer.hidden, layer.intermediate)
    made = []
    for e, rows, columns in shapes:
        stored = (e, columns, rows) if layout == "transposed" else (e, rows, columns)
        array = np.empty(stored, WIDTHS[dtype])
        pattern = np.linspace(-1, 1, stored[1] * stored[2], dtype=np.float32).reshape(stored[1:])
        for one in array:
            one[:] = (pattern.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else pattern
        made.append(array.transpose(0, 2, 1) if layout == "transposed" else array)
    return made[0], made[1]


def copies(read: int, written: int, threads: int, pool: ThreadPoolExecutor) -> tuple[Callable[[], None], ...]:
    """Two functions that copy (read + written) / 2 bytes: into new memory, and into memory that is already there."""
    size = (read + written) // 2 // (threads << 12) * (threads << 12)
    given, there = allocate(size), allocate(size)
    given[:] = 1
    there[:] = 0
    portion = 2 << 20
    starts = range(0, size, portion)

    def copy(to: Array) -> None:
        list(pool.map(lambda at: np.copyto(to[at : at + portion], given[at : at + portion]), starts))

    return (lambda: copy(allocate(size))), (lambda: copy(there))


def seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    kept = run()
    took = perf_counter() - start
    del kept
    return took


def extra_bytes(layer: Layer, experts: int, options: dict[str, Any], w13: Array, w2: Array) -> int:
    """Beyond the packed weights, while experts are loaded and packed one after the other."""
    with Growth() as growth:
        packer = mk.Packer(experts, layer.hidden, layer.intermediate, isa=options["isa"], **kind(options))
        for e in range(experts):
            packer.add(e, w13[e].copy(order="K"), w2[e].copy(order="K"), bf16_as_uint16=options["bf16_as_uint16"])
        packed = packer.finish()
    return max(0, growth.most - packed.nbytes)


def set_threads(threads: int) -> None:
    """Starts again where OpenMP was told another number: packing takes the setting of its process."""
    if os.environ.get("OMP_NUM_THREADS") != str(threads):
        os.environ["OMP_NUM_THREADS"] = str(threads)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def kind(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("activation", "gate_up")}


def measure(layer: Layer, experts: int, dtype: str, layout: str, threads: int, rounds: int, isa: str | None) -> Any:
    """One row of the table."""
    w13, w2 = source(layer, experts, dtype, layout)
    gate_up = "split" if layout == "split" else "interleaved"
    options = {"activation": layer.activation, "gate_up": gate_up, "isa": isa, "bf16_as_uint16": dtype == "bf16"}

    def pack() -> mk.PackedExperts:
        return mk.pack(w13, w2, **options)

    def first_call() -> object:
        x = np.zeros((1, layer.hidden), np.uint16)
        ids = np.arange(min(layer.topk, experts), dtype=np.int32)[None]
        weights = np.ones(ids.shape, np.float32)
        return mk.fused_moe(x, pack(), weights, ids, num_threads=threads, bf16_as_uint16=True)

    read, written = w13.nbytes + w2.nbytes, pack().nbytes
    with ThreadPoolExecutor(threads) as pool:
        new, there = copies(read, written, threads, pool)
        runs = {"pack": pack, "new": new, "there": there, "first_call": first_call}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(rounds + 1):
            for name in sorted(runs, reverse=bool(turn % 2)):
                took = seconds(runs[name])
                if turn:
                    times[name].append(took)
    middle = {name: statistics.median(found) for name, found in times.items()}
    shares = {
        name: statistics.median(copy / packing for copy, packing in zip(times[name], times["pack"], strict=True))
        for name in ("new", "there")
    }
    return {
        "workload": layer.name,
        "experts": experts,
        "dtype": dtype,
        "layout": layout,
        "threads": threads,
        "isa": isa or mk.isas()[0],
        "bytes": read + written,
        "pack_seconds": middle["pack"],
        "gigabytes_per_second": {name: (read + written) / middle[name] * 1e-9 for name in ("pack", "new", "there")},
        "share_of_memcpy": shares,
        "first_call_seconds": middle["first_call"],
        "extra_bytes": extra_bytes(layer, experts, options, w13, w2),
        "expert_bytes": read // experts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", default="gpt-oss-20b", help="a layer of `moelab bench`; default gpt-oss-20b")
    parser.add_argument("--experts", type=int, default=8, help="how many of its experts, default 8")
    parser.add_argument("--dtype", default=",".join(WIDTHS), help="default all: bf16,fp16,fp32")
    parser.add_argument("--layout", default=",".join(LAYOUTS), help="default all: split,interleaved,transposed")
    parser.add_argument("--isa", help="default: the best of this machine")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all CPUs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    for name, known in (("dtype", tuple(WIDTHS)), ("layout", LAYOUTS)):
        for value in getattr(options, name).split(","):
            if value not in known:
                parser.error(f"--{name}: {value!r}, expected some of {', '.join(known)}")
    set_threads(options.threads)
    rows = []
    print("  GB/s, read + written:            pack  memcpy new  share  memcpy there  share   first call   extra memory")
    for dtype in options.dtype.split(","):
        for layout in options.layout.split(","):
            row = measure(
                layer_by_name(options.workload),
                options.experts,
                dtype,
                layout,
                options.threads,
                options.rounds,
                options.isa,
            )
            rows.append(row)
            rate, share = row["gigabytes_per_second"], row["share_of_memcpy"]
            print(
                f"  {row['isa']:<12} {dtype:<5} {layout:<12}  {rate['pack']:5.1f}"
                f"  {rate['new']:10.1f}  {share['new']:5.0%}"
                f"  {rate['there']:12.1f}  {share['there']:5.0%}  {row['first_call_seconds'] * 1e3:7.0f} ms"
                f"  {row['extra_bytes'] / row['expert_bytes']:6.2f} experts",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
