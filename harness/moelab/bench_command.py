"""`moelab bench`: runs the suite under pytest, then writes the report and prints what came out."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from moelab import expect, machine, options, provenance, results
from moelab.text_table import table

WRONG = 1
USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_to(parser.add_argument)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to put result.json and report/")
    parser.add_argument("--no-report", action="store_true", help="the result file alone")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: all outputs right and no measurement broken; 1 otherwise; 2 for wrong options or machine."""
    import pytest  # only this command needs it

    def value_of(name: str) -> Any:
        return getattr(arguments, name)

    try:
        options.plan_of(value_of)
        if arguments.expect:
            facts: Any = machine.gather()
            unmet = expect.unmet(expect.parse(arguments.expect), facts)
            if unmet:
                raise ValueError("not the machine that was expected: " + "; ".join(unmet))
    except ValueError as error:
        print(f"moelab bench: {error}", file=sys.stderr)
        return USAGE
    if machine.emulated() and not arguments.emulated:
        print("moelab bench: instructions are emulated here; a time would mean nothing, none is taken", file=sys.stderr)
        return USAGE
    folder = (arguments.out or default_folder()).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    suite = Path(__file__).with_name("suite.py")
    root = provenance.repository()
    if root is not None and (root / "harness/benchmarks").is_dir():
        suite = root / "harness/benchmarks"
    forwarded = [f"--moelab-{part[2:]}" if part.startswith("--") else part for part in options.arguments_of(value_of)]
    status = int(
        pytest.main(
            [
                *("-p", "moelab.plugin", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(suite.parent)),
                *("--import-mode=importlib", "-s", "-q", "--no-header", "-rfE", "--benchmark-quiet"),
                *("--benchmark-json", str(result), *forwarded, str(suite)),
            ]
        )
    )
    if not result.exists():
        print("moelab bench: nothing was measured, so there is no result file", file=sys.stderr)
        return status or WRONG
    document = results.load(result)
    print(summary(document))
    broken: Any = document["moelab"]
    if broken["broken"]:
        status = status or WRONG
    print(f"result: {result}")
    if not arguments.no_report:
        from moelab.report import write_report  # needs matplotlib

        written = write_report([result], folder / "report")
        print(f"report: {written.markdown}")
        print(f"report: {written.html}")
    return status


def default_folder() -> Path:
    """In the repository reports/results, elsewhere here; named by time and CPU."""
    root = provenance.repository()
    base = root / "reports/results" if root is not None else Path("moelab-results")
    facts: Any = machine.gather()
    name = "".join(c if c.isalnum() else "-" for c in facts["cpu"]["part"].lower()).strip("-")
    return base / f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{name}"


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
    for mean in block["geomeans"]:
        lines.append(
            f"{mean['backend']}: {mean['value']:.2f} times {mean['baseline']} in the geometric mean of {mean['cells']} cells "
            f"({mean['faster']} faster, {mean['slower']} slower, {mean['same']} same, {mean['undecided']} undecided)"
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
