"""`moelab ab BASE`: builds another revision of the kernels and times both, interleaved, in one run.

Two runs one after the other compare two moments of the machine as well; here every round has both revisions in it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moelab import bench_command, provenance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", metavar="BASE", help="revision to compare the installed kernels with")
    bench_command.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """As `bench`; besides 1 where this revision is surely slower than BASE."""
    root = provenance.repository()
    if root is None:
        print("moelab ab: works in a clone of the repository only", file=sys.stderr)
        return bench_command.USAGE
    try:
        with revision(root, arguments.base) as (label, folder):
            base = f"moelab@{label}={folder}"
            arguments.backend = tuple(dict.fromkeys(("moelab", base, *(arguments.backend or ()))))
            arguments.baseline = base
            status, document = bench_command.measure(arguments)
    except subprocess.CalledProcessError as error:
        print(f"moelab ab: {arguments.base} could not be built: {error}", file=sys.stderr)
        return bench_command.USAGE
    slower = [] if document is None else surely_slower(document)
    for case in slower:
        print(f"slower than {arguments.base}: {case}")
    return status or int(bool(slower))


def surely_slower(document: dict[str, Any]) -> list[str]:
    """Cases in which this revision is slower than the other, corrected for their number. Undecided never counts."""
    return [
        entry["extra_info"]["case"]["id"]
        for entry in document["benchmarks"]
        if entry["extra_info"]["backend"]["label"] == "moelab"
        and (entry["extra_info"]["verdict"] or {}).get("table") == "slower"
    ]


@contextmanager
def revision(root: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Short commit of a revision and a folder with its moelab_kernels, for as long as the context lasts."""
    git = ["git", "-C", str(root)]
    commit = subprocess.run(
        [*git, "rev-parse", "--verify", f"{name}^{{commit}}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="moelab-ab-") as scratch:
        tree, site, only = (Path(scratch) / part for part in ("tree", "site", "only"))
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
            subprocess.run([*pip, "--target", str(site), str(tree)], check=True)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)
        only.mkdir()
        (only / "moelab_kernels").symlink_to(site / "moelab_kernels")  # and not that revision's harness
        yield commit[:12], only
