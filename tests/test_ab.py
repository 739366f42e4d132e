"""`nox -s ab`: two revisions as two backends of one run (the run itself is the bench's, tested there)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
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


@pytest.mark.parametrize("revision", ["nonsense", "--upload-pack=x", "HEAD; id", ""])
def test_what_is_no_revision_is_refused_by_name(repository: Path, revision: str):
    ab = script()
    with pytest.raises(ab.AbError, match="BASE is"):
        ab.resolve(revision)


def test_both_sides_load_as_backends_of_their_own_process(tmp_path: Path):
    file = tmp_path / "revisions.py"
    file.write_text(script().BACKENDS.format(base="/b/site", head="/h/site", harness="/harness"))
    base, head = load(f"{file}:base"), load(f"{file}:head")
    assert {base.environment, head.environment} == {"ab-base", "ab-head"}
    assert base.process_settings(1)["PYTHONPATH"].startswith("/b/site:/harness")
    assert head.process_settings(1)["PYTHONPATH"].startswith("/h/site:/harness")
    assert (base.name, head.name) == ("base", "head")


def test_a_case_that_is_slower_closes_the_gate_and_an_undecided_one_does_not(tmp_path: Path):
    entries = [{"extra_info": {"verdict": v}} for v in (None, {"table": "undecided"}, {"table": "slower"})]
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"benchmarks": entries}))
    assert script().verdicts(path) == ["undecided", "slower"]


def test_the_backends_of_an_ab_run_cannot_be_chosen():
    program = [sys.executable, "ci/ab.py", "HEAD", "--backend", "vllm"]
    done = subprocess.run(program, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--backend and --baseline are the two revisions here" in done.stderr
