"""`moelab history`: how speeds moved over committed results, and where they jumped."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from moelab import history
from moelab.e2e.document import is_e2e
from moelab.text_table import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("reports/evidence"), metavar="FOLDER",
        help="result files, in folders below it too; default reports/evidence",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """0, whatever moved; 2 where the folder holds something that is no result."""
    try:
        all_series = history.series_of(path for path in arguments.folder.rglob("*.json") if not is_e2e(path))
        found = [step for series in all_series for step in history.steps(series)]
    except ValueError as error:
        print(f"moelab history: {error}", file=sys.stderr)
        return 2
    except ImportError:
        print("moelab history: needs ruptures (pip install ruptures), which finds the steps", file=sys.stderr)
        return 2
    if not all_series:
        print(f"no results in {arguments.folder}")
        return 0
    rows = [
        [s.cpu, s.case, s.label, str(len(s.points)), f"{s.points[0].value:.2f}", f"{s.points[-1].value:.2f}"]
        for s in sorted(all_series, key=lambda s: (s.cpu, s.case, s.label))
    ]
    print(table(["CPU", "case", "backend", "results", "first", "last"], rows))
    for step in found:
        print(
            f"step: {step.series.cpu}, {step.series.case}, {step.series.label}: "
            f"{step.before:.3f} to {step.after:.3f} at {step.point.commit} ({step.point.date}, {step.point.file})"
        )
    return 0
