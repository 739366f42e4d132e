"""The property suite over a backend that breaks properties, or its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
CHEATS = TESTS / "backends_for_tests.py"


def properties_of(tmp_path: Path, backends: list[str], chosen: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit status of a run over some backends of the file above, and {backend: {property: result}}."""
    results = tmp_path / "properties.json"
    names = ",".join(f"{CHEATS}:{name}" for name in backends)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / "properties"), "-k", chosen]
    command += ["--backend", names, "--properties-json", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=TESTS.parent)
    return done.returncode, json.loads(results.read_text())


def test_a_crash_is_a_result_and_not_the_end(tmp_path: Path) -> None:
    status, found = properties_of(tmp_path, ["Crashes", "Honest"], "no_tokens or twice")
    assert status == 1
    assert set(found["Crashes"].values()) == {"crashed"}
    assert found["Honest"] == {"no_tokens": "passed", "same_expert_twice_counts_twice": "passed"}


def test_what_a_backend_lacks_is_named(tmp_path: Path) -> None:
    chosen = "stay_as_they_are or minus_one or any_batch or odd_hidden"
    status, found = properties_of(tmp_path, ["ChangesInputs", "NotThis", "NotHere"], chosen)
    assert status == 1
    assert found["ChangesInputs"]["inputs_stay_as_they_are"] == "failed"
    assert found["NotThis"]["odd_hidden_sizes"] == "skipped"
    assert set(found["NotHere"].values()) == {"skipped"}
