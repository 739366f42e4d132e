#!/usr/bin/env python3
"""Pins of actions and base images: `check` (offline), `resolve` and `update` (ask the sources).

ci/pins.py check      every use in .github/ and dockerfiles/ is in ci/pins.toml with the same digest and version
ci/pins.py resolve    each version still names its digest at its source; writes the date into ci/pins.toml
ci/pins.py update     moves every pin to its newest release (images: the tag's present digest) and rewrites the uses
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "ci" / "pins.toml"
ACTION_USE = re.compile(r"uses:\s*(?P<name>[\w./-]+)@(?P<digest>\S+)(?:\s*#\s*(?P<version>\S+))?")
IMAGE_USE = re.compile(r"\b(?P<name>debian):(?P<version>[\w.-]+)@(?P<digest>sha256:[0-9a-f]+)")
RELEASE = re.compile(r"v?(\d+)\.(\d+)\.(\d+)$")


@dataclass(frozen=True)
class Pin:
    """One row of ci/pins.toml."""

    kind: str  # "action" or "image"
    name: str
    version: str
    digest: str
    seen_in: tuple[str, ...]
    verified: str


@dataclass(frozen=True)
class Use:
    """One place that names an action or image."""

    path: Path
    line: int
    name: str
    version: str | None
    digest: str


def read_table(path: Path = TABLE) -> list[Pin]:
    """Rows of the table; KeyError on a row that lacks a field."""
    table = tomllib.loads(path.read_text())
    return [
        Pin(kind, row["name"], row["version"], row["digest"], tuple(row["seen_in"]), row["verified"])
        for kind in ("action", "image")
        for row in table.get(kind, [])
    ]


def using_files(root: Path = ROOT) -> list[Path]:
    """Files in which a pin may be used."""
    workflows = sorted((root / ".github").rglob("*.yml"))
    images = [p for p in sorted((root / "dockerfiles").glob("*")) if p.is_file() and p.suffix != ".md"]
    return workflows + images


def uses(path: Path) -> list[Use]:
    """Uses in one file; local actions (./…) have nothing to pin."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        for pattern in (ACTION_USE, IMAGE_USE):
            found += [
                Use(path, number, m["name"], m["version"], m["digest"])
                for m in pattern.finditer(line)
                if not m["name"].startswith("./")
            ]
    return found


def problems(pins: list[Pin], places: list[Use]) -> list[str]:
    """One line per use that is not pinned as the table says, and per row that nothing uses."""
    by_name = {pin.name: pin for pin in pins}
    found = []
    for use in places:
        where, pin = f"{use.path}:{use.line}: {use.name}", by_name.get(use.name)
        if pin is None:
            found.append(f"{where} is not in ci/pins.toml")
        elif use.digest != pin.digest:
            found.append(f"{where} is at {use.digest}, ci/pins.toml says {pin.digest}")
        elif use.version != pin.version:
            found.append(f"{where} carries the version {use.version}, ci/pins.toml says {pin.version}")
    used = {use.name for use in places}
    found += [f"ci/pins.toml: nothing uses {pin.name}" for pin in pins if pin.name not in used]
    return found


def action_tags(name: str) -> dict[str, str]:
    """Release tags of an action's repository and their commits."""
    url = f"https://github.com/{'/'.join(name.split('/')[:2])}"
    done = subprocess.run(["git", "ls-remote", "--tags", url], capture_output=True, text=True, check=True, timeout=60)
    tags: dict[str, str] = {}
    for line in done.stdout.splitlines():
        commit, _, ref = line.partition("\t")
        tag = ref.removeprefix("refs/tags/")
        if tag.endswith("^{}"):  # an annotated tag: this line is its commit
            tags[tag[:-3]] = commit
        else:
            tags.setdefault(tag, commit)
    return tags


def image_digest(name: str, version: str) -> str:
    """Digest of the index that a tag names now."""
    done = subprocess.run(
        ["docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", f"{name}:{version}"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return str(json.loads(done.stdout)["digest"])


def newest(pin: Pin) -> Pin:
    """The pin at its newest release."""
    if pin.kind == "image":  # the dated tags of Debian sort by date; the moving tag tells the newest digest
        digest = image_digest(pin.name, re.sub(r"-\d{8}", "", pin.version))
        return pin if digest == pin.digest else Pin(pin.kind, pin.name, pin.version, digest, pin.seen_in, "")
    tags = {tag: commit for tag, commit in action_tags(pin.name).items() if RELEASE.match(tag)}
    best = max(tags, key=lambda tag: tuple(int(part) for part in RELEASE.match(tag).groups()))  # type: ignore[union-attr]
    return Pin(pin.kind, pin.name, best, tags[best], (f"tag {best} of {pin.name}",), "")


def rewrite(old: Pin, new: Pin, *, verified: str) -> None:
    """Moves the table and every use from `old` to `new`."""
    for path in [TABLE, *using_files()]:
        text = path.read_text()
        if path == TABLE:
            head, row, rest = text.partition(f'name = "{old.name}"\n')
            rest = rest.replace(f'version = "{old.version}"', f'version = "{new.version}"', 1)
            rest = rest.replace(old.digest, new.digest, 1)
            rest = re.sub(r'verified = "[^"]*"', f'verified = "{verified}"', rest, count=1)
            changed = head + row + rest
        else:
            changed = text.replace(
                f"{old.name}@{old.digest} # {old.version}", f"{new.name}@{new.digest} # {new.version}"
            )
            changed = changed.replace(
                f"{old.name}:{old.version}@{old.digest}", f"{new.name}:{new.version}@{new.digest}"
            )
        if changed != text:
            path.write_text(changed)


def check() -> int:
    """Compares uses and table; says which pins were never resolved against their source."""
    pins = read_table()
    found = problems(pins, [use for path in using_files() for use in uses(path)])
    for line in found:
        print(line)
    for pin in pins:
        if not pin.verified:
            print(f"not verified: {pin.name} {pin.version} {pin.digest} (seen in: {'; '.join(pin.seen_in)})")
    return 1 if found else 0


def resolve() -> int:
    """Asks each source for the digest of the pinned version."""
    status, today = 0, dt.datetime.now(tz=dt.UTC).date().isoformat()
    for pin in read_table():
        try:
            actual = (
                image_digest(pin.name, pin.version) if pin.kind == "image" else action_tags(pin.name).get(pin.version)
            )
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{pin.name}: source not reached ({type(error).__name__}); still not verified")
            status = 1
            continue
        if actual != pin.digest:
            print(f"{pin.name} {pin.version}: source says {actual}, ci/pins.toml says {pin.digest}")
            status = 1
            continue
        print(f"{pin.name} {pin.version}: as pinned")
        rewrite(pin, pin, verified=today)
    return status


def update() -> int:
    """Moves every pin to its newest release."""
    for pin in read_table():
        new = newest(pin)
        if new.digest != pin.digest:
            print(f"{pin.name}: {pin.version} -> {new.version} {new.digest}")
            rewrite(pin, new, verified=dt.datetime.now(tz=dt.UTC).date().isoformat())
    return check()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("check", "resolve", "update"))
    command: str = parser.parse_args().command
    return {"check": check, "resolve": resolve, "update": update}[command]()


if __name__ == "__main__":
    sys.exit(main())
