"""`moelab machine`: what this machine is as an instrument, and what would make it a better one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from moelab import expect, machine
from moelab.advice import advice
from moelab.conditions import Monitor, drift

# Free memory from which a probe of bandwidth, which reads 1 GiB of its own, is nobody's trouble.
ROOM_FOR_READING = 3 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="all facts, as in a result file")
    parser.add_argument("--expect", metavar="KEY=VALUE,…", help="exit status 1 unless the machine keeps this")


def run(arguments: argparse.Namespace) -> int:
    facts: Any = machine.gather()
    try:
        unmet = expect.unmet(expect.parse(arguments.expect), facts) if arguments.expect else []
    except ValueError as error:
        print(f"moelab machine: {error}", file=sys.stderr)
        return 2
    print(json.dumps(facts, indent=1) if arguments.json else describe(facts, watch()))
    for text in unmet:
        print(f"not as expected: {text}", file=sys.stderr)
    return 1 if unmet else 0


def watch(seconds: float = 1.5) -> list[str]:
    """What disturbs the machine now, in words: other programs, the hypervisor, heat; and drift, where kernels are.

    Memory bandwidth is left out where the probe's buffer would take most of the memory, as in a small container.
    """
    probe = _peak()
    available: Any = machine.memory()["available"]
    roomy = available >= ROOM_FOR_READING
    monitor = Monitor(cpus=sorted(os.sched_getaffinity(0)))
    end = time.monotonic() + seconds
    monitor.start()
    rates: list[tuple[float, float | None]] = []
    while time.monotonic() < end:
        if probe is None:
            time.sleep(0.1)
        else:
            rates.append((probe("bf16", seconds=0.02), probe("read", seconds=0.02) if roomy else None))
    found = monitor.stop().words() + drift([bf16 for bf16, _ in rates], [read for _, read in rates])
    if probe is not None and not roomy:
        found.append("memory bandwidth was not watched: its probe needs 1 GiB and would fill the memory")
    return found


def _peak() -> Callable[..., float] | None:
    try:
        import moelab_kernels as mk  # the harness also works without our kernels
    except ImportError:
        return None
    return mk.peak


def describe(facts: dict[str, Any], conditions: Sequence[str] = ()) -> str:
    """Facts as lines, then what disturbs it now, then advice, most effective first."""
    cpu, cpus, memory, frequency = (facts[key] for key in ("cpu", "cpus", "memory", "frequency"))
    group = facts["cgroup"]
    caches = ", ".join(f"L{c['level']} {c['kind'].lower()} {_bytes(c['bytes'])}" for c in facts["caches"]) or "unknown"
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "i8mm", "sve", "sve2", "svebf16")
    topology = f"{cpus['allowed']} allowed on {cpus['cores']} cores, {cpus['sockets']} sockets"
    granted = _bytes(group["memory_limit"]) if group["memory_limit"] else "none"
    where = [facts["hypervisor"] or "bare metal", *filter(None, [group["container"]])]
    rows = [
        ("CPU", f"{cpu['name']} ({cpu['part']})"),
        ("features", ", ".join(f for f in wanted if f in cpu["features"]) or "none of those that matter here"),
        ("CPUs", f"{topology}, {cpus['numa_nodes']} NUMA nodes, SMT {_yes(cpus['smt'])}"),
        ("caches", caches),
        ("memory", f"{_bytes(memory['available'])} of {_bytes(memory['total'])} free, huge pages {memory['thp']}"),
        ("frequency", f"governor {frequency['governor'] or 'unknown'}, boost {_yes(frequency['boost'])}"),
        ("limits", f"CPUs {group['cpu_limit'] or 'none'}, memory {granted}"),
        ("runs in", ", ".join(where)),
        ("stolen time", "unknown" if facts["steal_fraction"] is None else f"{facts['steal_fraction']:.2%} since boot"),
        ("load", " ".join(f"{v:.2f}" for v in facts["load"])),
        ("software", f"{facts['os']}, Linux {facts['kernel']}, Python {facts['python']}"),
        ("emulated", _yes(facts["emulated"])),
    ]
    lines = [f"{name:<12} {value}" for name, value in rows]
    lines += [f"{'now' if i == 0 else '':<12} {text}" for i, text in enumerate(conditions)]
    found = advice(facts)
    lines.append("")
    lines += [f"{i}. {text}" for i, text in enumerate(found, 1)] or ["Nothing stands out: a good instrument."]
    return "\n".join(lines)


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else ("yes" if value else "no")
