#!/usr/bin/env python3
"""Runs the workflows' steps here: every job for this machine's architecture, in order, in a clean clone.

    ci/workflows.py --plan                      what would run, what could not and why
    ci/workflows.py --only ci.yml:lint          one job; --event push | pull_request | workflow_dispatch | schedule

Checkout and the artifact actions are replaced by stand-ins on the local disk. Steps that need GitHub itself (its
token, Pages, a registry, attestations) are listed as "could not run". Exit status 1 when a step that ran failed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
from workflows_expressions import Evaluator, Value, as_text  # (PYTHONSAFEPATH hides this folder)
from workflows_stand_ins import STAND_INS, Line, Run, git

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".github" / "workflows"
RUNNERS = {"x86_64": ("ubuntu-24.04", "ubuntu-latest"), "aarch64": ("ubuntu-24.04-arm",)}
NEEDS_GITHUB, AFTER_GITHUB = "needs GitHub", "after a step that needs GitHub"
ENVIRONMENT_DROPPED = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "NOX_CURRENT_SESSION")


def load(path: Path) -> dict[str, Any]:
    """A workflow; YAML 1.1 reads the key `on` as true."""
    text: dict[Any, Any] = yaml.safe_load(path.read_text())
    return {("on" if key is True else str(key)): value for key, value in text.items()}


def triggers(workflow: dict[str, Any]) -> list[str]:
    """Names of the events that start a workflow."""
    on = workflow["on"]
    return [on] if isinstance(on, str) else list(on)


def github(event: str, run: Run) -> dict[str, Value]:
    """Stand-in for the `github` context."""
    head = git("rev-parse", "HEAD")
    commits = git("rev-list", "--max-count=2", "HEAD").split()
    pull = {"number": 1.0, "base": {"sha": commits[-1], "ref": "main"}, "head": {"sha": head, "repo": {"fork": False}}}
    return {
        "event_name": event,
        "sha": head,
        "ref": "refs/pull/1/merge" if event == "pull_request" else "refs/heads/main",
        "ref_name": "main",
        "repository": "local/moelab",
        "repository_owner": "local",
        "run_id": "1",
        "run_attempt": "1",
        "workflow": "local",
        "workspace": str(run.workspace),
        "token": "",
        "actor": "local",
        "event": {
            "pull_request": pull if event == "pull_request" else None,  # type: ignore[dict-item]
            # publish.yml follows what main measured, comment.yml what a pull request did.
            "workflow_run": {"id": "1", "event": run.after, "head_sha": head, "head_branch": "main"},
            "inputs": {},
        },
    }


def matrix(job: dict[str, Any], values: Evaluator) -> list[dict[str, Value]]:
    """Combinations of a job's matrix; one empty combination without one."""
    given = values.fill((job.get("strategy") or {}).get("matrix") or {})
    if not isinstance(given, dict):
        raise ValueError(f"matrix is {given!r}, expected a mapping")  # noqa: TRY004 - of a file
    axes = {key: value for key, value in given.items() if key not in ("include", "exclude")}
    lists = [value if isinstance(value, list) else [] for value in axes.values()]
    combinations: list[dict[str, Value]] = [dict(zip(axes, combo, strict=True)) for combo in itertools.product(*lists)]
    extra = given.get("include") or []
    if isinstance(extra, list) and extra:
        combinations = [c for c in combinations if c] + [c for c in extra if isinstance(c, dict)]
    return combinations


def runs_here(job: dict[str, Any], values: Evaluator) -> str | None:
    """None when this machine stands in for the job's runner, else the reason why not."""
    if job.get("container"):
        return "runs in a container"
    labels = values.fill(job.get("runs-on", ""))
    wanted = [as_text(label) for label in labels] if isinstance(labels, list) else [as_text(labels)]
    here = RUNNERS.get(platform.machine(), ())
    return None if all(label in here for label in wanted) else f"needs a runner {' '.join(wanted)}"


def read_file_command(path: Path) -> dict[str, str]:
    """Reads GITHUB_OUTPUT or GITHUB_ENV: name=value lines and name<<MARK blocks."""
    values, lines = {}, iter(path.read_text().splitlines())
    for line in lines:
        name, mark, rest = line.partition("<<")
        if mark and "=" not in name:
            values[name] = "\n".join(itertools.takewhile(lambda text, end=rest: text != end, lines))  # type: ignore[misc]
        elif "=" in line:
            name, _, value = line.partition("=")
            values[name] = value
    return values


def environment(run: Run, own: dict[str, str]) -> dict[str, str]:
    """Environment of a step: this machine's, GitHub's variables, the workflow's own."""
    base = {key: value for key, value in os.environ.items() if key not in ENVIRONMENT_DROPPED}
    files = {}
    for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_STEP_SUMMARY", "GITHUB_PATH"):
        path = run.folder / name
        path.write_text("")
        files[name] = str(path)
    temporary = run.folder / "temp"
    temporary.mkdir(exist_ok=True)
    fixed = {"CI": "true", "GITHUB_WORKSPACE": str(run.workspace), "RUNNER_TEMP": str(temporary)}
    return {**base, **fixed, **files, **own}


def execute(run: Run, step: dict[str, Any], own: dict[str, str], text: str) -> tuple[str, str, dict[str, str]]:
    """Runs a `run:` step; (state, note, outputs)."""
    script = run.folder / "step.sh"
    script.write_text(text)
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail"] if step.get("shell") == "bash" else ["bash", "-e"]
    env, began = environment(run, own), time.monotonic()
    log = run.folder / "step.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*shell, str(script)], cwd=run.workspace / step.get("working-directory", ""), env=env,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(timeout=run.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = 124
    seconds = f"{time.monotonic() - began:.0f} s"
    outputs = read_file_command(Path(env["GITHUB_OUTPUT"]))
    if status == 0:
        return "ok", seconds, outputs
    print(log.read_text(errors="replace")[-4000:])
    return "failed", f"exit {status} after {seconds}", outputs


def blocked(run: Run, job: str) -> bool:
    """Whether an earlier step of the job could not run, on which the later ones build."""
    return any(line.job == job and line.note == NEEDS_GITHUB for line in run.lines)


def use_action(run: Run, job: str, name: str, step: dict[str, Any], values: Evaluator) -> None:
    """A `uses:` step: a stand-in where there is one."""
    action = step["uses"].partition("@")[0]
    if action not in STAND_INS:
        run.note(job, name, "could not run", NEEDS_GITHUB)
    elif action != "actions/checkout" and blocked(run, job):
        run.note(job, name, "could not run", AFTER_GITHUB)
    elif run.plan:
        run.note(job, name, "would run", "local stand-in")
    else:
        options = values.fill(step.get("with") or {})
        try:
            reason = STAND_INS[action](run, options if isinstance(options, dict) else {})
        except OSError as error:
            run.note(job, name, "failed", str(error))
        else:
            run.note(job, name, "could not run" if reason else "ok", reason or "local stand-in")


def run_step(run: Run, job: str, step: dict[str, Any], values: Evaluator, env: dict[str, str]) -> dict[str, str]:
    """One step: a stand-in, a script, or a line that says why not. Returns its outputs."""
    name = step.get("name") or step.get("uses", "").partition("@")[0] or as_text(step["run"]).strip().splitlines()[0]
    outputs: dict[str, str] = {}
    if not values.condition(step.get("if")):
        run.note(job, name, "skipped")
    elif "uses" in step:
        use_action(run, job, name, step, values)
    elif "github.token" in str(step) or "secrets." in str(step):
        run.note(job, name, "could not run", "needs GitHub's token")
    elif blocked(run, job):
        run.note(job, name, "could not run", AFTER_GITHUB)
    elif run.plan:
        run.note(job, name, "would run")
    else:
        filled = values.fill(step.get("env") or {})
        own = {**env, **{key: as_text(value) for key, value in (filled if isinstance(filled, dict) else {}).items()}}
        state, note, outputs = execute(run, step, own, as_text(values.fill(step["run"])))
        run.note(job, name, state, note)
    return outputs


def run_job(run: Run, name: str, job: dict[str, Any], contexts: dict[str, Value]) -> tuple[str, dict[str, Value]]:
    """One job (all combinations of its matrix that fit this machine); its result and outputs."""
    needed = [contexts["needs"][n] for n in _needs(job)]  # type: ignore[index, call-overload]
    good = all(n["result"] == "success" for n in needed)  # type: ignore[index, call-overload]
    status = {"success": good, "failure": any(n["result"] == "failure" for n in needed), "always": True}  # type: ignore[index, call-overload]
    values = Evaluator(contexts, {**status, "cancelled": False})
    if not values.condition(job.get("if")):
        run.note(name, "job", "skipped", "its condition is false here")
        return "skipped", {}
    result, outputs, ran = "success", {}, False
    try:
        combinations = matrix(job, values)
    except ValueError:  # nothing was run, so an earlier job has no outputs
        if not run.plan:
            raise
        run.note(name, "job", "would run", "once for each runner that an earlier job prints")
        return "success", {}
    for combination in combinations:
        title = f"{name} {' '.join(as_text(v) for v in combination.values())}".strip()
        here: dict[str, Value] = {**contexts, "matrix": combination, "steps": {}}
        reason = runs_here(job, Evaluator(here))
        if reason:
            run.note(title, "job", "could not run", reason)
            continue
        ran, ok, before = True, True, len(run.lines)
        for step in job["steps"]:
            local = Evaluator(here, {"success": ok, "failure": not ok, "always": True, "cancelled": False})
            env = {k: as_text(v) for k, v in (contexts.get("env") or {}).items()}  # type: ignore[union-attr]
            job_env = local.fill(job.get("env") or {})
            env.update({k: as_text(v) for k, v in (job_env if isinstance(job_env, dict) else {}).items()})
            made = run_step(run, title, step, local, env)
            failed = run.lines[-1].state == "failed"
            if "id" in step:
                here["steps"][step["id"]] = {"outputs": dict(made), "outcome": "failure" if failed else "success"}  # type: ignore[index]
            ok = ok and (not failed or bool(step.get("continue-on-error")))
        filled = Evaluator(here).fill(job.get("outputs") or {})
        outputs = filled if isinstance(filled, dict) else {}
        if any(line.state == "failed" for line in run.lines[before:]) and not ok:
            result = "failure"
    return (result if ran else "skipped"), outputs


def _needs(job: dict[str, Any]) -> list[str]:
    needs = job.get("needs") or []
    return [needs] if isinstance(needs, str) else list(needs)


def run_workflow(path: Path, event: str | None, only: str | None, run: Run) -> None:
    """All jobs of one workflow, in an order that respects `needs`."""
    workflow = load(path)
    possible = triggers(workflow)
    run.event = event or next((e for e in ("pull_request", "push", "schedule") if e in possible), possible[0])
    print(f"{path.name} on {run.event}")
    if run.event not in possible:
        run.note(path.name, "workflow", "skipped", f"not started by {run.event}")
        return
    results: dict[str, Value] = {}
    base: dict[str, Value] = {
        "github": github(run.event, run), "needs": results, "vars": {}, "secrets": {}, "inputs": {},
        "runner": {"temp": str(run.folder / "temp"), "os": "Linux", "arch": platform.machine()},
        "matrix": {}, "steps": {}, "strategy": {}, "job": {}, "env": {},
    }  # fmt: skip
    base["env"] = Evaluator(base).fill(workflow.get("env") or {})
    waiting = dict(workflow["jobs"])
    while waiting:
        name = next(n for n, job in waiting.items() if all(need in results for need in _needs(job)))
        job = waiting.pop(name)
        if only is not None and name != only:
            results[name] = {"result": "success", "outputs": {}}
            continue
        result, outputs = run_job(run, name, job, base)
        results[name] = {"result": result, "outputs": outputs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true", help="print what would run, run nothing")
    parser.add_argument("--only", metavar="FILE[:JOB]", help="one workflow, or one of its jobs")
    parser.add_argument("--event", help="event to stand in for (default: pull_request, else push, else schedule)")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that one step may take")
    options = parser.parse_args()
    file, _, job = (options.only or "").partition(":")
    paths = [FOLDER / file] if file else sorted(FOLDER.glob("*.yml"))
    with tempfile.TemporaryDirectory(prefix="moelab-workflows-") as folder:
        lines: list[Line] = []
        for path in paths:
            run = Run("", options.plan, options.limit, Path(folder) / path.stem)
            run.workspace.mkdir(parents=True)
            run_workflow(path, options.event, job or None, run)
            if run.event == "workflow_run" and all(line.state == "skipped" for line in run.lines):
                run.lines.clear()
                run.after = "pull_request"
                run_workflow(path, options.event, job or None, run)
            lines += run.lines
    count = {
        state: sum(line.state == state for line in lines) for state in ("ok", "would run", "failed", "could not run")
    }
    print(", ".join(f"{number} {state}" for state, number in count.items() if number or state == "failed"))
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
