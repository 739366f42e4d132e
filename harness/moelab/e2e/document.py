"""The result file of an end-to-end run (reports/schema/e2e.schema.json)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moelab import advice, machine, provenance, statistics
from moelab.e2e import analysis
from moelab.e2e.engines import ENGINES
from moelab.e2e.plan import Plan
from moelab.e2e.run import Outcome, VariantRun

Json = dict[str, Any]

SCHEMA = 1
MARK = "moelab_e2e"


def is_e2e(path: Path) -> bool:
    """Whether a JSON file is a result of `moelab e2e`, and none of `moelab bench`."""
    try:
        found = json.loads(path.read_text())
    except ValueError:
        return False
    return isinstance(found, dict) and MARK in found


def document(
    plan: Plan, outcome: Outcome, *, command: Sequence[str], started: str, wall_seconds: float, cpus: Sequence[int]
) -> Json:
    """Everything that is known of the run."""
    facts: Any = machine.gather()
    cells = plan.cells()
    entries = analysis.cell_entries(outcome, cells, plan.seed)
    environments = [e["environment"] for e in outcome.engines.values()]
    return {
        MARK: SCHEMA,
        "run": {
            "started": started,
            "command": list(command),
            "wall_seconds": wall_seconds,
            "seed": plan.seed,
            "quick": plan.quick,
            "threads": plan.threads,
            "cpus": list(cpus),
            "processes": plan.processes,
            "level": statistics.LEVEL,
        },
        "machine": facts,
        "source": provenance.source(),
        "library": provenance.library(environments),
        "image": provenance.image(),
        "conditions": outcome.conditions,
        "advice": advice.advice(facts),
        "missing": [asdict(m) for m in outcome.missing],
        "engines": [_engine(name, outcome.engines[name]) for name in ENGINES if name in outcome.engines],
        "models": _models(plan, outcome.runs),
        "variants": [_variant(run) for run in outcome.runs],
        "cells": entries,
        "full_depth": analysis.full_depth(entries, outcome.runs, cells),
    }


def _engine(name: str, facts: Json) -> Json:
    return {
        "name": name,
        "framework": ENGINES[name].framework,
        "version": facts["version"],
        "torch": facts["environment"]["packages"].get("torch"),
        "isa": facts["isa"],
        "batching": facts["batching"],
        "baselines": list(ENGINES[name].baselines),
        "notes": facts["notes"],
    }


def _models(plan: Plan, runs: Sequence[VariantRun]) -> list[Json]:
    found = []
    for name in dict.fromkeys(run.variant.model for run in runs):
        own = [run for run in runs if run.variant.model == name]
        known = own[0].facts
        cut = own[0].variant.path is None
        checkpoint = "checkpoint, its MXFP4 unpacked to BF16" if known["unpacked"] else "checkpoint"
        found.append(
            {
                "name": name,
                "source": f"random BF16 weights from seed {plan.seed}" if cut else checkpoint,
                "architecture": known["architecture"],
                "layers": known["full_layers"],
                **{key: known[key] for key in ("experts", "topk", "hidden", "intermediate")},
                "layers_measured": sorted(run.facts["layers"] for run in own),
                "note": _kinds(own),
            }
        )
    return found


def _kinds(runs: Sequence[VariantRun]) -> str | None:
    kinds = max((run.facts["layer_kinds"] for run in runs), key=len)
    return f"its {len(kinds)} layers have " + ", ".join(kind.replace("_", " ") for kind in kinds) if kinds else None


def _variant(run: VariantRun) -> Json:
    return {
        "name": run.variant.name,
        "model": run.variant.model,
        **{key: run.facts[key] for key in ("layers", "parameters", "bytes")},
        "residency": run.residency,
        "engines": {
            name: {"load_seconds": e.load_seconds, "peak_bytes": e.peak_bytes, "check": e.check}
            for name, e in sorted(run.engines.items())
        },
    }
