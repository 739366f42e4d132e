"""Base images made from Debian packages, for machines that reach no image registry.

They stand in for the pinned base image of the Dockerfile: same release, same slim set of files, but the packages of
today and of the mirror that this machine uses. The result is a tar per architecture; the bake file adds it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from images_engine import SOURCES

# What debian:*-slim leaves out.
NOT_WANTED = ("doc", "man", "locale", "info", "groff", "lintian", "linda")
ARCHITECTURES = ("amd64", "arm64")


def sources() -> str:
    """The machine's Debian sources without comments: a comment with a dated snapshot would be taken for a pin."""
    return "\n".join(line for line in SOURCES.read_text().splitlines() if not line.startswith("#")) + "\n"


def command(architecture: str, listing: Path, target: Path) -> list[str]:
    """mmdebstrap's command line for one architecture."""
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in NOT_WANTED]
    return [
        "mmdebstrap", "--quiet", "--variant=minbase", f"--architectures={architecture}",
        "--include=usr-is-merged", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        *excluded, "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        "--aptopt=Apt::Install-Recommends false",
        "--customize-hook=rm -rf $1/var/cache/apt/* $1/var/log/* $1/var/cache/ldconfig/aux-cache",
        "bookworm", str(target), str(listing),
    ]  # fmt: skip


def make(folder: Path, epoch: int) -> None:
    """Writes base-amd64.tar and base-arm64.tar; both at once, since each mostly waits. Unpacked in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    memory = Path("/dev/shm")  # noqa: S108 - the folder made in it has a random name
    with tempfile.TemporaryDirectory(prefix="moelab-base-", dir=memory if memory.is_dir() else None) as scratch:
        listing = Path(scratch) / "debian.sources"
        listing.write_text(sources())
        Path(scratch).chmod(0o755)
        env = {**os.environ, "TMPDIR": scratch, "SOURCE_DATE_EPOCH": str(epoch)}
        running = {}
        for architecture in ARCHITECTURES:
            line = command(architecture, listing, folder / f"base-{architecture}.tar")
            running[architecture] = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for architecture, process in running.items():
            output = process.communicate()[0].decode(errors="replace")
            if process.returncode:
                raise RuntimeError(f"mmdebstrap for {architecture} failed:\n{output[-2000:]}")
