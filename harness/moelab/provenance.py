"""Where a result comes from: revision, library, image and the command that repeats it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from moelab.revision_backend import PREFIX

Json = dict[str, object]
MOST_CHANGED = 50


def repository() -> Path | None:
    """Root of the git work tree that this package lies in; None for an installed wheel."""
    here = Path(__file__).resolve().parent
    answer = _git(here, "rev-parse", "--show-toplevel")
    return Path(answer) if answer and (Path(answer) / "kernels").is_dir() else None


def source() -> Json:
    """Commit of the work tree and what differs from it; of the build where this is an installed wheel."""
    root = repository()
    if root is None:
        built = build_info()
        commit = built.get("git_commit") or built.get("commit")
        return {"commit": str(commit) if commit else None, "dirty": None, "changed": [], "time": None}
    changed = (_git(root, "status", "--porcelain", "--untracked-files=normal") or "").splitlines()
    names = [line[3:] for line in changed]
    return {
        "commit": _git(root, "rev-parse", "HEAD"),
        "dirty": bool(names),
        "changed": names[:MOST_CHANGED],
        "time": _git(root, "show", "-s", "--format=%cI", "HEAD"),
    }


def build_info() -> Json:
    """moelab_kernels.build_info(); empty where the kernels are not installed."""
    try:
        import moelab_kernels as mk  # the harness also works without our kernels
    except ImportError:
        return {}
    return dict(mk.build_info())


def library(environments: list[Json]) -> Json:
    """What was built, and the SHA-256 of the library that the workers of `moelab` had loaded."""
    info = build_info()
    loaded = {
        str(lib["sha256"]) for e in environments if isinstance(lib := e.get("library"), dict) and lib.get("sha256")
    }
    if len(loaded) > 1:
        raise RuntimeError(f"workers loaded different builds of libmoelab: {', '.join(sorted(loaded))}")
    return {**info, "version": _text(info.get("version")), "build_id": next(iter(loaded), None)}


def image() -> str | None:
    """Digest of the container image. Images are given it at run time: a build cannot know its own digest."""
    return os.environ.get("MOELAB_IMAGE_DIGEST") or None


def command(arguments: list[str]) -> list[str]:
    """argv that repeats the run from the top of the repository; `arguments` are those of `bench`.

    A run against another revision had that built in a temporary folder: what repeats it is `ab` with the revision.
    """
    session, given = "bench", list(arguments)
    base = next((a for a in given if a.startswith(PREFIX)), None)  # as the baseline
    if base is not None:
        at = given.index("--baseline")
        del given[at : at + 2]
        given[given.index("--backend") + 1] = ",".join(
            name for name in given[given.index("--backend") + 1].split(",") if not name.startswith(PREFIX)
        )
        session, given = "ab", [base.removeprefix(PREFIX).partition("=")[0], *given]
    if repository() is not None:
        return ["nox", "-s", session, "--", *given]
    return ["python", "-m", "moelab", session, *given]


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.rstrip("\n") or None


def _text(value: object) -> str | None:
    return None if value is None else str(value)
