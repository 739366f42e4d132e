"""The GitHub workflows: what they name exists, what they take is pinned, and their steps run here in a clean clone."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from ci_scripts import load as load_script

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def script(path: str) -> ModuleType:
    """A script of ci/ as a module."""
    return load_script(path, "ci_" + Path(path).stem)


def load(path: Path) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(path.read_text())
    return document


def jobs() -> list[Any]:
    return [
        pytest.param(job, id=f"{path.stem}-{name}") for path in WORKFLOWS for name, job in load(path)["jobs"].items()
    ]


def commands() -> list[str]:
    return [
        step["run"]
        for path in WORKFLOWS
        for job in load(path)["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]


def sessions() -> set[str]:
    """Functions of the noxfile that are sessions."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("session" in ast.unparse(d) for d in node.decorator_list)
    }


def test_the_workflows_of_the_design_are_there():
    assert {path.name for path in WORKFLOWS} >= {"ci.yml", "bench.yml", "publish.yml", "images.yml", "nightly.yml"}


def test_every_session_that_a_workflow_names_exists():
    scripts = list((ROOT / "ci").rglob("*.py"))
    named = {m for command in commands() for m in re.findall(r"\./ci/lab (\S+)", command)}
    named |= {m for p in scripts for m in re.findall(r'"\./ci/lab", "(\w+)"', p.read_text())}
    assert named
    assert named <= sessions()


def test_every_step_is_one_session_or_one_script_and_scripts_are_executable():
    for command in commands():
        program = command.split()[0]
        assert program.startswith("./ci/"), command
        assert os.access(ROOT / program, os.X_OK), f"{program} is missing or not executable"
        assert not re.search(r"[;|&]|\$\(", command.partition(" #")[0]), f"more than one program: {command}"


def test_no_expression_reaches_a_shell():
    assert not [command for command in commands() if "${{" in command]


@pytest.mark.parametrize("job", jobs())
def test_every_job_states_rights_time_and_runner(job: dict[str, Any]):
    assert "permissions" in job
    assert job["timeout-minutes"] <= 120
    assert "latest" not in str(job["runs-on"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_no_rights_unless_a_job_asks(path: Path):
    assert load(path)["permissions"] == {}


def test_only_trusted_starts_get_write_rights():
    """A pull request's own code never runs with a right to write."""
    for path in WORKFLOWS:
        workflow = load(path)
        on = workflow[True]  # YAML 1.1 reads the key `on` as true
        if "pull_request" not in on:
            continue
        for name, job in workflow["jobs"].items():
            if "write" in str(job["permissions"]):
                assert "github.ref == 'refs/heads/main'" in job["if"], f"{path.name}: {name}"


def test_pins_are_whole_commits_in_the_table():
    pins = script("pins.py")
    table = pins.read_table()
    uses = [use for path in pins.using_files() for use in pins.uses(path)]
    assert len(uses) >= 20
    assert pins.problems(table, uses) == []
    for pin in table:
        assert re.fullmatch(r"[0-9a-f]{40}" if pin.kind == "action" else r"sha256:[0-9a-f]{64}", pin.digest), pin.name
        assert pin.seen_in, f"{pin.name}: a digest must have been seen somewhere"


def test_an_unpinned_use_is_found(tmp_path: Path):
    pins = script("pins.py")
    file = tmp_path / "a.yml"
    file.write_text("- uses: actions/checkout@v7\n- uses: someone/else@" + "0" * 40 + " # v1.0.0\n- uses: ./local\n")
    found = pins.problems(pins.read_table()[:1], pins.uses(file))
    assert [line.split(": ", 1)[1] for line in found] == [
        "actions/checkout is at v7, ci/pins.toml says 3d3c42e5aac5ba805825da76410c181273ba90b1",
        "someone/else is not in ci/pins.toml",
    ]


CONTEXTS: dict[str, Any] = {
    "github": {"event_name": "push", "ref": "refs/heads/main", "event": {"pull_request": None}},
    "vars": {},
    "matrix": {"runner": {"name": "a", "labels": ["x", "y"]}},
    "needs": {"plan": {"outputs": {"runners": '[{"name": "a"}]'}, "result": "success"}},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("github.event_name == 'PUSH'", True),  # GitHub compares without case
        ("github.event_name != 'pull_request' && 'a' || 'b'", "a"),
        ("vars.MISSING || 'default'", "default"),
        ("github.event.pull_request.head.repo.fork", None),
        ("!vars.MISSING", True),
        ("fromJSON(needs.plan.outputs.runners)[0].name", "a"),
        ("matrix.runner.labels[1]", "y"),
        ("contains(matrix.runner.labels, 'x') && startsWith(github.ref, 'refs/heads/')", True),
        ("format('{0}-{1}', 'a', 2)", "a-2"),
        ("1 == '1' && null == 0 && '' == 0", True),
        ("'it''s'", "it's"),
        ("(true || false) && false", False),
        ("needs['plan'].result", "success"),
        ("2 <= 3 && 3 > 2", True),
    ],
)
def test_expressions_mean_what_they_mean_on_github(text: str, value: object):
    assert script("workflows_expressions.py").Evaluator(CONTEXTS).evaluate(text) == value


@pytest.mark.parametrize("text", ["hashFiles('x')", "nowhere.x", "'open", "a b", "1 +", ""])
def test_expressions_that_are_not_known_are_refused(text: str):
    expressions = script("workflows_expressions.py")
    with pytest.raises(expressions.ExpressionError):
        expressions.Evaluator({"a": 1.0, "b": 1.0}).evaluate(text)


def test_conditions_imply_success_unless_they_ask():
    failed = {"success": False, "failure": True, "always": True, "cancelled": False}
    values = script("workflows_expressions.py").Evaluator(CONTEXTS, failed)
    assert not values.condition("github.event_name == 'push'")
    assert values.condition("always() && github.event_name == 'push'")
    assert values.condition("failure()")
    assert not values.condition(None)


WORKFLOW = """
name: sample
on: {push: {branches: [main]}}
permissions: {}
env: {SHARED: all}
jobs:
  second:
    needs: first
    strategy:
      matrix:
        item: ${{ fromJSON(needs.first.outputs.items) }}
    runs-on: [@HERE@]
    steps:
      - uses: actions/checkout@0 # v1
      - uses: actions/download-artifact@0 # v1
        with: {name: kept, path: got}
      - run: test "$(cat got/word)" = "$ITEM-$SHARED"
        env: {ITEM: "${{ matrix.item }}"}
      - run: false
        if: failure()
      - run: echo never > never
        if: github.event_name == 'pull_request'
  first:
    runs-on: "@HERE@"
    outputs: {items: "${{ steps.say.outputs.items }}"}
    steps:
      - uses: actions/checkout@0 # v1
      - run: test -f tracked && test ! -f untracked
      - id: say
        run: echo 'items=["one"]' >> "$GITHUB_OUTPUT"
      - run: mkdir -p "$RUNNER_TEMP/o" && echo "one-$SHARED" > "$RUNNER_TEMP/o/word"
      - uses: actions/upload-artifact@0 # v1
        with: {name: kept, path: "${{ runner.temp }}/o/word"}
      - run: echo x
        env: {T: "${{ github.token }}"}
      - uses: someone/action@0 # v1
  elsewhere:
    runs-on: self-hosted
    steps:
      - run: false
  last:
    needs: [second, elsewhere]
    if: always()
    runs-on: "@HERE@"
    steps:
      - uses: actions/checkout@0 # v1
      - run: exit 3
      - run: echo skipped
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one workflow, a tracked file and an untracked one."""
    workflows = script("workflows.py")
    root = tmp_path / "repository"
    folder = root / ".github" / "workflows"
    folder.mkdir(parents=True)
    runner = workflows.RUNNERS[os.uname().machine][0]
    (folder / "sample.yml").write_text(WORKFLOW.replace("@HERE@", runner))
    (root / "tracked").write_text("")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    (root / "untracked").write_text("")
    stand_ins = sys.modules["workflows_stand_ins"]
    monkeypatch.setattr(stand_ins, "ROOT", root)
    monkeypatch.setattr(stand_ins.git, "__kwdefaults__", {"cwd": root})
    return root


def run_sample(clone: Path, tmp_path: Path, *, plan: bool) -> list[tuple[str, str, str]]:
    workflows = script("workflows.py")
    run = workflows.Run("", plan, 60.0, tmp_path / "run")
    run.workspace.mkdir(parents=True)
    workflows.run_workflow(clone / ".github" / "workflows" / "sample.yml", None, None, run)
    return [(line.job, line.step, line.state) for line in run.lines]


def test_steps_run_in_a_clean_clone_in_order(clone: Path, tmp_path: Path):
    lines = run_sample(clone, tmp_path, plan=False)
    assert [state for job, _, state in lines if job == "first"] == [
        "ok",
        "ok",
        "ok",
        "ok",
        "ok",
        *["could not run"] * 2,
    ]
    assert [state for job, _, state in lines if job == "second one"] == ["ok", "ok", "ok", "skipped", "skipped"]
    assert ("elsewhere", "job", "could not run") in lines
    assert [state for job, _, state in lines if job == "last"] == ["ok", "failed", "skipped"]
    assert lines.index(("first", "actions/upload-artifact", "ok")) < lines.index(
        ("second one", "actions/checkout", "ok")
    )


def test_a_plan_runs_nothing(clone: Path, tmp_path: Path):
    states = {state for _, _, state in run_sample(clone, tmp_path, plan=True)}
    assert "ok" not in states
    assert "failed" not in states
    assert "would run" in states


def test_every_workflow_can_be_planned_here():
    done = subprocess.run(
        [sys.executable, "ci/workflows.py", "--plan"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for path in WORKFLOWS:
        assert path.name in done.stdout
