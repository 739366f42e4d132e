#!/usr/bin/env python3
"""Writes dockerfiles/lock/*.txt: every Python package of the images with its hashes, per architecture. Needs uv.

    ci/images_lock.py [--find-links FOLDER]     FOLDER: wheels that the index does not carry (torch's CPU build)

The extras of pyproject.toml decide what is in them, ci/constraints.txt (where there) which versions. On x86-64 torch is
the CPU build by its full local version: its hash is the same wherever the wheel is fetched from. On Arm it is the last
version whose wheel on the package index is a CPU build; newer ones there need CUDA's libraries to be imported.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "dockerfiles" / "lock"
PYTHON = "3.11"  # of Debian 12
PLATFORMS = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
TORCH = {"amd64": "torch==2.13.0+cpu", "arm64": "torch==2.10.0"}
HEAD = "# Written by ci/images_lock.py: do not edit.\n"
BUILD = ("nox", "pip", "setuptools", "wheel", "uv")


def requirements(extras: list[str]) -> list[str]:
    """Direct requirements of the project with some extras; those that name the project itself are followed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    found, open_extras = list(project["dependencies"]), list(extras)
    while open_extras:
        for line in optional[open_extras.pop()]:
            if line.startswith("moelab["):
                open_extras += line[len("moelab[") : line.index("]")].split(",")
            elif not line.startswith("torch"):
                found.append(line)
    return found


def compile_lock(lines: list[str], platform: str | None, target: Path, options: list[str]) -> None:
    """One lock file, by uv; without a platform for every one."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    constraints = ROOT / "ci" / "constraints.txt"
    where = ["--universal"] if platform is None else ["--python-platform", platform]
    with tempfile.TemporaryDirectory() as folder:
        listing, output = Path(folder) / "in.txt", Path(folder) / "out.txt"
        listing.write_text("\n".join(lines) + "\n")
        if constraints.exists():  # torch's line there is for another kind of installation
            kept = [line for line in constraints.read_text().splitlines() if not line.startswith("torch")]
            (Path(folder) / "constraints.txt").write_text("\n".join(kept) + "\n")
            options = [*options, "--constraint", f"{folder}/constraints.txt"]
        subprocess.run(
            [uv, "pip", "compile", "-q", "--no-header", "--no-annotate", "--generate-hashes", "--no-emit-index-url",
             "--no-emit-find-links", "--only-binary", ":all:", "--python-version", PYTHON, *where, *options,
             "--output-file", str(output), str(listing)], check=True)  # fmt: skip
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(HEAD + output.read_text())


def names(path: Path) -> set[str]:
    """Packages in a lock file, `name==version`."""
    lines = path.read_text().splitlines()
    return {line.split()[0] for line in lines if "==" in line and not line.startswith((" ", "#"))}


def subtract(path: Path, other: Path) -> None:
    """Leaves in `path` only the packages that `other` has not."""
    kept, keep, had = [HEAD.rstrip()], False, names(other)
    for line in path.read_text().splitlines()[1:]:
        if not line.startswith(" "):
            keep = line.split()[0] not in had
        if keep:
            kept.append(line)
    path.write_text("\n".join(kept) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--find-links", metavar="FOLDER")
    folder: str | None = parser.parse_args().find_links
    backend = pyproject_build_requirements()
    compile_lock([*BUILD, *backend], None, LOCK / "build.txt", [])
    for architecture, platform in PLATFORMS.items():
        options = []
        if architecture == "amd64":
            options = ["--find-links", folder] if folder else ["--torch-backend", "cpu"]
        lab, test = LOCK / f"lab-{architecture}.txt", LOCK / f"test-{architecture}.txt"
        runtime = [*requirements(["bench", "bf16"]), TORCH[architecture]]
        compile_lock(runtime, platform, lab, options)
        pinned = [f"{name}" for name in sorted(names(lab)) if not name.startswith("torch==")]
        compile_lock([*requirements(["test"]), TORCH[architecture], *pinned], platform, test, options)
        subtract(test, lab)
    return 0


def pyproject_build_requirements() -> list[str]:
    """What builds the wheel."""
    wanted: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return wanted


if __name__ == "__main__":
    sys.exit(main())
