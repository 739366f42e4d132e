"""`nox -s ab`: two revisions as two backends of one run (the run itself is the bench's, tested there)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from moelab.backend_loading import load

ROOT = Path(__file__).resolve().parents[1]


def script() -> ModuleType:
    if "ci_ab" not in sys.modules:
        spec = importlib.util.spec_from_file_location("ci_ab", ROOT / "ci" / "ab.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["ci_ab"] = module
        spec.loader.exec_module(module)
    return sys.modules["ci_ab"]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "file").write_text("old")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "file").write_text("new")
    monkeypatch.setattr(script(), "ROOT", tmp_path)
    return tmp_path


def test_a_revision_is_exported_as_it_was_committed(repository: Path, tmp_path: Path):
    ab = script()
    commit = ab.resolve("HEAD")
    source = ab.export(commit, tmp_path / "build")
    assert (source / "file").read_text() == "old"
    assert (repository / "file").read_text() == "new"


def test_the_first_pythons_3_11_can_export_too(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Up to 3.11.3 archives are unpacked without a filter."""
    unpack, safely = tarfile.TarFile.extractall, script().SAFELY

    def without_filter(archive: tarfile.TarFile, path: str = ".", members: object = None) -> None:
        unpack(archive, path, members, **safely)

    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.setattr(tarfile.TarFile, "extractall", without_filter)
    monkeypatch.delitem(sys.modules, "ci_ab", raising=False)
    ab = script()
    monkeypatch.setattr(ab, "ROOT", repository)
    assert (ab.export("HEAD", tmp_path / "build") / "file").read_text() == "old"
    monkeypatch.delitem(sys.modules, "ci_ab")


@pytest.mark.parametrize("revision", ["nonsense", "--upload-pack=x", "HEAD; id", ""])
def test_what_is_no_revision_is_refused_by_name(repository: Path, revision: str):
    ab = script()
    with pytest.raises(ab.AbError, match="BASE is"):
        ab.resolve(revision)


def test_both_sides_are_processes_with_a_build_of_their_own(tmp_path: Path):
    base, head = (tmp_path / name for name in ("base", "head"))
    (base / "moelab_kernels").mkdir(parents=True)
    other = load(f"moelab@abc={base}")
    assert other.name == "moelab@abc"
    assert other.environment != load("moelab").environment
    assert other.process_settings(1)["PYTHONPATH"].startswith(f"{base}:")
    assert script().environment(head)["PYTHONPATH"].startswith(f"{head}:{ROOT}/harness")


def test_a_case_that_is_slower_closes_the_gate_and_an_undecided_one_does_not(tmp_path: Path):
    entries = [
        {"extra_info": {"verdict": verdict, "backend": {"label": label}}}
        for label, verdict in (
            ("moelab@abc", None), ("moelab#2", None),
            ("moelab", {"table": "undecided"}), ("moelab", {"table": "slower"}),
        )
    ]  # fmt: skip
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"benchmarks": entries}))
    assert script().verdicts(path) == ["undecided", "slower"]


def test_the_backends_of_an_ab_run_cannot_be_chosen():
    program = [sys.executable, "ci/ab.py", "HEAD", "--backend", "vllm"]
    done = subprocess.run(program, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--backend and --baseline are the two revisions here" in done.stderr


def test_another_machine_than_expected_is_refused_before_anything_is_built():
    program = [sys.executable, "ci/ab.py", "HEAD", "--expect", "cpu=pentium-60"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
    done = subprocess.run(program, cwd=ROOT, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert "not as expected: cpu=pentium-60" in done.stderr
    assert "building" not in done.stdout
