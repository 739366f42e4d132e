"""The claim that started this work, beside what was measured here and on what."""

from __future__ import annotations

from collections.abc import Sequence

from moelab.report.blocks import Link, Links, Section, Table, Text, Value
from moelab.report.model import OURS
from moelab.report.model_runs import ModelRuns
from moelab.report.pages.runs_tables import ratio_value
from moelab.report.summary import Group, standings
from moelab.report.text import count, ratio, ratio_interval

# As written in the description of the pull request; not measured here.
PULL_REQUEST = "https://github.com/vllm-project/vllm/pull/46353"
CLAIMS = (("gpt-oss-20b", 2.1), ("gemma-4-26b-a4b", 2.34))
CLAIMED_ON = "96 Neoverse-V2 cores"
# What vLLM ran on Arm before that pull request, as a backend of the layer and as an engine of whole models.
BEFORE, BEFORE_IN_MODELS = "torch_loop", "eager"
_MOST_GROUPS = 4

Row = list[str | Value]


def claim_section(groups: Sequence[Group], runs: Sequence[ModelRuns]) -> Section:
    """One row per claim, machine and kind of measurement; a claim that nothing here speaks to stands alone."""
    section = Section("The published claim beside what was measured here", brief=True)
    section.blocks.append(
        Text(
            "vLLM's pull request #46353 brought a fused MoE kernel to Arm and reports whole-model throughput against "
            f"the loop over experts that ran before. Here the loop is {BEFORE} for the layer alone and transformers' "
            f"{BEFORE_IN_MODELS} experts for whole models. Other hardware, and for the layer another quantity: what "
            "stands below a claim neither confirms nor refutes it."
        )
    )
    rows: list[Row] = []
    for workload, claimed in CLAIMS:
        rows.append([workload, "claimed, vLLM's kernel", "whole model", Value(f"{claimed:g}x"), CLAIMED_ON])
        for who, subject in ((OURS, "measured here, moelab"), ("vllm", "measured here, vLLM's kernel")):
            rows += [[workload, subject, what, value, place] for what, value, place in _layer(groups, workload, who)]
        rows += _whole_models(runs, workload)
    columns = ("model", "what", "of", "speedup over the loop", "on")
    section.blocks.append(Table("Speed over the loop over experts", columns, rows, frozenset({3})))
    section.blocks.append(Links((Link("vLLM pull request #46353", url=PULL_REQUEST),)))
    return section


def _layer(groups: Sequence[Group], workload: str, who: str) -> list[tuple[str, Value, str]]:
    found = []
    for group in [group for group in groups if not (group.synthetic or group.emulated)][:_MOST_GROUPS]:
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
        what = f"the layer alone, {count(number, 'cell')}"
        found.append((what, value, f"{group.machine.name}, {group.setting.label}"))
    return found


def _whole_models(runs: Sequence[ModelRuns], workload: str) -> list[Row]:
    """The mixed run, which is shaped like the claim's: at the most layers that ran, and at full depth."""
    rows: list[Row] = []
    for run in [run for run in runs if not (run.result.synthetic or run.result.emulated)][:_MOST_GROUPS]:
        cells = [cell for cell in run.cells if cell.model == workload and cell.id == "mixed"]
        ran = [cell for cell in cells if not cell.extrapolated]
        for cell in [*ran[-1:], *(cell for cell in cells if cell.extrapolated)]:
            for found in cell.ratios:
                if found.baseline == BEFORE_IN_MODELS:
                    what = f"{'extrapolated' if cell.extrapolated else 'measured here'}, {found.engine}"
                    place = f"{run.machine.name}, {count(run.threads, 'thread')}"
                    rows.append(
                        [workload, what, f"whole model, {cell.depth}, mixed run", ratio_value(cell, found), place]
                    )
    return rows
