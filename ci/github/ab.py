#!/usr/bin/env python3
"""One runner's A/B, the checked-out revision against $BASE: ab.py OUT OPTIONS, those of `nox -s ab`.

NAME and EXPECT come from the job's matrix. Leaves OUT/NAME.json. A verdict of "slower" is not a failure here: the gate
judges all runners together.
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


def main() -> int:
    """Runs `nox -s ab`; exit status 1 only where it leaves no result."""
    target, extra = Path(sys.argv[1]).resolve(), sys.argv[2:]
    base, name = os.environ.get("BASE", ""), os.environ.get("NAME", "local")
    if not re.fullmatch(r"[0-9a-f]{7,40}", base):
        print(f"ab: BASE is {base!r}, expected a commit", file=sys.stderr)
        return 2
    expect = ["--expect", os.environ["EXPECT"]] if os.environ.get("EXPECT") else []
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = ["./ci/lab", "ab", base, *extra, *expect, "--out", folder]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        results = sorted(Path(folder).rglob("result.json"))
        if results:
            shutil.copy2(results[0], target / f"{name}.json")
        print(f"ab: exit status {status}, {'a' if results else 'no'} result file")
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
