#!/usr/bin/env python3
"""Writes the results in README.md, and the index in reports/evidence, from the result files in reports/evidence.

With --check it writes nothing and fails where they are not current. Needs the project's environment.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from moelab.report import ReportError
from moelab.report.readme import compose, outdated

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where something is not current")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    arguments = parser.parse_args()
    try:
        wanted = compose(arguments.root)
    except ReportError as error:
        print(f"readme_results: {error}", file=sys.stderr)
        return 1
    stale = outdated(arguments.root, wanted)
    if not arguments.check:
        for name in stale:
            path = arguments.root / name
            if name in wanted.files:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(wanted.files[name], encoding="utf-8")
            else:
                path.unlink()
        print("written: " + ", ".join(stale) if stale else "nothing to do")
        return 0
    if stale:
        print(f"not current: {', '.join(stale)}; run ci/readme_results.py and commit", file=sys.stderr)
        return 1
    print("current")
    return 0


if __name__ == "__main__":
    sys.exit(main())
