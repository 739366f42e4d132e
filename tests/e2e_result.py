"""A small end-to-end result with known numbers, for tests of what reads one. It never leaves them."""

from __future__ import annotations

from typing import Any

from synthetic_result import build as bench_result


def build() -> dict[str, Any]:
    bench = bench_result(workloads=("qwen3-30b-a3b",))
    return {
        "moelab_e2e": 1,
        "run": {
            "started": "2026-01-01T00:00:00+00:00",
            "command": ["nox", "-s", "e2e", "--", "--quick"],
            "wall_seconds": 100.0,
            "seed": 0,
            "quick": True,
            "threads": 2,
            "cpus": [0, 1],
            "processes": 2,
            "level": 0.95,
        },
        "machine": bench["machine_info"]["moelab"],
        "source": bench["moelab"]["source"],
        "library": bench["moelab"]["library"],
        "image": None,
        "conditions": [],
        "advice": [],
        "missing": [],
        "engines": [_engine("eager", []), _engine("moelab", ["eager"])],
        "models": [
            {
                "name": "qwen3-30b-a3b",
                "source": "random BF16 weights from seed 0",
                "architecture": "Qwen3MoeForCausalLM",
                "layers": 48,
                "experts": 128,
                "topk": 8,
                "hidden": 2048,
                "intermediate": 768,
                "layers_measured": [2, 4],
                "note": None,
            }
        ],
        "variants": [_variant(2), _variant(4)],
        "cells": [_cell(2, 1.2, explained=False), _cell(4, 1.5, explained=True)],
        "full_depth": [
            {
                "model": "qwen3-30b-a3b",
                "id": "decode/b1",
                "layers": 48,
                "extrapolated": True,
                "from_layers": [2, 4],
                "unit": "output tokens",
                "engines": {name: _deep(seconds) for name, seconds in (("eager", 2.25), ("moelab", 1.0))},
                "ratios": [
                    {"engine": "moelab", "baseline": "eager", "value": 2.25, "low": 2.1, "high": 2.4, "level": 0.95}
                ],
                "note": None,
            }
        ],
    }


def _engine(name: str, baselines: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "framework": "transformers",
        "version": "5.24.0",
        "torch": "2.13.0",
        "isa": None,
        "batching": "static",
        "baselines": baselines,
        "notes": {},
    }


def _interval(middle: float, half: float = 0.05) -> dict[str, float]:
    return {"median": middle, "low": middle - half, "high": middle + half, "level": 0.95}


def _deep(seconds: float) -> dict[str, Any]:
    times = {"fixed": _interval(0.1), "per_layer": _interval((seconds - 0.1) / 48), "seconds": _interval(seconds)}
    return {**times, "tokens_per_second": _interval(1 / seconds), "experts_share": 0.8}


def _variant(layers: int) -> dict[str, Any]:
    check = {
        "against": "eager",
        "prompts": 3,
        "positions": 78,
        "max_error": 0.01,
        "bound": 0.05,
        "agreement": 1.0,
        "passed": True,
        "failure": None,
    }
    one = {"load_seconds": 1.0, "peak_bytes": 1 << 30, "check": check}
    return {
        "name": f"qwen3-30b-a3b/{layers}L",
        "model": "qwen3-30b-a3b",
        "layers": layers,
        "parameters": 1 << 30,
        "bytes": 1 << 31,
        "residency": "together",
        "engines": {"eager": one, "moelab": one},
    }


def _cell(layers: int, ratio: float, *, explained: bool) -> dict[str, Any]:
    amdahl = {
        "baseline_share": 0.8,
        "layer_ratio": 2.0,
        "predicted": _interval(1.5),
        "rest_ratio": 1.0,
        "explained": explained,
        "reason": "because",
    }
    measured = {
        "value": ratio,
        "low": ratio - 0.05,
        "high": ratio + 0.05,
        "level": 0.95,
        "pairs": 2,
        "processes": 2,
        "minimum_detectable": 0.1,
    }
    return {
        "variant": f"qwen3-30b-a3b/{layers}L",
        "model": "qwen3-30b-a3b",
        "layers": layers,
        "id": "decode/b1",
        "phase": "decode",
        "batch": 1,
        "prompt_tokens": 32,
        "output_tokens": 6,
        "unit": "output tokens",
        "note": None,
        "engines": {"eager": _timed(0.1), "moelab": _timed(0.1 / ratio)},
        "ratios": [{"engine": "moelab", "baseline": "eager", **measured, "amdahl": amdahl}],
    }


def _timed(seconds: float) -> dict[str, Any]:
    places: dict[str, list[Any]] = {"process": [0, 1], "round": [0, 0], "position": [0, 1]}
    return {
        "samples": {**places, "seconds": [seconds] * 2, "first_token": [None] * 2, "per_token": [seconds] * 2},
        "seconds": _interval(seconds, 0.001),
        "tokens_per_second": _interval(1 / seconds, 0.1),
        "time_to_first_token": None,
        "time_per_token": _interval(seconds, 0.001),
        "experts": {
            "samples": {**places, "seconds": [seconds] * 2, "experts_seconds": [seconds / 2] * 2},
            "share": _interval(0.5),
            "seconds": _interval(seconds / 2, 0.001),
            "overhead": 0.0,
        },
    }
