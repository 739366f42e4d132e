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
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILDS = ROOT / "build" / "ab"
# Python 3.11 learned to keep an archive inside its folder in 3.11.4; Debian 12 has 3.11.2.
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


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
        tar.extractall(source, **SAFELY)  # noqa: S202 - an archive of our own
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
    """Verdicts of the work tree against the base, one per case."""
    infos = [entry["extra_info"] for entry in json.loads(result.read_text())["benchmarks"]]
    return [str(i["verdict"]["table"]) for i in infos if i["backend"]["label"] == "moelab" and i["verdict"]]


def as_expected(expected: list[str]) -> bool:
    """Whether this is the machine that `--expect` asks for: to be known before anything is built."""
    command = [sys.executable, "-m", "moelab", "machine", "--json", *(f"--expect={text}" for text in expected)]
    return not expected or subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0


def main() -> int:
    """Builds both, measures, judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE")
    parser.add_argument("--out", type=Path, default=BUILDS / "result", metavar="FOLDER")
    parser.add_argument("--expect", metavar="KEY=VALUE,…")
    options, bench = parser.parse_known_args()
    if any(re.match(r"--(backend|baseline)(=|$)", word) for word in bench):
        parser.error("--backend and --baseline are the two revisions here")
    expected = [options.expect] if options.expect else []
    if not as_expected(expected):
        return 2
    try:
        commit = resolve(options.base)
        print(f"ab: building {commit[:12]} and the work tree", flush=True)
        old, new = BUILDS / "base", BUILDS / "head"
        base = build(export(commit, old), commit, old)
        head = build(ROOT, f"{resolve('HEAD')}+work-tree", new)
    except AbError as error:
        print(f"ab: {error}", file=sys.stderr)
        return 2
    other = f"moelab@{commit[:12]}={base}"
    command = [sys.executable, "-m", "moelab", "bench", "--backend", f"moelab,{other}", "--baseline", other,
               "--out", str(options.out), *(f"--expect={text}" for text in expected), *bench]  # fmt: skip
    status = subprocess.run(command, check=False, env=environment(head)).returncode
    result = options.out / "result.json"
    if status or not result.exists():
        return 2
    found = verdicts(result)
    counts = ", ".join(f"{found.count(word)} {word}" for word in sorted(set(found)))
    print(f"ab: the work tree against {commit[:12]}: {counts or 'nothing measured'}")
    return 1 if "slower" in found else 0 if found else 2


def environment(head: Path) -> dict[str, str]:
    """For the bench: `moelab` is the build of the work tree, its harness the work tree's."""
    path = os.pathsep.join([str(head), str(ROOT / "harness"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "MOELAB_LIBRARY": ""}


if __name__ == "__main__":
    sys.exit(main())
