"""The README's results come from committed result files, and only from real ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import e2e_result
import synthetic_result

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "ci" / "readme_results.py"
README = "# x\n\n<!-- results:begin -->\nstale 9.99x\n<!-- results:end -->\n\nafter\n"


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--root", str(root), *options], check=False, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """A document that says it was measured, as if it were; it never leaves the test."""
    document = dict(json.loads(json.dumps(synthetic_result.build(workloads=("qwen3-30b-a3b",)))))
    document["moelab"]["synthetic"] = False
    return document


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "reports" / "evidence").mkdir(parents=True)
    return tmp_path


def put(repository: Path, document: dict[str, Any], name: str = "run.json") -> None:
    (repository / "reports" / "evidence" / name).write_text(json.dumps(document))


def test_this_repository_is_current() -> None:
    done = run(ROOT, "--check")
    assert done.returncode == 0, done.stderr


def test_without_evidence_there_is_no_number(repository: Path) -> None:
    assert run(repository, "--check").returncode == 1
    assert run(repository).returncode == 0
    text = (repository / "README.md").read_text()
    assert "No result file is committed yet" in text
    assert not re.search(r"\d", text.split("results:begin")[1].split("results:end")[0])
    assert text.endswith("\nafter\n")
    assert run(repository, "--check").returncode == 0


def test_numbers_are_those_of_the_evidence(repository: Path, measured: dict[str, Any]) -> None:
    put(repository, measured)
    assert run(repository).returncode == 0
    text = (repository / "README.md").read_text()
    assert "9.99x" not in text
    for entry in measured["benchmarks"]:
        if entry["extra_info"]["backend"]["label"] == "moelab":
            assert f" {entry['extra_info']['ratio']['value']:.2f}x" in text
    (mean,) = [row for row in measured["moelab"]["geomeans"] if row["backend"] == "moelab"]
    assert f"{mean['value']:.2f}x" in text
    assert "](reports/overview.svg)" in text
    assert "run.json" in (repository / "reports" / "evidence" / "README.md").read_text()
    assert run(repository, "--check").returncode == 0


@pytest.mark.parametrize("name", ["README.md", "reports/evidence/README.md", "reports/overview.svg"])
def test_a_number_changed_by_hand_is_noticed(repository: Path, measured: dict[str, Any], name: str) -> None:
    put(repository, measured)
    run(repository)
    path = repository / name
    text = path.read_text()
    changed = re.sub(r"(?<!\d)[12]\.\d\d(?!\d)", "7.77", text, count=1)
    assert changed != text
    path.write_text(changed)
    done = run(repository, "--check")
    assert done.returncode == 1
    assert name in done.stderr


def test_changed_evidence_is_noticed(repository: Path, measured: dict[str, Any]) -> None:
    put(repository, measured)
    run(repository)
    put(repository, {**measured, "datetime": "2002-01-01T00:00:00"})
    assert run(repository, "--check").returncode == 1


@pytest.mark.parametrize("kind", ["synthetic", "emulated", "damaged"])
def test_what_is_no_evidence_is_refused(repository: Path, measured: dict[str, Any], kind: str) -> None:
    document = json.loads(json.dumps(measured))
    put(repository, document, "good.json")
    if kind == "synthetic":
        document["moelab"]["synthetic"] = True
    elif kind == "emulated":
        document["machine_info"]["moelab"]["emulated"] = True
    put(repository, document if kind != "damaged" else {"benchmarks": []}, "bad.json")
    done = run(repository)
    assert done.returncode == 1
    assert "bad.json" in done.stderr
    assert (repository / "README.md").read_text() == README


def test_a_readme_without_the_marks_is_an_error(repository: Path) -> None:
    (repository / "README.md").write_text("# x\n")
    done = run(repository)
    assert done.returncode == 1
    assert "results:begin" in done.stderr


def test_end_to_end_results_have_a_block_of_their_own(repository: Path, measured: dict[str, Any]) -> None:
    put(repository, measured)
    (repository / "README.md").write_text(f"{README}\n<!-- e2e:begin -->\nstale\n<!-- e2e:end -->\n")
    assert run(repository).returncode == 0
    assert "No end-to-end result is committed yet" in (repository / "README.md").read_text()
    put(repository, e2e_result.build(), "e2e-machine.json")
    assert run(repository, "--check").returncode == 1
    assert run(repository).returncode == 0
    text = (repository / "README.md").read_text()
    assert "| qwen3-30b-a3b/4L | 1.50x (1.45–1.55) |" in text
    assert "48 layers (extrapolated) | 2.25x (2.10–2.40) |" in text
    assert "explain 1 of 2 measured ratios" in text
    assert "e2e-machine.json" in (repository / "reports" / "evidence" / "README.md").read_text()
    assert run(repository, "--check").returncode == 0


def test_end_to_end_results_that_are_made_up_are_refused(repository: Path, measured: dict[str, Any]) -> None:
    put(repository, measured)
    (repository / "README.md").write_text(f"{README}\n<!-- e2e:begin -->\n<!-- e2e:end -->\n")
    put(repository, e2e_result.build() | {"synthetic": True}, "e2e-machine.json")
    refused = run(repository)
    assert refused.returncode == 1
    assert "synthetic" in refused.stderr
