#!/usr/bin/env python3
"""Builds the kernels of two revisions and runs them interleaved in one bench: `nox -s ab -- BASE [options of bench]`.

BASE is any revision of this repository; the other side is the work tree as it is. Both are built in the same way, with
the same tools, into build/ab, and measured by the work tree's harness: only the kernels differ. Exit status 0: no case
surely slower than BASE; 1: one is; 2: it could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILDS = ROOT / "build" / "ab"
BACKENDS = '''"""Written by ci/ab.py: the kernels of two revisions as two backends, each in a process of its own."""

import os

from moelab.backends.moelab_backend import Moelab


class _Revision(Moelab):
    site: str

    def __init__(self) -> None:
        super().__init__()
        self.name = type(self).__name__

    def process_settings(self, threads: int) -> dict[str, str]:
        path = os.environ.get("PYTHONPATH", "")
        return {{**super().process_settings(threads), "PYTHONPATH": os.pathsep.join([self.site, {harness!r}, path])}}


class base(_Revision):
    environment = "ab-base"
    site = {base!r}


class head(_Revision):
    environment = "ab-head"
    site = {head!r}
'''


class AbError(RuntimeError):
    """The two revisions could not be measured; the message says why."""


def resolve(revision: str) -> str:
    """Commit of a revision. AbError where there is none."""
    if revision.startswith("-"):
        raise AbError(f"BASE is {revision!r}, expected a revision")
    done = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise AbError(f"BASE is {revision!r}, which is no revision of this repository (a shallow clone lacks most)")
    return done.stdout.strip()


def export(commit: str, folder: Path) -> Path:
    """The sources of a commit."""
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    archive = folder / "source.tar"
    subprocess.run(["git", "archive", "--output", str(archive), commit], cwd=ROOT, check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(source, filter="data")
    archive.unlink()
    return source


def build(source: Path, commit: str, folder: Path) -> Path:
    """A folder with the package moelab_kernels alone, built from `source`."""
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
               "--target", str(site), "--config-settings", f"build-dir={folder / 'cmake'}", str(source)]  # fmt: skip
    env = {**os.environ, "MOELAB_GIT_COMMIT": commit}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise AbError(f"{commit}: the build failed\n{(done.stderr or done.stdout)[-3000:]}")
    shutil.rmtree(site / "moelab", ignore_errors=True)  # one harness measures both
    return site


def verdicts(result: Path) -> list[str]:
    """Verdicts of the head against the base, one per case."""
    document = json.loads(result.read_text())
    found = (entry["extra_info"]["verdict"] for entry in document["benchmarks"])
    return [str(verdict["table"]) for verdict in found if verdict]


def main() -> int:
    """Builds both, measures, judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE")
    parser.add_argument("--out", type=Path, default=BUILDS / "result", metavar="FOLDER")
    options, bench = parser.parse_known_args()
    if any(re.match(r"--(backend|baseline)(=|$)", word) for word in bench):
        parser.error("--backend and --baseline are the two revisions here")
    try:
        commit = resolve(options.base)
        print(f"ab: building {commit[:12]} and the work tree", flush=True)
        old, new = BUILDS / "base", BUILDS / "head"
        base = build(export(commit, old), commit, old)
        head = build(ROOT, f"{resolve('HEAD')}+work-tree", new)
    except AbError as error:
        print(f"ab: {error}", file=sys.stderr)
        return 2
    file = BUILDS / "revisions.py"
    file.write_text(BACKENDS.format(base=str(base), head=str(head), harness=str(ROOT / "harness")))
    name = os.path.relpath(file)
    command = [sys.executable, "-m", "moelab", "bench", "--backend", f"{name}:base,{name}:head",
               "--baseline", f"{name}:base", "--out", str(options.out), *bench]  # fmt: skip
    status = subprocess.run(command, check=False, env={**os.environ, "MOELAB_AB": "1"}).returncode
    result = options.out / "result.json"
    if status or not result.exists():
        return 2
    found = verdicts(result)
    counts = ", ".join(f"{found.count(word)} {word}" for word in sorted(set(found)))
    print(f"ab: the work tree against {commit[:12]}: {counts or 'nothing measured'}")
    return 1 if "slower" in found else 0 if found else 2


if __name__ == "__main__":
    sys.exit(main())
