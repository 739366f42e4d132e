"""Result files: pytest-benchmark JSON in which every number can be traced (reports/schema/result-1.json)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moelab import roofline, statistics
from moelab.measurement import BackendRun, CaseRun, Missing, Sample
from moelab.roofline import Roof
from moelab.statistics import Pairs, Ratio, Verdict

SCHEMA = 1

Json = dict[str, object]


@dataclass(frozen=True)
class Cell:
    """One case with its statistics, by label."""

    run: CaseRun
    ratios: dict[str, Ratio]
    control: Ratio | None
    control_of: str | None
    roofs: dict[str, Roof]
    verdicts: dict[str, Verdict]


def analyse(runs: Sequence[CaseRun], *, level: float = statistics.LEVEL, seed: int = 0) -> list[Cell]:
    """Statistics of every case.

    The cases of a run share what they know of the scatter, and verdicts are corrected for all of them together.
    """
    good = [{label: b for label, b in run.backends.items() if b.failure is None and b.samples} for run in runs]
    originals = [_controlled(backends) for backends in good]
    sides: dict[str, dict[int, tuple[BackendRun, BackendRun]]] = {}
    for i, (run, backends) in enumerate(zip(runs, good, strict=True)):
        baseline = backends.get(run.baseline) if run.baseline is not None else None
        for label, backend in backends.items():
            first = originals[i] if backend.role == "control" else baseline
            if first is not None and backend.role != "baseline":
                sides.setdefault(label, {})[i] = (first, backend)
    ratios: list[dict[str, Ratio]] = [{} for _ in runs]
    for label, cells in sides.items():
        paired = statistics.paired_ratios([_paired(*both) for both in cells.values()], level=level, seed=seed)
        for i, ratio in zip(cells, paired, strict=True):
            ratios[i][label] = ratio
    made = [_cell(*parts) for parts in zip(runs, good, originals, ratios, strict=True)]
    keys = [(i, label) for i, cell in enumerate(made) for label, v in cell.verdicts.items() if v.alone != "broken"]
    judged = statistics.judge_table([made[i].verdicts[label] for i, label in keys], level=level)
    for key, verdict in zip(keys, judged, strict=True):
        made[key[0]].verdicts[key[1]] = verdict
    return made


def _controlled(backends: Mapping[str, BackendRun]) -> BackendRun | None:
    """The backend that the A/A control runs a second time."""
    names = [b.name for b in backends.values() if b.role == "control"]
    return next((b for b in backends.values() if b.role != "control" and b.name in names), None)


def _cell(
    run: CaseRun, good: Mapping[str, BackendRun], original: BackendRun | None, paired: Mapping[str, Ratio]
) -> Cell:
    roofs = {label: roofline.roof(backend, run.setting) for label, backend in good.items()}
    control = next((ratio for label, ratio in paired.items() if good[label].role == "control"), None)
    ratios = {label: ratio for label, ratio in paired.items() if good[label].role == "candidate"}
    verdicts = {}
    for label, ratio in ratios.items():
        baseline = roofs[str(run.baseline)]
        if roofs[label].broken or baseline.broken:
            reason = roofs[label].reason or f"the baseline is broken: {baseline.reason}"
            verdicts[label] = Verdict("broken", "broken", None, None, statistics.MARGIN, reason)
        else:
            verdicts[label] = statistics.judge(ratio, control)
    control_of = None if control is None or original is None else original.label
    return Cell(run, ratios, control, control_of, roofs, verdicts)


def _paired(first: BackendRun, second: BackendRun) -> Pairs:
    """Both over the rounds that both have."""
    left = {(s.process, s.round): s.seconds for s in first.samples}
    right = {(s.process, s.round): s.seconds for s in second.samples}
    keys = [key for key in left if key in right]
    return Pairs([left[key] for key in keys], [right[key] for key in keys], [key[0] for key in keys])


def entry_info(cell: Cell, label: str, *, level: float = statistics.LEVEL, seed: int = 0) -> Json:
    """extra_info of one entry."""
    backend, run = cell.run.backends[label], cell.run
    ratio, verdict = cell.ratios.get(label), cell.verdicts.get(label)
    seconds = [s.seconds for s in backend.samples]
    time = statistics.interval(seconds, [s.process for s in backend.samples], level=level, seed=seed)
    return {
        "schema": SCHEMA,
        "case": _case_json(run),
        "setting": {k: v for k, v in asdict(run.setting).items() if k != "last_level_bytes"},
        "backend": {
            "name": backend.name,
            "label": backend.label,
            "role": backend.role,
            "version": backend.version,
            "isa": backend.isa,
            "rounding": backend.rounding,
            "packing_seconds": backend.packing_seconds,
            "packing_extra_bytes": backend.packing_extra_bytes,
            "first_call_seconds": backend.first_call_seconds,
            "packed_bytes": backend.packed_bytes,
            "uses_amx": backend.uses_amx,
            "environment": backend.environment,
            "notes": backend.facts,
        },
        "correctness": {
            "passed": backend.failure is None,
            "before": asdict(backend.before),
            "after": asdict(backend.after),
            "samples_checked": backend.samples_checked,
            "failure": backend.failure,
        },
        "samples": _samples_json(backend.samples),
        "time": asdict(time),
        "phases": _phases_json(backend.samples),
        "ratio": None if ratio is None else _ratio_json(ratio, str(run.baseline), verdict),
        "verdict": None if verdict is None else _verdict_json(verdict),
        "roofline": _roof_json(cell.roofs[label]),
    }


def _case_json(run: CaseRun) -> Json:
    from moelab.workloads import SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT  # here: constants of the layer, not of this module

    layer = run.case.layer
    reduced = f"reduced from {layer.name.split('/')[0]}" if "/" in layer.name else None
    return {
        "id": run.case.id,
        "workload": layer.name,
        "experts": layer.num_experts,
        "topk": layer.topk,
        "hidden": layer.hidden,
        "intermediate": layer.intermediate,
        "activation": layer.activation,
        "gate_up": layer.gate_up,
        "bias": layer.bias,
        "alpha": SWIGLUOAI_ALPHA,
        "limit": SWIGLUOAI_LIMIT,
        "tokens": run.case.tokens,
        "routing": run.case.routing,
        "seed": run.case.seed,
        "note": reduced,
    }


def _samples_json(samples: Sequence[Sample]) -> Json:
    names = ("process", "round", "position", "input", "calls", "bytes", "flops", "probe_read", "probe_bf16")
    return {name: [getattr(sample, name) for sample in samples] for name in names}


def _phases_json(samples: Sequence[Sample]) -> Json | None:
    """Median seconds of each phase over the samples; None where none was recorded."""
    profiles = [sample.phases for sample in samples if sample.phases is not None]
    if not profiles:
        return None
    return {name: float(np.median([profile[name] for profile in profiles])) for name in profiles[0]}


def _ratio_json(ratio: Ratio, baseline: str, verdict: Verdict | None) -> Json:
    return {
        "baseline": baseline,
        "value": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "level": ratio.level,
        "pairs": ratio.pairs,
        "processes": ratio.processes,
        "minimum_detectable": ratio.minimum_detectable,
        "p": None if verdict is None else verdict.p,
    }


def _verdict_json(verdict: Verdict) -> Json:
    return {
        "alone": verdict.alone,
        "table": verdict.table,
        "p_adjusted": verdict.p_adjusted,
        "margin": verdict.margin,
        "reason": verdict.reason,
    }


def _roof_json(roof: Roof) -> Json:
    values = asdict(roof)
    values["active_experts"] = values.pop("experts")
    return values


def cell_json(cell: Cell) -> Json:
    """What concerns a case as a whole: its A/A control and what disturbed it."""
    run = cell.run
    pairs = [(s.process, s.round) for b in run.backends.values() for s in b.samples]
    control = None
    if cell.control is not None:
        control = {
            "of": cell.control_of,
            "separate_copy": run.separate_copy,
            "value": cell.control.value,
            "low": cell.control.low,
            "high": cell.control.high,
            "level": cell.control.level,
            "inside_margin": statistics.inside_margin(cell.control),
        }
    return {
        "case": run.case.id,
        "baseline": run.baseline,
        "rounds": len(set(pairs)),
        "processes": len({process for process, _ in pairs}),
        "control": control,
        "order": [label for label, b in run.backends.items() if b.samples],
        "conditions": run.conditions,
    }


def geomeans(cells: Iterable[Cell]) -> list[Json]:
    """Geometric mean of the ratios of each backend over its cells, broken ones left out, losses counted in."""
    rows: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for cell in cells:
        for label, ratio in cell.ratios.items():
            verdict = cell.verdicts[label].table
            if verdict != "broken":
                rows.setdefault((label, str(cell.run.baseline)), []).append((ratio.value, verdict))
    return [
        {
            "backend": label,
            "baseline": baseline,
            "value": statistics.geometric_mean([value for value, _ in row]),
            "cells": len(row),
            **{kind: sum(v == kind for _, v in row) for kind in ("faster", "slower", "same", "undecided")},
        }
        for (label, baseline), row in rows.items()
    ]


def moelab_block(
    cells: Sequence[Cell],
    *,
    run: Mapping[str, object],
    source: Mapping[str, object],
    library: Mapping[str, object],
    image: str | None,
    missing: Iterable[Missing],
    conditions: Sequence[str],
    advice: Sequence[str],
) -> Json:
    """The top-level key `moelab` of a result file."""
    return {
        "schema": SCHEMA,
        "run": dict(run),
        "source": dict(source),
        "library": dict(library),
        "image": image,
        "cells": [cell_json(cell) for cell in cells],
        "missing": [asdict(m) for m in missing],
        "broken": [
            {"case": cell.run.case.id, "backend": label, "reason": roof.reason}
            for cell in cells
            for label, roof in cell.roofs.items()
            if roof.broken
        ],
        "geomeans": geomeans(cells),
        "conditions": list(conditions),
        "advice": list(advice),
    }


def load(path: Path) -> dict[str, Any]:
    """Reads a result file. Raises ValueError where it is none of ours or of another schema version."""
    try:
        document = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    version = document.get("moelab", {}).get("schema") if isinstance(document, dict) else None
    if version != SCHEMA:
        raise ValueError(f"{path} is not a moelab result of schema {SCHEMA} (found {version!r})")
    return dict(document)
