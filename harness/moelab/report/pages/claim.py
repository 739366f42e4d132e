"""The claim that started this work, beside what was measured here and on what."""

from __future__ import annotations

from collections.abc import Sequence

from moelab.report.blocks import Link, Links, Section, Table, Text, Value
from moelab.report.model import OURS
from moelab.report.summary import Group, standings
from moelab.report.text import ratio, ratio_interval

# As written in the description of the pull request; not measured here.
PULL_REQUEST = "https://github.com/vllm-project/vllm/pull/46353"
CLAIMS = (("gpt-oss-20b", 2.1), ("gemma-4-26b-a4b", 2.34))
CLAIMED_ON = "96 Neoverse-V2 cores, end-to-end throughput"
# What vLLM ran on Arm before that pull request.
BEFORE = "torch_loop"


def claim_section(groups: Sequence[Group]) -> Section:
    """One row per claim and machine; a claim that nothing here speaks to says so."""
    section = Section("The published claim beside what was measured here", brief=True)
    section.blocks.append(
        Text(
            "vLLM's pull request #46353 brought a fused MoE kernel to Arm and reports whole-model throughput against "
            f"the loop over experts that ran before ({BEFORE} here). The figures below it are of the layer alone, on "
            "the machines named: a different quantity on different hardware, so neither confirms nor refutes the other."
        )
    )
    rows: list[list[str | Value]] = []
    for workload, claimed in CLAIMS:
        rows.append([workload, "claimed, vLLM's kernel", Value(f"{claimed:g}x"), CLAIMED_ON])
        for who, subject in ((OURS, "measured here, moelab"), ("vllm", "measured here, vLLM's kernel")):
            rows += [[workload, subject, value, place] for value, place in _measured(groups, workload, who)]
    section.blocks.append(Table(f"Speed over {BEFORE}", ("model", "what", "speedup", "on"), rows, frozenset({2})))
    section.blocks.append(Links((Link("vLLM pull request #46353", url=PULL_REQUEST),)))
    return section


def _measured(groups: Sequence[Group], workload: str, who: str) -> list[tuple[Value, str]]:
    found = []
    for group in [group for group in groups if not (group.synthetic or group.emulated)][:4]:
        cells = [cell for cell in group.cells if cell.case.workload == workload]
        if who == OURS:
            row = next((row for row in standings(cells) if row.against == BEFORE and row.cells), None)
            if row is None:
                continue
            value = Value(ratio(row.mean.value), ratio_interval(row.mean.low, row.mean.high))
            number = row.cells
        else:
            own = [cell.measurements[who].comparisons.get(BEFORE) for cell in cells if who in cell.measurements]
            good = [c for c in own if c and c.verdict != "broken"]
            if not good:
                continue
            low, high = min(c.ratio.value for c in good), max(c.ratio.value for c in good)
            value = Value(f"{ratio(low)} to {ratio(high)}")
            number = len(good)
        found.append((value, f"{group.machine.name}, {group.setting.label}, the layer alone, {number} cells"))
    return found
