"""Makes a result file of whole models with invented numbers: `python synthetic_model_runs.py OUT`.

Nothing in it was measured, and the file says so ("synthetic": true).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import synthetic_result

MODEL = "qwen3-30b-a3b"
FULL, DEPTHS = 48, (1, 2)
# Invented seconds per layer: in the experts, and in everything else; the rest of the model takes FIXED seconds.
EXPERTS = {"eager": 0.160, "grouped_mm": 0.150, "moelab": 0.080}
REST, FIXED = 0.040, 0.020
CELLS = (
    ("prefill/512", "prefill", 1, 512, 1, "prompt tokens", 512),
    ("decode/b8", "decode", 8, 32, 8, "output tokens", 8),
    ("mixed", "mixed", 8, 640, 160, "prompt and output tokens", 800),
)


def interval(value: float, spread: float = 0.02) -> dict[str, float]:
    return {"median": value, "low": value * (1 - spread), "high": value * (1 + spread), "level": 0.95}


def seconds(engine: str, layers: int) -> float:
    return FIXED + layers * (REST + EXPERTS[engine])


def share(engine: str, layers: int) -> float:
    return layers * EXPERTS[engine] / seconds(engine, layers)


def predicted(baseline: str, layers: int) -> float:
    s, r = share(baseline, layers), EXPERTS[baseline] / EXPERTS["moelab"]
    return 1 / (1 - s + s / r)


def _engine(name: str, layers: int, tokens: int, *, first: bool) -> dict[str, Any]:
    time = seconds(name, layers)
    samples = {"process": [0, 0, 1], "round": [0, 1, 0], "position": [0, 1, 2], "seconds": [time] * 3}
    return {
        "samples": {**samples, "first_token": [time] * 3, "per_token": [None] * 3},
        "seconds": interval(time),
        "tokens_per_second": interval(tokens / time),
        "time_to_first_token": interval(time) if first else None,
        "time_per_token": None,
        "experts": {"samples": samples, "share": interval(share(name, layers)),
                    "seconds": interval(layers * EXPERTS[name]), "overhead": 0.01},
    }  # fmt: skip


def _ratio(baseline: str, layers: int) -> dict[str, Any]:
    value = seconds(baseline, layers) / seconds("moelab", layers)
    return {"engine": "moelab", "baseline": baseline, "value": value, "low": value * 0.97, "high": value * 1.03,
            "level": 0.95}  # fmt: skip


def build(model: str = MODEL) -> dict[str, Any]:
    """A whole document of one model."""
    cells, full = [], []
    for name, phase, batch, prompt, output, unit, tokens in CELLS:
        for layers in DEPTHS:
            ratios = [
                {
                    **_ratio(baseline, layers), "pairs": 3, "processes": 2, "minimum_detectable": 0.05,
                    "amdahl": {"baseline_share": share(baseline, layers),
                               "layer_ratio": EXPERTS[baseline] / EXPERTS["moelab"],
                               "predicted": interval(predicted(baseline, layers)), "rest_ratio": 1.0,
                               "explained": True, "reason": "the intervals overlap"},
                }
                for baseline in ("eager", "grouped_mm")
            ]  # fmt: skip
            engines = {e: _engine(e, layers, tokens, first=phase == "prefill") for e in EXPERTS}
            cells.append({"variant": f"{model}/{layers}L", "model": model, "layers": layers, "id": name, "phase": phase,
                          "batch": batch, "prompt_tokens": prompt, "output_tokens": output, "unit": unit, "note": None,
                          "engines": engines, "ratios": ratios})  # fmt: skip
        fitted = {
            e: {"fixed": interval(FIXED), "per_layer": interval(REST + EXPERTS[e]),
                "seconds": interval(seconds(e, FULL)),
                "tokens_per_second": interval(tokens / seconds(e, FULL)), "experts_share": share(e, FULL)}
            for e in EXPERTS
        }  # fmt: skip
        full.append({"model": model, "id": name, "layers": FULL, "extrapolated": True, "from_layers": list(DEPTHS),
                     "engines": fitted, "ratios": [_ratio(b, FULL) for b in ("eager", "grouped_mm")],
                     "note": None})  # fmt: skip
    check = {"against": "eager", "prompts": 4, "positions": 96, "max_error": 0.01, "bound": 0.05, "agreement": 1.0,
             "passed": True, "failure": None}  # fmt: skip
    return {
        "moelab_e2e": 1,
        "synthetic": True,
        "run": {"started": "2000-01-01T00:00:00+00:00", "command": ["nox", "-s", "e2e"], "wall_seconds": 1.0, "seed": 0,
                "quick": False, "threads": 2, "cpus": [0, 1], "processes": 2, "level": 0.95},
        "machine": synthetic_result.machine(),
        "source": {"commit": "0" * 40, "dirty": False, "changed": [], "time": None},
        "library": {"build_id": "0" * 64, "version": "0.0-synthetic"},
        "image": None, "conditions": [], "advice": [],
        "missing": [{"engine": "vllm", "variant": None, "cell": None, "kind": "unavailable",
                     "reason": "vllm is not installed"}],
        "engines": [{"name": e, "framework": "transformers", "version": "0.0-synthetic", "torch": "0.0",
                     "isa": "avx512_bf16" if e == "moelab" else None, "batching": "static",
                     "baselines": ["eager", "grouped_mm"] if e == "moelab" else [], "notes": {"release": True}}
                    for e in EXPERTS],
        "models": [{"name": model, "source": "random BF16 weights from seed 0", "architecture": "SyntheticMoe",
                    "layers": FULL, "experts": 128, "topk": 8, "hidden": 2048, "intermediate": 768,
                    "layers_measured": list(DEPTHS), "note": None}],
        "variants": [{"name": f"{model}/{layers}L", "model": model, "layers": layers, "parameters": 10**9,
                      "bytes": 2 * 10**9, "residency": "together",
                      "engines": {e: {"load_seconds": 3.0, "peak_bytes": 3 * 10**9, "check": check} for e in EXPERTS}}
                     for layers in DEPTHS],
        "cells": cells,
        "full_depth": full,
    }  # fmt: skip


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(build(), indent=1))
