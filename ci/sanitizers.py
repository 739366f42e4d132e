"""The C++ tests under sanitizers, the fuzzer, valgrind, and the check of the baseline.

    python ci/sanitizers.py [--only asan,tsan,fuzz,valgrind,baseline] [--build DIR] [--fuzz-seconds N] [--jobs N]

Needs clang with its OpenMP runtime and sanitizers, and valgrind; installs them with apt where it may. A tool that is
missing is an error in CI (CI=true) and a loud line elsewhere.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH hides this folder
import system_packages

ROOT = Path(__file__).resolve().parent.parent
FUZZ_CORPUS = ROOT / "kernels" / "tests" / "fuzz" / "corpus"
# Emulated processors without AVX, and with AVX2 alone: the instruction sets that they can run, best first.
OLD_CPUS = {"Nehalem": "scalar", "Haswell": "avx2,scalar"}
# Two processors are shared with whatever else runs: spinning threads would wait for each other's time slices.
PASSIVE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


class MissingToolError(Exception):
    """A tool is not installed."""

    def __init__(self, what: str, *packages: str) -> None:
        super().__init__(what)
        self.packages = packages


def tool(name: str) -> str:
    """Path of a program that has the name of its package."""
    if found := shutil.which(name):
        return found
    raise MissingToolError(name, name)


def clang() -> str:
    """The newest clang that has its own OpenMP runtime, Archer and the sanitizers' runtimes installed."""
    for name in ["clang++", *(f"clang++-{version}" for version in range(30, 13, -1))]:
        found = shutil.which(name)
        if found and all(beside(found, library).exists() for library in ("libomp.so", "libarcher.so")):
            resources = subprocess.run([found, "-print-resource-dir"], check=True, capture_output=True, text=True)
            if list(Path(resources.stdout.strip()).rglob("libclang_rt.asan*.a")):
                return found
    # llvm: the symbolizer, for stacks with names.
    raise MissingToolError("clang with OpenMP and sanitizers", "clang", "libclang-rt-dev", "libomp-dev", "llvm")


def beside(compiler: str, library: str) -> Path:
    """Where a library that belongs to a clang lies."""
    return Path(os.path.realpath(compiler)).parent.parent / "lib" / library


def build(folder: Path, target: str, jobs: int, compiler: str, *options: str) -> None:
    """Configures and builds one target of kernels/ with a compiler."""
    command = [
        "cmake",
        "--fresh",
        "-S",
        str(ROOT / "kernels"),
        "-B",
        str(folder),
        "-DCMAKE_BUILD_TYPE=Release",
        *options,
    ]
    if shutil.which("ninja"):
        command += ["-G", "Ninja"]
    env = {**os.environ, "CXX": compiler, "CC": compiler.replace("clang++", "clang").replace("g++", "gcc")}
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["cmake", "--build", str(folder), "--target", target, "-j", str(jobs)], check=True, stdout=subprocess.DEVNULL
    )


def run(command: list[str], telling: str = "", **environment: str) -> None:
    """Runs it and prints its last line that begins with `telling`; all of its output where it fails."""
    done = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **PASSIVE, **environment},
    )
    if done.returncode != 0:
        print(done.stdout, flush=True)
        raise subprocess.CalledProcessError(done.returncode, command)
    lines = [line for line in done.stdout.strip().splitlines() if line.startswith(telling)]
    print("\n".join(lines[-1:]), flush=True)


def asan(arguments: argparse.Namespace) -> None:
    """Addresses and undefined behaviour: all quick tests, every instruction set of this CPU."""
    folder = arguments.build / "asan"
    flags = "-DCMAKE_CXX_FLAGS=-O1 -fno-sanitize-recover=all -DMOELAB_SANITIZED"
    build(
        folder,
        "moelab_tests",
        arguments.jobs,
        clang(),
        "-DMOELAB_TESTS=ON",
        "-DMOELAB_SANITIZE=address,undefined",
        flags,
    )
    # The probe of memory bandwidth and the masked children are timing and environment, not addresses.
    tests = str(folder / "tests" / "moelab_tests")
    run(
        [tests, "--quick", "--skip", "probes"],
        ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1",
        LSAN_OPTIONS=f"suppressions={ROOT / 'kernels' / 'tests' / 'lsan.supp'}:print_suppressions=0",
        UBSAN_OPTIONS="print_stacktrace=1",
    )


def tsan(arguments: argparse.Namespace) -> None:
    """Races, with clang's OpenMP runtime and Archer: everything that runs on several threads."""
    compiler = clang()
    folder = arguments.build / "tsan"
    # Archer tells ThreadSanitizer about OpenMP's synchronisation; without it every barrier looks like a race.
    archer = beside(compiler, "libarcher.so")
    flags = "-DCMAKE_CXX_FLAGS=-O1 -DMOELAB_SANITIZED"
    build(folder, "moelab_tests", arguments.jobs, compiler, "-DMOELAB_TESTS=ON", "-DMOELAB_SANITIZE=thread", flags)
    tests = str(folder / "tests" / "moelab_tests")
    run(
        [
            tests,
            "--quick",
            "--filter",
            "invariance,sizes.random,ids.both,packing.round_trip_of_types,grid.swigluoai,damage.any",
            "--timeout",
            "600",
        ],
        OMP_TOOL_LIBRARIES=str(archer),
        TSAN_OPTIONS="ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66",
        ARCHER_OPTIONS="verbose=1",
    )


def fuzz(arguments: argparse.Namespace) -> None:
    """Coverage-guided fuzzing of the C interface for a fixed time, from the committed corpus."""
    folder = arguments.build / "fuzz"
    flags = "-DCMAKE_CXX_FLAGS=-O1 -fno-sanitize-recover=all"
    sanitizers = "-DMOELAB_SANITIZE=fuzzer-no-link,address,undefined"
    build(folder, "moelab_fuzz", arguments.jobs, clang(), "-DMOELAB_FUZZ=ON", sanitizers, flags)
    found = folder / "found"  # new inputs go here, not into the repository
    found.mkdir(exist_ok=True)
    run(
        [
            str(folder / "tests" / "fuzz" / "moelab_fuzz"),
            f"-max_total_time={arguments.fuzz_seconds}",
            "-max_len=600",
            "-len_control=20",
            "-verbosity=0",
            "-print_final_stats=1",
            f"-artifact_prefix={folder}/",
            str(found),
            str(FUZZ_CORPUS),
        ],
        telling="stat::number_of_executed_units",
        OMP_NUM_THREADS="1",  # the reference's own loops; calls ask for 1 to 3
        ASAN_OPTIONS="detect_leaks=0",
    )


def valgrind(arguments: argparse.Namespace) -> None:
    """Uninitialised values in the scalar path and the driver."""
    folder = arguments.build / "valgrind"
    checker = tool("valgrind")
    compiler = tool("g++")
    build(folder, "moelab_tests", arguments.jobs, compiler, "-DMOELAB_TESTS=ON", "-DCMAKE_CXX_FLAGS=-g")
    tests = str(folder / "tests" / "moelab_tests")
    selected = "sizes.everything,sizes.more,sizes.experts,ids.minus,ids.both,packing.interleaved,router_weight.on_input"
    run(
        [checker, "--error-exitcode=65", "--quiet", tests, "--quick", "--isa", "scalar", "--filter", selected],
        OMP_NUM_THREADS="1",
    )


def baseline(arguments: argparse.Namespace) -> None:
    """Nothing above the baseline before CPU detection: read from the objects, and run on CPUs that lack the rest."""
    folder = arguments.build / "baseline"
    build(folder, "moelab_tests", arguments.jobs, tool("g++"), "-DMOELAB_TESTS=ON")
    run([sys.executable, str(ROOT / "ci" / "baseline.py"), str(folder)])
    if platform.machine() != "x86_64":
        return  # ci/arm.py emulates the Arm cores
    if not (emulator := shutil.which("qemu-x86_64")):
        raise MissingToolError("qemu-x86_64", "qemu-user")
    for cpu, isas in OLD_CPUS.items():
        tests = str(folder / "tests" / "moelab_tests")
        command = [emulator, "-cpu", cpu, tests, "--quick", "--filter", "isa.,sizes.everything,ids.out_of_range"]
        run(command, MOELAB_EXPECTED_ISAS=isas, OMP_NUM_THREADS="2")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "baseline": baseline,
    "asan": asan,
    "tsan": tsan,
    "fuzz": fuzz,
    "valgrind": valgrind,
}


def run_part(name: str, arguments: argparse.Namespace) -> None:
    """A part; what it needs is installed on the way, where that is possible. Raises MissingToolError otherwise."""
    try:
        PARTS[name](arguments)
    except MissingToolError as error:
        if reason := system_packages.install(error.packages):
            how = system_packages.by_hand(error.packages)
            raise MissingToolError(f"{error} is missing ({reason}). {how}") from error
        PARTS[name](arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated parts (default: all)")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "sanitizers", help="folder for the builds")
    parser.add_argument("--fuzz-seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    selected = arguments.only.split(",")
    if unknown := sorted(set(selected) - set(PARTS)):
        parser.error(f"--only {', '.join(unknown)}: expected some of {', '.join(PARTS)}")
    failed = []
    for name in selected:
        start = time.monotonic()
        try:
            run_part(name, arguments)
            outcome = "passed"
        except MissingToolError as error:
            print(f"\n!!! {name} DID NOT RUN: {error}\n", flush=True)
            outcome = "not run"
        except subprocess.CalledProcessError as error:
            outcome = f"FAILED (exit status {error.returncode})"
        print(f"{name}: {outcome}, {time.monotonic() - start:.0f} s", flush=True)
        if "FAILED" in outcome or (outcome == "not run" and os.environ.get("CI") == "true"):
            failed.append(name)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
