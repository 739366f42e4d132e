"""What would make this machine a better instrument, most effective first."""

from __future__ import annotations

from typing import Any


def advice(facts: dict[str, Any]) -> list[str]:
    """Sentences from the facts of `moelab.machine.gather`."""
    cpus, cpu = facts["cpus"], facts["cpu"]
    limit = facts["cgroup"]["cpu_limit"]
    steal = facts["steal_fraction"] or 0.0
    frequency = facts["frequency"]
    rules: list[tuple[bool, str]] = [
        (facts["emulated"], "Instructions are emulated here: run on real hardware; nothing will be timed."),
        (
            limit is not None and limit < cpus["allowed"],
            f"The control group grants {limit} of {cpus['allowed']} CPUs by pausing: --cpuset-cpus is steadier.",
        ),
        (
            facts["load"][0] > 0.5,
            f"Other work is running (load {facts['load'][0]:.1f}): stop it, or wait.",
        ),
        (
            steal > 0.005,
            f"The hypervisor takes {steal:.1%} of the CPU time: use a machine with CPUs of its own.",
        ),
        (cpu["mixed"], "CPUs of different kinds: choose equal ones with taskset."),
        (
            frequency["governor"] not in (None, "performance"),
            f"The frequency governor is {frequency['governor']}: cpupower frequency-set -g performance.",
        ),
        (
            frequency["boost"] is True,
            "Boost is on: the frequency depends on heat and neighbours; off is better to compare runs hours apart.",
        ),
        (
            bool(cpus["smt"]),
            "Two threads share each core (SMT): use one thread per core, as the default thread count does.",
        ),
        (
            facts["memory"]["thp"] == "never",
            "Transparent huge pages are off: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled.",
        ),
        (
            facts["memory"]["swap"] > 0 and facts["memory"]["available"] < 8 << 30,
            "Little memory is free and swap is on: a run that swaps measures the disk.",
        ),
        (
            facts["hypervisor"] is not None and steal <= 0.005,
            "A virtual machine: neighbours share caches and bandwidth, unseen; trust a run's ratios more than times.",
        ),
    ]  # fmt: skip
    return [text for applies, text in rules if applies]
