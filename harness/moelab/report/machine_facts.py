"""The machine section of a result file as a Machine with rows for people."""

from __future__ import annotations

import math

from moelab.report.model import Machine
from moelab.report.reading import Node
from moelab.report.text import binary_size


def read_machine(info: Node) -> Machine:
    """A Machine from `machine_info`; files older than the moelab section fall back to pytest-benchmark's own facts."""
    facts = info["moelab"]
    cpu = facts["cpu"]
    name = cpu["name"].text() or info["cpu"]["brand_raw"].text() or cpu["part"].text() or "unknown CPU"
    part = cpu["part"].text() or "unknown part"
    architecture = facts["architecture"].text() or info["machine"].text() or "unknown"
    cpus = facts["cpus"]["allowed"].integer() or info["cpu"]["count"].integer()
    identity = facts["machine_id"].text() or info["node"].text()
    return Machine(
        key=f"{identity}|{part}|{name}|{cpus}",
        name=name,
        part=part,
        architecture=architecture,
        cpus=cpus,
        emulated=facts["emulated"].flag() is True,
        facts=tuple((label, value) for label, value in _rows(facts, info, part, architecture, cpus) if value),
        features=cpu["features"].texts(),
    )


def _rows(facts: Node, info: Node, part: str, architecture: str, cpus: int) -> list[tuple[str, str]]:
    cpu, memory, frequency, cgroup = facts["cpu"], facts["memory"], facts["frequency"], facts["cgroup"]
    counts = facts["cpus"]
    limit = cgroup["cpu_limit"].number()
    return [
        ("CPU part", part + (" (CPUs of different parts)" if cpu["mixed"].flag() else "")),
        ("Architecture", architecture),
        ("CPUs usable", str(cpus or "")),
        ("Cores, sockets, NUMA nodes", _joined(counts, ("cores", "sockets", "numa_nodes"))),
        ("SMT", _on_off(counts["smt"].flag())),
        ("Caches", "; ".join(_cache(cache) for cache in facts["caches"].items())),
        ("Memory", _bytes(memory["total"])),
        ("Memory limit", _bytes(memory["limit"]) or _bytes(cgroup["memory_limit"])),
        ("Transparent huge pages", memory["thp"].text()),
        ("Frequency governor", frequency["governor"].text()),
        ("Boost", _on_off(frequency["boost"].flag())),
        ("CPU limit of the cgroup", f"{limit:g} CPUs" if math.isfinite(limit) else ""),
        ("Container", cgroup["container"].text()),
        ("Hypervisor", facts["hypervisor"].text()),
        ("Emulated", "yes: nothing timed here is a speed" if facts["emulated"].flag() else ""),
        ("Steal time", _percent(facts["steal_fraction"])),
        ("Kernel", facts["kernel"].text() or info["release"].text()),
        ("System", facts["os"].text() or info["system"].text()),
        ("C library", facts["libc"].text()),
        ("Python", facts["python"].text() or info["python_version"].text()),
        ("Packages", ", ".join(f"{name} {node.text()}" for name, node in facts["packages"].pairs() if node.text())),
    ]


def _joined(node: Node, keys: tuple[str, ...]) -> str:
    values = [node[key].integer() for key in keys]
    return ", ".join(str(value) for value in values) if any(values) else ""


def _on_off(flag: bool | None) -> str:
    return "" if flag is None else "on" if flag else "off"


def _bytes(node: Node) -> str:
    size = node.positive()
    return binary_size(size) if math.isfinite(size) else ""


def _percent(node: Node) -> str:
    fraction = node.number()
    return f"{fraction * 100:.1f} %" if math.isfinite(fraction) else ""


def _cache(cache: Node) -> str:
    shared = cache["shared_by"].integer()
    by = f" shared by {shared}" if shared > 1 else ""
    return f"L{cache['level'].integer()} {cache['kind'].text()} {_bytes(cache['bytes'])}{by}"
