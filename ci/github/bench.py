#!/usr/bin/env python3
"""One runner's measurement: bench.py OUT OPTIONS, those of `moelab bench`.

NAME and EXPECT come from the job's matrix, INPUT_WORKLOAD, INPUT_TOKENS and INPUT_BACKEND from a manual start; they are
arguments of a process, never part of a shell's line. Leaves OUT/NAME.json and adds the report to the job's summary.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INPUT = re.compile(r"[A-Za-z0-9,._:/-]*")


def options(environment: dict[str, str]) -> list[str]:
    """Options of `bench` from the environment; ValueError for one that holds anything but a list of names."""
    found = []
    for name, option in (("WORKLOAD", "--workload"), ("TOKENS", "--tokens"), ("BACKEND", "--backend")):
        value = environment.get(f"INPUT_{name}", "").strip()
        if not INPUT.fullmatch(value):
            raise ValueError(f"{option} is {value!r}, expected names separated by commas")
        if value:
            found += [option, value]
    if environment.get("EXPECT"):
        found += ["--expect", environment["EXPECT"]]
    return found


def main() -> int:
    target, extra = Path(sys.argv[1]).resolve(), sys.argv[2:]
    name = os.environ.get("NAME", "local")
    try:
        chosen = options(dict(os.environ))
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = ["./ci/lab", "bench", *extra, *chosen, "--out", folder]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        result = Path(folder) / "result.json"
        if result.exists():
            shutil.copy2(result, target / f"{name}.json")
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        for page in sorted((Path(folder) / "report").glob("*.md"))[:1]:
            if summary:
                with Path(summary).open("a", encoding="utf-8") as out:
                    out.write(page.read_text())
    return status


if __name__ == "__main__":
    sys.exit(main())
