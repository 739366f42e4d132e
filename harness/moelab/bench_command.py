"""`moelab bench`: runs the suite under pytest, then writes the report and prints what came out."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moelab import checkpoint, expect, machine, options, provenance, results
from moelab.backend_loading import described
from moelab.backends import environments
from moelab.plan import Plan
from moelab.text_table import table

WRONG = 1
USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_to(parser.add_argument)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to put result.json and report/")
    parser.add_argument("--no-report", action="store_true", help="the result file alone")
    parser.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="go on with the interrupted run in that folder; no other options"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: all outputs right and no measurement broken; 1 otherwise; 2 for wrong options or machine."""
    return measure(arguments)[0]


def measure(arguments: argparse.Namespace) -> tuple[int, dict[str, Any] | None]:
    """The exit status and the result document; None where nothing was measured."""
    going_on = arguments.resume is not None
    try:
        if going_on:
            arguments = resumed(arguments)
        plan = checked_plan(arguments)
    except ValueError as error:
        print(f"moelab bench: {error}", file=sys.stderr)
        return USAGE, None
    folder = (arguments.out or default_folder()).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    record = folder / checkpoint.NAME
    if not going_on:
        record.unlink(missing_ok=True)
    fetch_peers(plan)
    status = _run_suite(options.arguments_of(vars(arguments).__getitem__), result)
    if status in (0, WRONG):  # through to the end
        record.unlink(missing_ok=True)
    elif record.exists():
        print(f"moelab bench: interrupted; to go on: bench --resume {folder}", file=sys.stderr)
    if not result.exists():
        print("moelab bench: nothing was measured, so there is no result file", file=sys.stderr)
        return status or WRONG, None
    document = results.load(result)
    print(summary(document))
    print(f"result: {result}")
    if not arguments.no_report:
        from moelab.report import write_report  # needs matplotlib

        written = write_report([result], folder / "report")
        print(f"report: {written.markdown}")
        print(f"report: {written.html}")
    return status or (WRONG if document["moelab"]["broken"] else 0), document


def checked_plan(arguments: argparse.Namespace) -> Plan:
    """What the options ask for. ValueError where one is wrong, or the machine is not the one that was expected."""
    plan = options.plan_of(vars(arguments).__getitem__)
    facts: Any = machine.gather()
    if arguments.expect and (unmet := expect.unmet(expect.parse(arguments.expect), facts)):
        raise ValueError("not the machine that was expected: " + "; ".join(unmet))
    if facts["emulated"] and not arguments.emulated:
        raise ValueError("instructions are emulated here; a time would mean nothing, none is taken")
    return plan


def resumed(arguments: argparse.Namespace) -> argparse.Namespace:
    """The options of the interrupted run in the folder; ValueError where it cannot be gone on with."""
    given = options.arguments_of(vars(arguments).__getitem__)
    if given or arguments.out is not None:
        raise ValueError(f"--resume {arguments.resume}: takes the options of that run, expected no others: {given}")
    folder = arguments.resume.resolve()
    before = checkpoint.read(folder / checkpoint.NAME)
    facts: Any = machine.gather()
    if changed := checkpoint.differences(before.identity, checkpoint.identity(facts)):
        raise ValueError(f"--resume {folder}: another run's part can follow, not this one's: {'; '.join(changed)}")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    again = parser.parse_args(before.arguments)
    again.out, again.no_report = folder, arguments.no_report
    print(f"moelab bench: going on after {', '.join(before.measured)}", file=sys.stderr)
    return again


def _run_suite(arguments: list[str], result: Path) -> int:
    """pytest with our plugin in a process of its own; its exit status."""
    suite = Path(__file__).with_name("suite.py")
    root = provenance.repository()
    if root is not None and (root / "harness/benchmarks").is_dir():
        suite = root / "harness/benchmarks"
    forwarded = [f"--moelab-{part[2:]}" if part.startswith("--") else part for part in arguments]
    command = [
        *(sys.executable, "-m", "pytest", "-p", "moelab.plugin", "-p", "no:cacheprovider", "-c", "/dev/null"),
        *("--rootdir", str(suite.parent), "--import-mode=importlib", "-s", "-q", "--no-header", "-rfE"),
        *("--benchmark-quiet", "--benchmark-json", str(result), *forwarded),
        *("--moelab-record", str(result.with_name(checkpoint.NAME)), str(suite)),
    ]
    # The oracle works on several experts at once: threads inside each product would only get in each other's way.
    with subprocess.Popen(command, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}) as suite_process:
        before = signal.signal(signal.SIGTERM, lambda *_: suite_process.terminate())
        try:
            return suite_process.wait()
        except KeyboardInterrupt:  # at a terminal the suite has got it too, and ends its workers
            try:
                return suite_process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                suite_process.terminate()
                return suite_process.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


def fetch_peers(plan: Plan) -> None:
    """Libraries of the peers that the plan names. What cannot be had is reported by its backend as unavailable."""
    for name in dict.fromkeys(described(backend, plan.threads).environment for backend in plan.backends):
        if name not in environments.RECIPES or environments.missing(name) is None:
            continue
        try:
            environments.create(name, lambda text: print(text, file=sys.stderr, flush=True))
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)


def default_folder() -> Path:
    """results/ in the repository or else here; named by time and CPU."""
    base = (provenance.repository() or Path()) / "results"
    facts: Any = machine.gather()
    name = "".join(c if c.isalnum() else "-" for c in facts["cpu"]["part"].lower()).strip("-")
    return base / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}"


def summary(document: dict[str, Any]) -> str:
    """The table of a result: time, ratio to the baseline, percent of the roof and verdict of every cell."""
    block = document["moelab"]
    rows = []
    for entry in document["benchmarks"]:
        info = entry["extra_info"]
        if info["backend"]["role"] == "control":
            continue
        ratio, verdict, roof = info["ratio"], info["verdict"], info["roofline"]
        rows.append(
            [
                info["case"]["id"],
                info["backend"]["label"],
                f"{info['time']['median'] * 1e3:.4g}",
                "1" if ratio is None else f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
                "" if roof["fraction"] is None else f"{roof['fraction']:.0%} of {roof['limit']}",
                "baseline" if info["backend"]["role"] == "baseline" else (verdict or {}).get("table", ""),
            ]
        )
    header = ["case", "backend", "ms", f"speed / {block['run']['baseline']}", "roof", "verdict"]
    lines = [table(header, rows)] if rows else []
    lines += [
        f"{m['backend']}: {m['value']:.2f} times {m['baseline']} in the geometric mean of {m['cells']} cells "
        f"({m['faster']} faster, {m['slower']} slower, {m['same']} same, {m['undecided']} undecided)"
        for m in block["geomeans"]
    ]
    seen = sorted(
        e["extra_info"]["ratio"]["minimum_detectable"] for e in document["benchmarks"] if e["extra_info"]["ratio"]
    )
    if seen:
        lines.append(
            f"smallest difference that this run could see, four times in five: {seen[len(seen) // 2]:.0%} in the "
            f"median cell, {seen[0]:.0%} to {seen[-1]:.0%}"
        )
    unstable = [cell["case"] for cell in block["cells"] if cell["control"] and not cell["control"]["inside_margin"]]
    if unstable:
        lines.append(
            f"A/A control: {len(unstable)} of {len(block['cells'])} cells cannot tell 2 % on this machine in this time"
        )
    lines += [
        f"{m['backend'] or 'all'} {m['case'] or m['workload'] or ''}: {m['kind']}: {m['reason']}"
        for m in block["missing"]
    ]
    lines += [f"BROKEN {b['backend']} {b['case']}: {b['reason']}" for b in block["broken"]]
    return "\n".join(lines)
