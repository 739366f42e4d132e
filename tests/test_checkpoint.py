"""An interrupted bench goes on where it was, and only there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from moelab import checkpoint, machine, plugin, results
from moelab.cli import main
from moelab.conditions import Disturbance
from moelab.measurement import BackendRun, CaseRun, Check, Missing, Sample, Setting, Spent
from moelab.plan import Plan
from moelab.run import Run
from moelab.workloads import Case, layer_by_name


def case_run(workload: str) -> CaseRun:
    """With something in every field."""
    samples = [Sample(0, i, 0, i, 1, 1e-3 * (i + 1), 5.0, 6.0, 2.0, 3e9, None, {"gemm1": 5e-4}) for i in range(3)]
    backends = {
        "moelab": BackendRun(
            "moelab", "moelab", "candidate", rounding={"hidden": "bf16"}, facts={"version": "1"},
            packing_seconds=[0.5], packing_extra_bytes=[9], first_call_seconds=[0.1],
            before=Check(24, 0.1, 0.2, 0.5), after=Check(4, 0.1, 0.2, 0.5), samples=samples,
            samples_checked=3, spent=[Spent(bind=1e-5, result=1e-5, cpu=1e-3, unexplained=1e-4)],
        )
    }  # fmt: skip
    setting = Setting(2, [0, 1], "bound", "cold", "read", emulated=False, last_level_bytes=1 << 25)
    disturbance = Disturbance(100.0, 3.0, 2.0, 1)
    return CaseRun(
        Case(layer_by_name(workload), 3, "skewed", 2, 7), setting, "moelab", backends, True, disturbance, ["x"]
    )


def record(**changes: Any) -> checkpoint.Checkpoint:
    missing = [Missing("vllm", None, "tiny", "unavailable", "no wheel")]
    values: dict[str, Any] = {
        "arguments": ["--workload", "tiny,tiny/E4", "--tokens", "3"],
        "identity": checkpoint.identity(machine.gather()),
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 12.5,
        "measured": {"tiny": ([case_run("tiny")], missing)},
        **changes,
    }
    return checkpoint.Checkpoint(**values)


def test_a_record_keeps_everything(tmp_path: Path) -> None:
    written = record()
    written.write(tmp_path / checkpoint.NAME)
    assert checkpoint.read(tmp_path / checkpoint.NAME) == written
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "arguments": 3}', "\x00"])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / checkpoint.NAME).write_text(text)
    assert main(["bench", "--resume", str(tmp_path)]) == 2
    assert "no record of an interrupted run" in capsys.readouterr().err


def test_a_folder_without_a_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--resume", str(tmp_path)]) == 2
    assert "nothing was interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["machine", "cpu", "commit", "changed files", "library"])
def test_another_machine_or_revision_does_not_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    identity = {**checkpoint.identity(machine.gather()), name: "other"}
    record(identity=identity).write(tmp_path / checkpoint.NAME)
    assert main(["bench", "--resume", str(tmp_path)]) == 2
    assert f"{name} was other" in capsys.readouterr().err


def test_other_options_beside_resume_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record().write(tmp_path / checkpoint.NAME)
    assert main(["bench", "--resume", str(tmp_path), "--tokens", "5"]) == 2
    assert "--tokens" in capsys.readouterr().err


def test_only_what_is_left_is_measured_and_gets_its_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    budgets = []

    def measure(run: Run, workload: str) -> tuple[list[CaseRun], list[Missing]]:
        asked.append(workload)
        budgets.append(run._deadline - time.monotonic())
        return [case_run(workload)], []

    monkeypatch.setattr(Run, "measure", measure)
    path = tmp_path / checkpoint.NAME
    record().write(path)
    plan = Plan(workloads=("tiny", "tiny/E4"), tokens=(3,), backends=("moelab",), baseline="moelab", budget=100.0)
    bench = plugin.Bench(plan, record().arguments, machine.gather(), path)
    for workload in plan.workloads:
        assert bench.workload(workload)[0][0].case.layer.name == workload
    assert asked == ["tiny/E4"]
    assert 40 < budgets[0] <= 50
    assert list(checkpoint.read(path).measured) == ["tiny", "tiny/E4"]
    block = bench.block(bench.cells())
    assert block["run"]["started"] == "2026-01-01T00:00:00+00:00"
    assert block["run"]["seconds"] > 12.5
    assert "the run was interrupted; measured before that: tiny" in block["conditions"]


def test_an_interrupted_bench_goes_on(tmp_path: Path) -> None:
    options = [
        "--workload",
        "tiny,tiny/E4",
        "--tokens",
        "3",
        "--backend",
        "moelab",
        "--processes",
        "1",
        "--threads",
        "1",
    ]
    start = [sys.executable, "-m", "moelab", "bench"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    record_file = tmp_path / checkpoint.NAME
    command = [*start, *options, "--budget", "20", "--out", str(tmp_path), "--no-report"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        deadline = time.monotonic() + 60
        while not record_file.exists() and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        said, _ = run.communicate(timeout=60)
    assert run.returncode == 2, said
    assert f"bench --resume {tmp_path}" in said
    again = subprocess.run(
        [*start, "--resume", str(tmp_path), "--no-report"], check=False, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stdout + again.stderr
    document = results.load(tmp_path / "result.json")
    assert [cell["case"] for cell in document["moelab"]["cells"]] == ["tiny/t3/uniform/1T", "tiny/E4/t3/uniform/1T"]
    assert "the run was interrupted; measured before that: tiny" in document["moelab"]["conditions"]
    assert not record_file.exists()
    assert json.loads((tmp_path / "result.json").read_text())["moelab"]["run"]["command"][-1] != "--resume"
