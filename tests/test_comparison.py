"""compare and reproduce on made-up result files with known changes."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import synthetic_result
from moelab import comparison, provenance
from moelab.cli import main

WORKLOAD = ("qwen3-30b-a3b",)


pytestmark = pytest.mark.usefixtures("fewer_resamples")


@pytest.fixture(scope="module")
def old() -> dict[str, Any]:
    return dict(json.loads(json.dumps(synthetic_result.build(0, workloads=WORKLOAD))))


@pytest.fixture
def again() -> dict[str, Any]:
    """Another run of the same code."""
    return dict(json.loads(json.dumps(synthetic_result.build(1, workloads=WORKLOAD))))


def slow_down(document: dict[str, Any], name: str, factor: float) -> None:
    """The backend and its A/A control: both run the same code."""
    for entry in document["benchmarks"]:
        if entry["extra_info"]["backend"]["name"] == name:
            entry["stats"]["data"] = [s * factor for s in entry["stats"]["data"]]


def machine_mood(document: dict[str, Any], factor: float) -> None:
    for entry in document["benchmarks"]:
        entry["stats"]["data"] = [s * factor for s in entry["stats"]["data"]]


def save(folder: Path, **documents: dict[str, Any]) -> list[str]:
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return [str(folder / f"{name}.json") for name in documents]


def test_the_same_code_twice_is_no_change(old: dict[str, Any], again: dict[str, Any], tmp_path: Path) -> None:
    assert main(["compare", *save(tmp_path, old=old, again=again)]) == 0


def test_a_slower_kernel_is_seen_and_sets_the_exit_status(
    old: dict[str, Any], again: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_down(again, "moelab", 1.2)
    files = save(tmp_path, old=old, again=again)
    assert main(["compare", *files, "--markdown", str(tmp_path / "c.md"), "--figure", str(tmp_path / "c.svg")]) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if line.endswith("slower")]
    assert len(rows) == 6
    assert all(" moelab " in row for row in rows)
    text = (tmp_path / "c.md").read_text()
    assert text.startswith("### again.json against old.json: 6 slower")
    assert "<details>" in text
    assert (tmp_path / "c.svg").read_text().count("<svg") == 1


def test_the_gate_can_be_set_wider_or_to_other_backends(
    old: dict[str, Any], again: dict[str, Any], tmp_path: Path
) -> None:
    slow_down(again, "moelab", 1.1)
    files = save(tmp_path, old=old, again=again)
    assert main(["compare", *files, "--fail-above", "0.3"]) == 0
    assert main(["compare", *files, "--backend", "vllm"]) == 0
    assert main(["compare", *files, "--backend", "moelab"]) == 1


def test_a_slower_day_is_not_a_slower_kernel(old: dict[str, Any], again: dict[str, Any]) -> None:
    machine_mood(again, 1.5)
    before, after = comparison.entries(old), comparison.entries(again)
    for key, entry in after.items():
        if entry.label != "torch_loop":
            assert comparison.change(before[key], entry).verdict.alone not in ("faster", "slower")


@pytest.mark.parametrize("difference", ["CPU part", "threads", "layer", "weights"])
def test_another_machine_or_workload_is_not_a_change_of_the_code(
    old: dict[str, Any], again: dict[str, Any], tmp_path: Path, difference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_down(again, "moelab", 2.0)
    for entry in again["benchmarks"]:
        if difference == "threads":
            entry["extra_info"]["setting"]["threads"] = 4
            entry["extra_info"]["case"]["id"] = entry["extra_info"]["case"]["id"].replace("/2T", "/4T")
        if difference == "weights":
            entry["extra_info"]["setting"]["cache"] = "warm"
        if difference == "layer":
            entry["extra_info"]["case"]["intermediate"] = 512
    if difference == "CPU part":
        again["machine_info"]["moelab"]["cpu"]["part"] = "Synthetic 9/9/9"
    assert main(["compare", *save(tmp_path, old=old, again=again)]) == 2
    case = f"qwen3-30b-a3b/t1/uniform/{4 if difference == 'threads' else 2}T"
    assert f"not a change of the code: {case} moelab: {difference}:" in capsys.readouterr().out


def test_more_than_two_files_are_each_compared_with_the_first(
    old: dict[str, Any], again: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The slower one sets the exit status, wherever it stands; the summary has a part for each."""
    slower = copy.deepcopy(again)
    slow_down(slower, "moelab", 1.2)
    files = save(tmp_path, old=old, slower=slower, again=again)
    assert main(["compare", *files, "--markdown", str(tmp_path / "c.md"), "--figure", str(tmp_path / "c.png")]) == 1
    out = capsys.readouterr().out
    assert out.index("slower.json") < out.index("again.json")
    text = (tmp_path / "c.md").read_text()
    assert "### slower.json against old.json: 6 slower" in text
    assert "### again.json against old.json: " in text
    assert "slower" not in text[text.index("### again.json") :]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert main(["compare", *files, "--figure", str(tmp_path / "c.svg")]) == 1


def test_a_slowdown_that_is_not_decided_does_not_fail(
    old: dict[str, Any], again: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 % slower in the median, in samples that scatter by more."""
    noisy = copy.deepcopy(old)
    for document in (noisy, again):
        for entry in document["benchmarks"]:
            scatter = [1.6 if (i * 7 + len(entry["group"])) % 3 else 1.0 for i in range(len(entry["stats"]["data"]))]
            if entry["extra_info"]["backend"]["label"] == "moelab":
                entry["stats"]["data"] = [s * f for s, f in zip(entry["stats"]["data"], scatter, strict=True)]
    slow_down(again, "moelab", 1.2)
    assert main(["compare", *save(tmp_path, old=noisy, again=again), "--backend", "moelab"]) == 0
    assert "undecided" in capsys.readouterr().out


def test_broken_and_wrong_measurements_take_no_part(old: dict[str, Any]) -> None:
    damaged = copy.deepcopy(old)
    for entry in damaged["benchmarks"]:
        if entry["extra_info"]["backend"]["label"] == "vllm":
            entry["extra_info"]["roofline"]["broken"] = True
        if entry["extra_info"]["backend"]["label"] == "moelab":
            entry["extra_info"]["correctness"]["passed"] = False
    assert {label for _, label in comparison.entries(damaged)} == {"torch_loop", "torch_grouped_mm"}


def test_files_that_are_no_results_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text("{}")
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "a.json" in capsys.readouterr().err


def test_hostile_names_stay_inside_their_cell(old: dict[str, Any], again: dict[str, Any], tmp_path: Path) -> None:
    for document in (old, again):
        for entry in document["benchmarks"]:
            entry["extra_info"]["case"]["id"] += "|<script>"
    main(["compare", *save(tmp_path, old=old, again=again), "--markdown", str(tmp_path / "c.md")])
    text = (tmp_path / "c.md").read_text()
    assert "<script>" not in text
    assert "|<" not in text
    for document in (old, again):
        for entry in document["benchmarks"]:
            entry["extra_info"]["case"]["id"] = entry["extra_info"]["case"]["id"].removesuffix("|<script>")


# ---- reproduce ------------------------------------------------------------------------------------------------------


def test_a_repeated_run_agrees(
    old: dict[str, Any], again: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = save(tmp_path, old=old, again=again)
    assert main(["reproduce", files[0], "--with", files[1]]) == 0
    assert "18 of 18 agree: repeatable on this machine" in capsys.readouterr().out


def test_another_machine_reproduces(
    old: dict[str, Any], again: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again["machine_info"]["moelab"]["machine_id"] = "ffffffffffff"
    again["machine_info"]["moelab"]["cpu"]["part"] = "Synthetic 9/9/9"
    files = save(tmp_path, old=old, again=again)
    assert main(["reproduce", files[0], "--with", files[1]]) == 0
    out = capsys.readouterr().out
    assert "reproduced on another machine" in out
    assert "other CPU part" in out


def test_numbers_that_moved_do_not_agree(
    old: dict[str, Any], again: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_down(again, "moelab", 1.3)
    files = save(tmp_path, old=old, again=again)
    assert main(["reproduce", files[0], "--with", files[1]]) == 1
    assert "12 of 18 agree: not repeatable" in capsys.readouterr().out


def test_a_run_of_two_revisions_names_the_command_that_repeats_it(
    old: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder that the other revision was built in is gone, so it is not in the command."""
    arguments = ["--backend", "moelab,moelab@abc123=/gone/only", "--baseline", "moelab@abc123=/gone/only", "--quick"]
    command = provenance.command(arguments)
    assert command[-4:] == ["abc123", "--backend", "moelab", "--quick"]
    assert "ab" in command
    two = copy.deepcopy(old)
    two["moelab"]["run"]["command"] = command
    assert main(["reproduce", *save(tmp_path, two=two)]) == 2
    assert "abc123" in capsys.readouterr().err


def test_a_result_of_uncommitted_changes_cannot_be_rebuilt(
    old: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dirty = copy.deepcopy(old)
    dirty["moelab"]["source"].update(dirty=True, changed=["kernels/src/pack.cpp"])
    assert main(["reproduce", *save(tmp_path, dirty=dirty)]) == 2
    assert "cannot be rebuilt" in capsys.readouterr().err


def test_the_revision_of_the_result_is_built_and_run_by_its_own_bootstrap(
    tmp_path: Path, old: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything but the run itself: a work tree of that commit, and in it a program that is there."""
    root = Path(__file__).parents[1]
    if not shutil.which("git") or not (root / ".git").exists():
        pytest.skip("no clone")
    real = subprocess.run
    commit = real(["git", "-C", str(root), "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    document = copy.deepcopy(old)
    document["moelab"]["source"] = {"commit": commit.strip(), "dirty": False, "changed": [], "time": None}
    runs = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[0] == "git":
            return real(command, **options)
        at = real(["git", "rev-parse", "HEAD"], cwd=options["cwd"], check=True, capture_output=True, text=True).stdout
        runs.append((at, os.access(command[0], os.X_OK), command[1:]))
        (tmp_path / "new" / "result.json").write_text(json.dumps(document))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(provenance, "repository", lambda: root)
    monkeypatch.setattr("moelab.reproduce_command.subprocess.run", run)
    (tmp_path / "new").mkdir()
    (path,) = save(tmp_path, old=document)
    assert main(["reproduce", path, "--out", str(tmp_path / "new")]) == 0
    ((at, runnable, arguments),) = runs
    assert at == commit
    assert runnable
    assert arguments == ["bench", "--out", str(tmp_path / "new")]
    assert "repeatable on this machine" in capsys.readouterr().out
    trees = real(["git", "-C", str(root), "worktree", "list"], check=True, capture_output=True, text=True).stdout
    assert "moelab-revision" not in trees


def test_a_result_of_an_image_runs_in_that_image_as_this_user(
    tmp_path: Path, old: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = copy.deepcopy(old)
    digest = "registry.example/moelab@sha256:" + "0" * 64
    document["moelab"]["image"] = digest
    document["moelab"]["run"]["options"]["first_input"] = 77
    runs = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        runs.append(command)
        (tmp_path / "new" / "result.json").write_text(json.dumps(document))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(provenance, "repository", lambda: None)
    monkeypatch.setattr("moelab.reproduce_command.subprocess.run", run)
    (path,) = save(tmp_path, old=document)
    assert main(["reproduce", path, "--out", str(tmp_path / "new")]) == 0
    (command,) = runs
    assert command[: command.index("bench")][-1] == digest
    assert command[command.index("--inputs") + 1] == "77", "the input sets of the result"
    assert command[command.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    assert command[command.index("-e") + 1] == f"MOELAB_IMAGE_DIGEST={digest}"


def test_in_the_image_with_compilers_the_revision_is_built_with_what_is_there(
    tmp_path: Path, old: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither docker nor a bootstrap: the commit's own files go to pip, and its packages come first in the run."""
    clone = tmp_path / "clone"
    clone.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(clone)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    (clone / "file").write_text("then")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "then"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (clone / "file").write_text("now")
    document = copy.deepcopy(old)
    document["moelab"]["image"] = "sha256:" + "0" * 64
    document["moelab"]["source"] = {"commit": commit, "dirty": None, "changed": [], "time": None}
    real, built, started = subprocess.run, [], []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[0] in ("git", "tar"):
            return real(command, **options)
        environment = options["env"]
        if "pip" in command:
            built.append((Path(command[-1], "file").read_text(), environment["MOELAB_GIT_COMMIT"]))
            started.append(command[command.index("--target") + 1])
        else:
            assert environment["PYTHONPATH"].split(os.pathsep)[0] == started[0]
            (tmp_path / "new" / "result.json").write_text(json.dumps(document))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setenv("MOELAB_INSTALLED_TOOLS", "1")
    monkeypatch.chdir(clone)
    monkeypatch.setattr("moelab.reproduce_command.subprocess.run", run)
    (tmp_path / "new").mkdir()
    (path,) = save(tmp_path, old=document)
    assert main(["reproduce", path, "--out", str(tmp_path / "new")]) == 0
    assert built == [("then", commit)]
