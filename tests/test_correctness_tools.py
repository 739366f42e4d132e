"""The tools around the kernels' tests say what they should."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "ci" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_mutant_fits_the_sources() -> None:
    done = run("mutants.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mutants_cover_driver_and_instruction_sets() -> None:
    mutants = tomllib.loads((ROOT / "kernels" / "tests" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    names = [mutant["name"] for mutant in mutants]
    assert len(names) == len(set(names)) >= 40
    assert {mutant["isa"] for mutant in mutants} >= {"scalar", "avx2", "avx512", "avx512_bf16", "neon", "neon_bf16"}
    assert all(mutant["old"] != mutant["new"] for mutant in mutants)


def test_the_table_counts_passes_and_names_failures(tmp_path: Path) -> None:
    results = [
        {"suite": "sizes", "name": "hidden", "isa": "avx2", "result": "ok"},
        {"suite": "sizes", "name": "random", "isa": "avx2", "result": "FAIL"},
        {"suite": "ids", "name": "minus_one", "isa": "avx2", "result": "ok"},
        {"suite": "ids", "name": "minus_one", "isa": "scalar", "result": "skip"},
    ]
    cpp, backends, readme = tmp_path / "cpp.json", tmp_path / "backends.json", tmp_path / "README.md"
    cpp.write_text(json.dumps(results))
    backends.write_text(json.dumps({"one": {"no_tokens": "failed"}, "two": {"no_tokens": "passed"}}))
    readme.write_text("before\n<!-- properties:begin -->\nold\n<!-- properties:end -->\nafter\n")
    done = run("property_table.py", "--cpp", f"native={cpp}", "--backends", str(backends), "--into", str(readme))
    assert done.returncode == 0, done.stderr
    text = readme.read_text()
    assert "**1 of 2 fail**" in text
    assert "| no tokens | **no** | yes |" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_a_suite_without_a_sentence_is_an_error(tmp_path: Path) -> None:
    cpp = tmp_path / "cpp.json"
    cpp.write_text(json.dumps([{"suite": "new_suite", "name": "a", "isa": "avx2", "result": "ok"}]))
    done = run("property_table.py", "--cpp", f"native={cpp}")
    assert done.returncode != 0
    assert "new_suite" in done.stderr


def test_every_suite_has_a_sentence() -> None:
    sys.path.insert(0, str(ROOT / "ci"))
    try:
        from property_table import SUITES
    finally:
        sys.path.pop(0)
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "kernels" / "tests").glob("test_*.cpp"))
    found = {part.split(",")[0].strip() for part in sources.split("\nTEST")[1:] for part in [part.split("(", 1)[1]]}
    assert found == set(SUITES)
