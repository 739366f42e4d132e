"""The suite under pytest: a result file that pytest-benchmark itself reads, and exit statuses."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pytest_benchmark.logger import Logger
from pytest_benchmark.storage.file import FileStorage

ROOT = Path(__file__).parents[1]
BACKENDS = Path(__file__).with_name("backends_for_tests.py")


def bench(folder: Path, *backends: str, extra: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`moelab bench` on the tiny layer, as a user runs it."""
    names = ",".join(f"{BACKENDS}:{name}" for name in backends)
    command = [
        *(sys.executable, "-m", "moelab", "bench", "--workload", "tiny", "--tokens", "2,5", "--threads", "1"),
        *(
            "--backend",
            names,
            "--quick",
            "--budget",
            "0",
            "--cache",
            "warm",
            "--out",
            str(folder),
            "--no-report",
            *extra,
        ),
    ]
    path = os.pathsep.join([str(ROOT / "harness"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, cwd=folder, timeout=240,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("bench")
    return folder / "result.json", bench(folder, "Honest", "Slower", "NotThis")


@pytest.fixture(scope="module")
def document(run: tuple[Path, subprocess.CompletedProcess[str]]) -> dict[str, Any]:
    path, done = run
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(path.read_text()))


def test_the_file_follows_the_schema(document: dict[str, Any]) -> None:
    jsonschema.validate(document, json.loads((ROOT / "reports/schema/result-1.json").read_text()))


def test_pytest_benchmark_reads_the_file_and_agrees(document: dict[str, Any], run: Any) -> None:
    """Its own loader on our file: every statistic follows from the interleaved samples."""
    storage = FileStorage(str(run[0].parent), logger=Logger(Logger.QUIET))
    loaded = {bench["fullname"]: bench for bench in storage.load_benchmarks(str(run[0]))}
    assert len(loaded) == len(document["benchmarks"]) == 7  # 2 cases x 4 labels, but one does not suit one case
    for entry in document["benchmarks"]:
        own = loaded[entry["fullname"]]
        data = entry["stats"]["data"]
        assert own["median"] == pytest.approx(statistics.median(data))
        assert own["mean"] == pytest.approx(statistics.fmean(data))
        assert own["min"] == min(data)
        assert own["max"] == max(data)
        assert own["rounds"] == len(data)
        assert own["stddev"] == pytest.approx(statistics.stdev(data))
        assert own["iterations"] == entry["extra_info"]["samples"]["calls"][0]
        assert entry["extra_info"]["time"]["median"] == pytest.approx(statistics.median(data))


def test_pytest_benchmark_compares_the_file(run: Any, document: dict[str, Any]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", str(run[0])],
        capture_output=True, text=True, check=False, cwd=run[0].parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Slower" in done.stdout
    assert "tiny/t5/uniform/1T" in done.stdout


def test_groups_are_cases_and_entries_backends(document: dict[str, Any]) -> None:
    groups: dict[str, set[str]] = {}
    for entry in document["benchmarks"]:
        groups.setdefault(entry["group"], set()).add(entry["extra_info"]["backend"]["label"])
    assert groups == {
        "tiny/t2/uniform/1T": {"Honest", "Slower", "NotThis", "Honest#2"},
        "tiny/t5/uniform/1T": {"Honest", "Slower", "Honest#2"},
    }


def test_what_did_not_run_and_the_command_are_in_the_file(document: dict[str, Any]) -> None:
    block = document["moelab"]
    assert [(m["backend"], m["case"], m["kind"]) for m in block["missing"]] == [
        ("NotThis", "tiny/t5/uniform/1T", "unsuited")
    ]
    command = block["run"]["command"]
    assert command[command.index("--tokens") + 1] == "2,5"
    assert "--quick" in command
    assert {cell["control"]["of"] for cell in block["cells"]} == {"Honest"}


def test_no_host_name_and_no_environment_is_published(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    assert "node" not in document["machine_info"]
    for name in ("HOME", "USER", "HOSTNAME", "LOGNAME"):
        value = os.environ.get(name, "")
        if len(value) > 4:
            assert f'"{value}"' not in text


def test_a_summary_is_printed_and_the_path_comes_last(run: Any, document: dict[str, Any]) -> None:
    lines = run[1].stdout.strip().splitlines()
    assert lines[-1] == f"result: {run[0]}"
    assert any("speed / Honest" in line for line in lines)
    assert "round" in run[1].stderr or "rounds" in run[1].stderr


def test_a_wrong_result_fails_the_run_and_is_no_measurement(tmp_path: Path) -> None:
    done = bench(tmp_path, "Honest", "SkipsExperts")
    assert done.returncode == 1
    written = json.loads((tmp_path / "result.json").read_text())
    labels = {e["extra_info"]["backend"]["label"] for e in written["benchmarks"]}
    assert "SkipsExperts" not in labels
    assert "Honest" in labels
    assert {(m["backend"], m["kind"]) for m in written["moelab"]["missing"]} == {("SkipsExperts", "failed")}


def test_a_result_above_its_roof_fails_the_run_and_is_in_no_summary(tmp_path: Path) -> None:
    """Slower beside probes that say it cannot be that fast."""
    (tmp_path / "roof.py").write_text(
        f"""
import gc
import importlib.util

spec = importlib.util.spec_from_file_location("backends_for_roof", {str(BACKENDS)!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

class Impossible(module.Slower):
    name = "Impossible"

    def __init__(self):
        super().__init__()
        for thing in gc.get_objects():
            if type(thing).__name__ == "Worker":  # of the process that is this backend's own
                thing.peak = lambda kind, **_: 1e3
"""
    )
    names = f"{BACKENDS}:Honest,{BACKENDS}:Slower,{tmp_path}/roof.py:Impossible"
    done = bench(tmp_path, "Honest", extra=("--backend", names, "--tokens", "2"))
    assert done.returncode == 1
    assert "BROKEN Impossible tiny/t2/uniform/1T: " in done.stdout
    written = json.loads((tmp_path / "result.json").read_text())
    assert [(b["backend"], b["case"]) for b in written["moelab"]["broken"]] == [("Impossible", "tiny/t2/uniform/1T")]
    verdicts = {e["extra_info"]["backend"]["label"]: e["extra_info"]["verdict"] for e in written["benchmarks"]}
    assert verdicts["Impossible"]["table"] == "broken"
    assert verdicts["Slower"]["table"] != "broken"
    assert {m["backend"] for m in written["moelab"]["geomeans"]} == {"Slower"}


def test_a_terminated_run_leaves_no_process_and_no_weights(tmp_path: Path) -> None:
    names = f"{BACKENDS}:Honest"
    command = [sys.executable, "-m", "moelab", "bench", "--workload", "tiny", "--threads", "1", "--backend", names]
    path = os.pathsep.join([str(ROOT / "harness"), *filter(None, [os.environ.get("PYTHONPATH")])])
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--budget", "600", "--out", str(tmp_path), "--no-report"],
            stderr=output, stdout=output, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        try:
            _wait_for(lambda: "against the oracle" in log.read_text() or process.poll() is not None, 120)
            started = _descendants(process.pid)
            folders = {p for pid in started for p in _weights_mapped_by(pid)}
            process.terminate()
            process.wait(60)
        finally:
            process.kill()
    assert len(started) >= 2, log.read_text()
    assert folders, "no worker had mapped the weights"
    _wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 20)
    assert not [folder for folder in folders if folder.exists()]


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {seconds} s"
        time.sleep(0.05)


def _descendants(pid: int) -> list[int]:
    children = [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [inner for child in children for inner in _descendants(child)]


def _weights_mapped_by(pid: int) -> set[Path]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(line.split()[-1]).parent for line in lines if line.endswith(".weights")}


def test_being_slow_never_fails_a_run(document: dict[str, Any], run: Any) -> None:
    slower = [e for e in document["benchmarks"] if e["extra_info"]["backend"]["label"] == "Slower"]
    assert all(e["extra_info"]["ratio"]["value"] < 0.9 for e in slower)
    assert run[1].returncode == 0


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        (("--expect", "cpu=Pentium-60"), "not the machine that was expected"),
        (("--expect", "nonsense"), "must be one of"),
        (("--workload", "gpt-6"), "gpt-6"),
        (("--threads", "4096"), "4096"),
        (("--routing", "zigzag"), "zigzag"),
    ],
)
def test_wrong_options_stop_before_anything_runs(tmp_path: Path, extra: tuple[str, ...], complaint: str) -> None:
    begun = time.monotonic()
    done = bench(tmp_path, "Honest", extra=extra)
    assert "packing" not in done.stderr
    assert time.monotonic() - begun < 60
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (tmp_path / "result.json").exists()
