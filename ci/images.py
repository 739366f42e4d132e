#!/usr/bin/env python3
"""Builds the images for both architectures without a registry, twice, and runs them: `nox -s images`.

    python ci/images.py [--once] [--base local|public] [--keep FOLDER]

An engine that runs already is used; else one is started (root, Debian 12; see images_engine.py) and stopped again, with
nothing left behind. Where neither works, one line says why; with CI=true that is a failure. Needs the docker SDK.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH hides this folder
import images_base
import images_build
import images_engine
import images_lock
import images_runs as runs
from images_archive import Archive
from images_build import Offline
from images_engine import Engine, NoEngineError

PLATFORMS = ("linux/amd64", "linux/arm64")
NATIVE = "linux/amd64"
TARGETS = ("lab", "test")
QUICK_CASE = ("--workload", "tiny", "--tokens", "1,16", "--backend", "moelab,torch_loop", "--budget", "20")
# Python tests of the kernels and of the oracle, which need nothing but the installed packages.
NATIVE_TESTS = ("test_face_*.py", "test_numpy_layer.py", "test_oracle.py", "test_bounds.py")
REDUCED = ("--quick", "--timeout", "120")


class Clock:
    """Prints what each step took."""

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """One step."""
        start = time.monotonic()
        print(f"images: {title} …", flush=True)
        yield
        print(f"images: {title}: {time.monotonic() - start:.0f} s", flush=True)


@contextlib.contextmanager
def engine_for(home: Path, clock: Clock) -> Iterator[tuple[Engine, bool]]:
    """An engine, and whether it is ours. NoEngineError where none can be had."""
    found = images_engine.running()
    if found is not None:
        if not found.multi:
            raise NoEngineError(
                "the Docker engine here keeps one architecture per tag: turn on its containerd image store "
                '({"features": {"containerd-snapshotter": true}} in daemon.json)'
            )
        yield found, False
        return
    if os.geteuid() != 0:
        raise NoEngineError("no Docker engine runs here, and only root could start one")
    with clock.step("install an engine"):
        images_engine.install()
    with images_engine.emulation(), images_engine.started(home) as own:
        yield own, True


def wheels_folder(scratch: Path) -> Path:
    """A folder with torch's CPU build, if pip as it is configured here finds one; else empty.

    The package index lacks it, and torch's own index, where the build takes it from otherwise, may be out of reach.
    """
    target = scratch / "wheels"
    target.mkdir()
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--timeout", "15", "--retries", "1",
         "--no-deps", "--only-binary", ":all:", "--python-version", images_lock.PYTHON,
         "--platform", "manylinux_2_28_x86_64", "--dest", str(target), images_lock.TORCH["amd64"]],
        check=False, capture_output=True,
    )  # fmt: skip
    return target


def offline_for(scratch: Path, clock: Clock) -> Offline:
    """Local stand-ins for the registry."""
    with clock.step("base images from Debian packages"):
        images_base.make(scratch / "base", images_build.commit_time())
    pipconf = scratch / "pip.conf"
    pipconf.write_text("[global]\ntimeout = 180\nretries = 10\n")
    return Offline(scratch / "base", wheels_folder(scratch), pipconf)


def build(engine: Engine, offline: Offline | None, scratch: Path, clock: Clock, *, twice: bool) -> str:
    """Builds all targets, and with `twice` lab without a cache, which must give the same layers; lab's digest."""
    log, first, second = scratch / "bake.log", scratch / "lab.tar", scratch / "again.tar"
    with clock.step(f"build {', '.join(TARGETS)} for {', '.join(PLATFORMS)}"):
        images_build.bake(engine, TARGETS, PLATFORMS, offline, archive=first, log=log)
    with clock.step(f"build ab for {NATIVE}"):  # the other takes a minute more under emulation and shows no more
        images_build.bake(engine, ("ab",), (NATIVE,), offline, archive=first, log=log)
    with clock.step("load lab"):
        images_build.load(engine, first)
    lab = Archive(first)
    sizes = ", ".join(f"{platform} {size / 1e6:.0f} MB" for platform, size in lab.sizes().items())
    print(f"images: lab {lab.digest}: {sizes} to transfer")
    if twice:
        with clock.step("build lab again without a cache, with provenance"):
            images_build.bake(engine, ("lab",), PLATFORMS, offline, again=True, attest=True, archive=second, log=log)
        compare(lab, Archive(second))
        second.unlink()
    return lab.digest


def compare(first: Archive, second: Archive) -> None:
    """Two builds of one commit have the same layers; the second also says for each platform how it was built."""
    if first.layers() != second.layers():
        raise runs.CheckError(f"two builds differ in their layers:\n{first.layers()}\n{second.layers()}")
    same = first.manifests() == second.manifests()
    print(f"images: two builds gave the same layers{' and manifests' if same else ', other manifests'}")
    attached = second.provenance()
    if set(attached) != set(PLATFORMS) or not all(p.get("buildConfig") for p in attached.values()):
        raise runs.CheckError(f"provenance is attached for {sorted(attached)}, expected {', '.join(PLATFORMS)}")
    print(f"images: provenance attached for {', '.join(sorted(attached))}")


def clone_for_container(folder: Path) -> str:
    """A clone of this repository's HEAD, and the user (`uid:gid`) that it belongs to: never root."""
    subprocess.run(["git", "clone", "--quiet", str(images_build.ROOT), str(folder)], check=True)
    uid, gid = (os.geteuid(), os.getegid()) if os.geteuid() else (10001, 10001)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{uid}:{gid}", str(folder)], check=True)
    return f"{uid}:{gid}"


def run_all(engine: Engine, digest: str, scratch: Path) -> runs.Runner:
    """Runs both architectures."""
    import docker  # only the session `images` has it

    runner = runs.Runner(docker.DockerClient(base_url=engine.url, timeout=900))
    lab, test = "moelab:lab", "moelab:test"
    runs.self_check(runner, lab, "linux/amd64")
    runs.lean(runner, lab, "linux/amd64")
    runs.limits(runner, lab)
    runs.cpp_tests(runner, test, "linux/amd64", None, ["--timeout", "300"])
    files = [p for pattern in NATIVE_TESTS for p in sorted((images_build.ROOT / "tests").glob(pattern))]
    runs.python_tests(runner, test, "linux/amd64", None, [f"tests/{p.name}" for p in files])
    runs.quick_bench(runner, lab, digest, scratch / "results", QUICK_CASE)
    runs.with_compilers(runner, "moelab:ab", scratch, clone_for_container(scratch / "src"))
    runs.refuses_to_time(runner, lab)
    for core in runs.CORES:
        runs.self_check(runner, lab, "linux/arm64", core)
        runs.cpp_tests(runner, test, "linux/arm64", core, REDUCED)
    for core in runs.WITHOUT_BF16:
        runs.refuses_missing_isa(runner, lab, core)
    return runner


def main() -> int:
    """Builds, compares, runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", action="store_true", help="build once: do not show that two builds are the same")
    parser.add_argument("--base", choices=("local", "public"), help="default: local with an engine of our own")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy the bench's result and the build log there")
    options = parser.parse_args()
    clock, began = Clock(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="moelab-images-") as folder:
        scratch = Path(folder)
        scratch.chmod(0o755)  # containers' users look into it
        try:
            with engine_for(scratch / "engine", clock) as (engine, own):
                local = options.base == "local" or (options.base is None and own)
                offline = offline_for(scratch, clock) if local else None
                digest = build(engine, offline, scratch, clock, twice=not options.once)
                with clock.step("run"):
                    runner = run_all(engine, digest, scratch)
        except NoEngineError as error:
            print(f"images: not built: {error}")
            return 1 if os.environ.get("CI") == "true" else 0
        except (runs.CheckError, RuntimeError) as error:
            print(f"images: {error}", file=sys.stderr)
            return 1
        finally:
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                for path in (scratch / "bake.log", scratch / "results" / "out" / "result.json"):
                    if path.exists():
                        shutil.copy2(path, options.keep)
        print(f"images: {len(runner.done)} checks passed, {time.monotonic() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine is stopped and its traces removed
    sys.exit(main())
