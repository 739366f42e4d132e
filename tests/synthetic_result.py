"""Makes a result file of invented numbers, for tests of whatever reads result files: `python synthetic_result.py OUT`.

Nothing in it was measured, and the file says so (`moelab.synthetic`, "synthetic" in the names of machine and CPU).
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pytest_benchmark.stats import Stats

from moelab import results, roofline
from moelab.measurement import BackendRun, CaseRun, Check, Missing, Role, Sample, Setting
from moelab.rounding import FUSED
from moelab.workloads import LAYERS, Case, make_inputs

PROCESSES, ROUNDS = 3, 6
TOKENS = (1, 4, 16, 64, 256, 1024)
WORKLOADS = ("gpt-oss-20b", "gemma-4-26b-a4b", "qwen3-30b-a3b")
# Invented: speed relative to the baseline from one token to many.
SPEEDS = {
    "moelab": (2.0, 2.1, 2.1, 2.0, 1.6, 1.3),
    "torch_grouped_mm": (1.01, 1.08, 1.0, 1.05, 1.04, 0.76),
    "vllm": (2.0, 2.1, 2.05, 1.4, 0.73, 0.54),
}
BANDWIDTH, PEAK = 50e9, 450e9
SETTING = Setting(2, [0, 1], "affinity to 2 CPUs", "cold", "read 64 MiB before each sample", False, 32 << 20)


def case_run(workload: str, tokens: int, rng: np.random.Generator, *, broken: bool = False) -> CaseRun:
    case = Case(LAYERS[workload], tokens, threads=2)
    run = CaseRun(case, SETTING, "torch_loop", separate_copy=True)
    roles: dict[str, tuple[str, Role]] = {
        "torch_loop": ("torch_loop", "baseline"),
        "moelab": ("moelab", "candidate"),
        "moelab#2": ("moelab", "control"),
        "torch_grouped_mm": ("torch_grouped_mm", "candidate"),
    }
    if workload != "gemma-4-26b-a4b":
        roles["vllm"] = ("vllm", "candidate")
    for label, (name, role) in roles.items():
        run.backends[label] = BackendRun(
            name, label, role, version="0.0-synthetic", isa="avx512_bf16" if name == "moelab" else None,
            rounding=FUSED.as_dict(), facts={"packing": "invented"}, environment={"torch": "0.0-synthetic"},
            packing_seconds=[1.5] * PROCESSES, first_call_seconds=[0.25] * PROCESSES,
            packing_extra_bytes=[1 << 20] * PROCESSES, packed_bytes=case.layer.weight_bytes,
            before=Check(16, 0.004, 0.02, 0.2, 0.001, 0.01), after=Check(72, 0.005, 0.02, 0.25, 0.001, 0.01),
            samples_checked=PROCESSES * ROUNDS,
        )  # fmt: skip
    for process in range(PROCESSES):
        for round_ in range(ROUNDS):
            work = roofline.work(case.layer, make_inputs(case, round_).topk_ids)
            weather = rng.lognormal(0, 0.1)  # the machine's mood, shared by a round
            base = 2 * max(work.bytes / BANDWIDTH, work.flops / PEAK) * weather
            for position, label in enumerate(rng.permutation(list(roles))):
                name = roles[label][0]
                speed = SPEEDS[name][TOKENS.index(tokens)] if name in SPEEDS else 1.0
                if broken and name == "vllm":
                    speed = 4.0
                run.backends[label].samples.append(
                    Sample(
                        process,
                        round_,
                        position,
                        round_,
                        1,
                        base / speed * rng.lognormal(0, 0.01),
                        work.bytes,
                        work.flops,
                        work.experts,
                        BANDWIDTH / weather,
                        PEAK / weather,
                    )
                )
    return run


def machine() -> dict[str, object]:
    return {
        "machine_id": "000000000000", "architecture": "x86_64",
        "cpu": {"part": "Synthetic 0/0/0", "name": "Synthetic CPU (invented)", "vendor": "Synthetic", "family": 0,
                "model": 0, "stepping": 0, "midr": None, "features": ["avx2", "avx512_bf16"], "mixed": False},
        "cpus": {"allowed": 2, "cores": 2, "sockets": 1, "smt": False, "numa_nodes": 1},
        "caches": [{"level": 1, "kind": "Data", "bytes": 32 << 10, "shared_by": 1},
                   {"level": 2, "kind": "Unified", "bytes": 1 << 20, "shared_by": 1},
                   {"level": 3, "kind": "Unified", "bytes": 32 << 20, "shared_by": 2}],
        "last_level_bytes": 32 << 20,
        "memory": {"total": 24 << 30, "available": 20 << 30, "limit": None, "thp": "madvise", "swap": 0},
        "frequency": {"governor": None, "driver": None, "boost": None, "min_khz": None, "max_khz": None},
        "cgroup": {"cpu_limit": None, "memory_limit": None, "container": None},
        "hypervisor": "synthetic", "emulated": False, "kernel": "0.0.0-synthetic", "libc": "glibc 0", "os": "Synthetic",
        "aslr": 2, "steal_fraction": 0.0, "load": [0.0, 0.0, 0.0], "python": "3.11.0",
        "packages": {"numpy": "0"}, "mitigations": {},
    }  # fmt: skip


def build(seed: int = 0, *, broken: bool = False, workloads: tuple[str, ...] = WORKLOADS) -> dict[str, object]:
    """A whole result document; `broken` puts one measurement above its roof."""
    rng = np.random.default_rng(seed)
    runs = [case_run(w, t, rng, broken=broken and t == 16) for w in workloads for t in TOKENS]
    cells = results.analyse(runs)
    entries = []
    for cell in cells:
        for label, backend in cell.run.backends.items():
            stats = Stats()
            for sample in backend.samples:
                stats.update(sample.seconds)
            name = f"test_fused_moe[{cell.run.case.id}-{label}]"
            entries.append(
                {
                    "group": cell.run.case.id,
                    "name": name,
                    "fullname": f"harness/benchmarks/test_fused_moe.py::{name}",
                    "params": None,
                    "param": f"{cell.run.case.id}-{label}",
                    "extra_info": results.entry_info(cell, label),
                    "options": {"timer": "perf_counter"},
                    "stats": {**stats.as_dict(), "data": stats.data, "iterations": 1},
                }
            )
    missing = [
        Missing("zentorch", None, None, "unavailable", "zentorch is not installed"),
        Missing("sglang", "gemma-4-26b-a4b/t1/uniform/2T", "gemma-4-26b-a4b", "unsuited", "no gelu_tanh"),
        Missing(None, None, "mixtral-8x7b", "skipped", "does not fit in memory", 5 << 30),
    ]
    block = results.moelab_block(
        cells,
        run={"id": f"synthetic-{seed}", "started": "2000-01-01T00:00:00+00:00", "seconds": 600.0,
             "command": ["nox", "-s", "bench"], "options": {"cache": "cold"}, "seed": seed, "baseline": "torch_loop",
             "backends": ["moelab", "torch_loop", "torch_grouped_mm", "vllm"], "margin": 0.02, "level": 0.95,
             "processes": PROCESSES, "quick": False, "budget_seconds": 900.0},
        source={"commit": "0" * 40, "dirty": False, "changed": [], "time": None},
        library={"build_id": "0" * 64, "version": "0.0-synthetic"},
        image=None, missing=missing, conditions=["synthetic: nothing was measured"], advice=[],
    )  # fmt: skip
    return {
        "machine_info": {"node": "synthetic", "processor": "", "machine": "x86_64", "system": "Linux", "cpu": {},
                         "moelab": machine()},
        "commit_info": {"id": "0" * 40, "time": None, "author_time": None, "dirty": False, "project": "moelab",
                        "branch": "main"},
        "benchmarks": entries, "datetime": "2000-01-01T00:00:00+00:00", "version": "5.3.1",
        "moelab": {**block, "synthetic": True},
    }  # fmt: skip


def with_backends(document: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The same with copies of vllm's entries under other names."""
    for entry in [e for e in document["benchmarks"] if e["extra_info"]["backend"]["name"] == "vllm"]:
        for name in names:
            other = copy.deepcopy(entry)
            other["extra_info"]["backend"].update(name=name, label=name)
            document["benchmarks"].append(other)
    return document


def with_tokens(document: dict[str, Any], numbers: list[int]) -> dict[str, Any]:
    """The same with the entries of one token for every number of tokens."""
    first = [e for e in document["benchmarks"] if e["extra_info"]["case"]["tokens"] == 1]
    document["benchmarks"] = []
    for number in numbers:
        for entry in first:
            other = copy.deepcopy(entry)
            other["extra_info"]["case"].update(tokens=number, id=f"{other['extra_info']['case']['workload']}/t{number}")
            document["benchmarks"].append(other)
    return document


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(build(), indent=1))
