"""Builds libggml's CPU backend from the source archive of llama-cpp-python, for the machine it runs on."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LIBRARIES = ("libggml-base.so", "libggml-cpu.so", "libggml.so")
# Python 3.11 learned to keep an archive inside its folder in 3.11.4; Debian 12 has 3.11.2.
_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}

# One library for this machine's own instruction set: the archive's default of many variants is for distribution.
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "ON",
    "GGML_BACKEND_DL": "OFF",
    "GGML_CPU_ALL_VARIANTS": "OFF",
    "GGML_OPENMP": "ON",
    "GGML_CCACHE": "OFF",
    "GGML_BLAS": "OFF",
    "GGML_LLAMAFILE": "ON",  # as llama.cpp builds it
    "GGML_LTO": "OFF",
    "GGML_BUILD_TESTS": "OFF",
    "GGML_BUILD_EXAMPLES": "OFF",
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
}


def build_ggml(archive: Path, place: Path, say: Callable[[str], None]) -> Mapping[str, str]:
    """Puts `LIBRARIES` into `place`; returns how they were built. Raises RuntimeError with the tool's own words."""
    cmake = shutil.which("cmake")
    if cmake is None:
        raise RuntimeError("cmake is needed to build ggml: install it (Debian, Ubuntu: apt install cmake g++)")
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        source = _unpack(archive, Path(scratch))
        build = Path(scratch) / "build"
        options = [f"-D{name}={value}" for name, value in _OPTIONS.items()]
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        say(f"ggml: building {archive.name} for this machine (some minutes)")
        # As a part of a project: on its own it asks for files that the archive leaves out.
        project = f"cmake_minimum_required(VERSION 3.14)\nproject(peer C CXX)\nadd_subdirectory({source} ggml)\n"
        (Path(scratch) / "CMakeLists.txt").write_text(project)
        _run([cmake, "-S", scratch, "-B", str(build), *generator, *options])
        jobs = str(len(os.sched_getaffinity(0)))
        _run([cmake, "--build", str(build), "--parallel", jobs, "--target", "ggml"])
        made: dict[str, str] = {}
        for name in LIBRARIES:
            # Under its versioned names too: those are what the libraries ask each other for.
            for path in build.rglob(name + "*"):
                shutil.copyfile(path, place / path.name)
            if not (place / name).is_file():
                raise RuntimeError(f"the build of ggml left no {name}")
            made[name] = hashlib.sha256((place / name).read_bytes()).hexdigest()
        return made | _settings(source, build)


def _unpack(archive: Path, into: Path) -> Path:
    with tarfile.open(archive) as tar:
        wanted = [m for m in tar.getmembers() if "/vendor/llama.cpp/ggml/" in m.name]
        tar.extractall(into, members=wanted, **_SAFELY)  # noqa: S202 - its hash is known
    found = list(into.glob("*/vendor/llama.cpp/ggml"))
    if len(found) != 1:
        raise RuntimeError(f"{archive.name} holds no vendor/llama.cpp/ggml")
    return found[0]


def _settings(source: Path, build: Path) -> dict[str, str]:
    """Version and compiler of the build."""
    text = (source / "CMakeLists.txt").read_text()
    numbers = [re.search(rf"GGML_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    cache = (build / "CMakeCache.txt").read_text()
    compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)
    name = compiler[1] if compiler else "c++"
    version = subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]
    return {
        "ggml_version": ".".join(n[1] for n in numbers if n),
        "ggml_compiler": version,
        "ggml_options": " ".join(f"{k}={v}" for k, v in _OPTIONS.items() if k.startswith("GGML_")),
    }


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines()[-15:]
        raise RuntimeError(f"`{' '.join(command[:4])} ...` failed:\n" + "\n".join(words))
