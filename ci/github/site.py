#!/usr/bin/env python3
"""Builds the site that Pages serves, from every machine's results: site.py ARCHIVE OUT.

The newest result of each runner on the branch `results` (checked out at ARCHIVE) and the evidence committed in
reports/evidence; where both have the machine, the newer one. Beside them the instruction counts and the predictions.
Calls `nox -s report`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# No measurements; the report gives each a page that says so.
BESIDE = ("reports/counts.json", "reports/predictions.json")


def taken(path: Path) -> str:
    """When a result was taken (ISO 8601); empty where the file does not say."""
    try:
        return str(json.loads(path.read_text()).get("datetime", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def chosen(archive: Path, evidence: Path) -> list[Path]:
    """Newest file of each runner in the archive, and all of the evidence."""
    newest = [
        max(sorted(folder.glob("*.json")), key=taken)
        for folder in sorted((archive / "results").glob("*"))
        if folder.is_dir() and any(folder.glob("*.json"))
    ]
    return newest + sorted(p for p in evidence.rglob("*.json") if p.name != "index.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    files = chosen(options.archive.resolve(), ROOT / "reports" / "evidence")
    if not files:
        print("site: no result files, neither on the branch `results` nor in reports/evidence", file=sys.stderr)
        return 1
    command = ["./ci/lab", "report", *map(str, files), *BESIDE, "--out", str(options.out.resolve())]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    # 1: a result holds a broken measurement, which the site shows; the site itself is there.
    built = any(options.out.glob("*.html"))
    return 0 if built and status in (0, 1) else status or 1


if __name__ == "__main__":
    sys.exit(main())
