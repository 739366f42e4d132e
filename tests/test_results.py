"""Result files: schema, agreement with pytest-benchmark's own loader, and what is left out of summaries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import synthetic_result
from moelab import results

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ROOT / "reports/schema/result-1.json").read_text())


pytestmark = pytest.mark.usefixtures("fewer_resamples")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    built = synthetic_result.build(workloads=("qwen3-30b-a3b",))
    return dict(json.loads(json.dumps(built)))


def test_follows_the_schema(document: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize("damage", ["samples", "correctness", "roofline"])
def test_schema_refuses_an_entry_without(document: dict[str, Any], damage: str) -> None:
    damaged = json.loads(json.dumps(document))
    del damaged["benchmarks"][0]["extra_info"][damage]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(damaged, SCHEMA)


def test_arrays_of_samples_run_parallel_to_the_data(document: dict[str, Any]) -> None:
    for entry in document["benchmarks"]:
        count = len(entry["stats"]["data"])
        assert {len(values) for values in entry["extra_info"]["samples"].values()} == {count}


def test_known_speeds_come_out(document: dict[str, Any]) -> None:
    for entry in document["benchmarks"]:
        info = entry["extra_info"]
        if info["backend"]["role"] == "candidate":
            truth = synthetic_result.SPEEDS[info["backend"]["name"]][
                synthetic_result.TOKENS.index(info["case"]["tokens"])
            ]
            assert info["ratio"]["value"] == pytest.approx(truth, rel=0.02)


def test_a_result_above_its_roof_is_marked_and_left_out() -> None:
    built: Any = synthetic_result.build(broken=True, workloads=("qwen3-30b-a3b",))
    jsonschema.validate(json.loads(json.dumps(built)), SCHEMA)
    assert [(b["case"], b["backend"]) for b in built["moelab"]["broken"]] == [("qwen3-30b-a3b/t16/uniform/2T", "vllm")]
    means = {m["backend"]: m for m in built["moelab"]["geomeans"]}
    assert means["vllm"]["cells"] == len(synthetic_result.TOKENS) - 1
    assert means["moelab"]["cells"] == len(synthetic_result.TOKENS)
    broken = next(e for e in built["benchmarks"] if e["extra_info"]["roofline"]["broken"])
    assert broken["extra_info"]["verdict"]["table"] == "broken"


def test_load_refuses_other_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no json")
    with pytest.raises(ValueError, match="not JSON"):
        results.load(tmp_path / "text")
    (tmp_path / "other").write_text('{"benchmarks": []}')
    with pytest.raises(ValueError, match="schema 1"):
        results.load(tmp_path / "other")
