#!/usr/bin/env python3
"""Adds result files to the branch `results`, from which the site is published.

archive.py FOLDER: every *.json under FOLDER becomes results/<runner>/<commit>.json in one commit on a branch that holds
nothing else, pushed to origin. A file that is no result file is refused by name, and nothing is pushed then. On main
alone. The commit is put together from objects: no work tree but the checked-out one is touched.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BRANCH = "results"
LIMIT = 20_000_000  # bytes; raw samples of the full grid take a few hundred thousand
TRIES = 3
IDENTITY = {"GIT_AUTHOR_NAME": "moelab", "GIT_COMMITTER_NAME": "moelab",
            "GIT_AUTHOR_EMAIL": "moelab@users.noreply.github.com",
            "GIT_COMMITTER_EMAIL": "moelab@users.noreply.github.com"}  # fmt: skip


def git(*arguments: str, env: dict[str, str] | None = None) -> str | None:
    """Output of a git command; None where it fails."""
    done = subprocess.run(
        ["git", *arguments], check=False, capture_output=True, text=True, env={**os.environ, **(env or {})}
    )
    return done.stdout.strip() if done.returncode == 0 else None


def need(answer: str | None, what: str) -> str:
    """The answer of a git command that must not fail."""
    if answer is None:
        raise RuntimeError(f"git: {what} failed")
    return answer


def read_result(path: Path) -> tuple[str, str]:
    """Runner name (from the file's name) and commit of a result; ValueError when the file is none."""
    if path.stat().st_size > LIMIT:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, at most {LIMIT} are archived")
    document = json.loads(path.read_text())
    block = document.get("moelab") if isinstance(document, dict) else None
    if not isinstance(block, dict) or not isinstance(document.get("benchmarks"), list):
        raise ValueError(f"{path.name} is no moelab result file")  # noqa: TRY004 - of a file, not of an argument
    source = block.get("source")
    commit = str(source.get("commit") if isinstance(source, dict) else "")
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError(f"{path.name}: its commit is {commit!r}, expected 40 hex digits")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,39}", path.stem):
        raise ValueError(f"{path.name}: expected a runner's name")
    return path.stem, commit


def commit_on(parent: str | None, files: list[tuple[Path, str, str]]) -> str | None:
    """A commit that adds the files to `parent`; None where they are all there already."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        if parent is not None:
            need(git("read-tree", parent, env=index), "read-tree")
        for path, name, commit in files:
            blob = need(git("hash-object", "-w", str(path)), "hash-object")
            entry = f"100644,{blob},results/{name}/{commit}.json"
            need(git("update-index", "--add", "--cacheinfo", entry, env=index), "update-index")
        tree = need(git("write-tree", env=index), "write-tree")
    if parent is not None and tree == git("rev-parse", f"{parent}^{{tree}}"):
        return None
    above = ["-p", parent] if parent is not None else []
    return need(git("commit-tree", tree, *above, "-m", f"Results of {files[0][2][:12]}", env=IDENTITY), "commit-tree")


def push(files: list[tuple[Path, str, str]]) -> str:
    """Pushes the files; anew where another job's push came in between. What happened, in words."""
    for _ in range(TRIES):
        known = git("fetch", "-q", "--depth=1", "origin", BRANCH) is not None
        commit = commit_on(git("rev-parse", "FETCH_HEAD") if known else None, files)
        if commit is None:
            return "nothing new"
        if git("push", "-q", "origin", f"{commit}:refs/heads/{BRANCH}") is not None:
            return f"{len(files)} result files on branch {BRANCH}"
    raise RuntimeError(f"branch {BRANCH} could not be pushed in {TRIES} tries")


def main() -> int:
    """Archives the files of a folder; exit status 1 and one line where it does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    ref = os.environ.get("GITHUB_REF", "refs/heads/main")
    try:
        files = [(path, *read_result(path)) for path in sorted(folder.rglob("*.json"))]
        if ref == "refs/heads/main" and files:
            print(f"archive: {push(files)}")
            return 0
    except (ValueError, RuntimeError) as error:
        print(f"archive: {error}", file=sys.stderr)
        return 1
    print("archive: " + (f"no result files under {folder}" if not files else f"{ref} is not main"), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
