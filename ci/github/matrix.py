#!/usr/bin/env python3
"""Which runners measure: writes `runners=[…]` to $GITHUB_OUTPUT, for `fromJSON` in a job's matrix.

MOELAB_RUNNERS (a variable of the repository) adds machines to, or replaces, GitHub's own; see ci/README.md:

    [{"name": "graviton4", "labels": ["self-hosted", "graviton4"], "expect": "cpu=neoverse-v2,features=bf16"}]

`expect` is the contract that `moelab bench --expect` checks before anything is measured. EVENT and FORK say what
started the workflow: code of a fork's pull request never reaches a self-hosted runner.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

GITHUB_RUNNERS: list[dict[str, Any]] = [
    {"name": "github-x86-64", "labels": ["ubuntu-24.04"], "expect": "arch=x86_64"},
    # GitHub has changed the CPU of a pool before: a core without BF16 would be another experiment.
    {"name": "github-arm64", "labels": ["ubuntu-24.04-arm"], "expect": "arch=aarch64,features=bf16"},
]
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
EXPECT = re.compile(r"[A-Za-z0-9=,+._/ -]{0,200}")


def check(entry: object) -> dict[str, Any]:
    """One entry, or ValueError that says what is wrong with it."""
    if not isinstance(entry, dict) or set(entry) != {"name", "labels", "expect"}:
        raise ValueError(f"runner {entry!r}: expected the keys name, labels, expect")
    name, labels, expect = entry["name"], entry["labels"], entry["expect"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"runner name {name!r}: expected lower-case letters, digits, dots and dashes, at most 40")
    if not isinstance(labels, list) or not labels or not all(isinstance(x, str) and LABEL.fullmatch(x) for x in labels):
        raise ValueError(f"labels of {name}: {labels!r}, expected a list of runner labels")
    if not isinstance(expect, str) or not EXPECT.fullmatch(expect):
        raise ValueError(f"expect of {name}: {expect!r}, expected key=value pairs like cpu=neoverse-n2,features=bf16")
    return {"name": name, "labels": labels, "expect": expect}


def runners(variable: str, *, event: str, fork: bool) -> list[dict[str, Any]]:
    """GitHub's own runners and those of the variable; an entry of the same name replaces GitHub's."""
    given = json.loads(variable) if variable.strip() else []
    if not isinstance(given, list):
        raise ValueError(f"MOELAB_RUNNERS is a {type(given).__name__}, expected a list")  # noqa: TRY004 - the variable's value
    entries = {entry["name"]: entry for entry in [*GITHUB_RUNNERS, *map(check, given)]}
    untrusted = event == "pull_request" and fork
    return [e for e in entries.values() if not (untrusted and "self-hosted" in e["labels"])]


def main() -> int:
    try:
        found = runners(
            os.environ.get("MOELAB_RUNNERS", ""),
            event=os.environ.get("EVENT", ""),
            fork=os.environ.get("FORK", "") == "true",
        )
    except ValueError as error:  # json.JSONDecodeError is one
        print(f"matrix: {error}", file=sys.stderr)
        return 1
    line = f"runners={json.dumps(found)}"
    print(line)
    if "GITHUB_OUTPUT" in os.environ:
        with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as out:
            out.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
