#!/usr/bin/env python3
"""The Arm suite: the kernels' inner loops as built, their C++ tests and numpy tests on 64-bit Arm.

    python ci/arm.py                  cross-compiled and emulated on x86-64, native on Arm
    python ci/arm.py --setup-only     only get the tools, the arm64 root and the build (ci images, cache warm-up)
    python ci/arm.py --cpu neoverse-n1 --cpu max,sve=off
    python ci/arm.py --list           the CPUs and what runs on each

Elsewhere than on Arm it needs a cross compiler and QEMU (Debian: g++-aarch64-linux-gnu, qemu-user), which it installs
with apt where it may, and an arm64 root with Python, which it makes in .arm/ from Debian packages without running
anything emulated. Without them it says loudly that the suite did not run; with CI=true that is a failure.
No time measured here means anything: the emulator is no Arm core.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH hides this folder
from arm_loops import check_build
from arm_root import RootError, make_root, make_site, python_of
from arm_tools import install, install_clangs, not_run, say

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".arm"
NUMPY_TESTS = "tests/test_numpy_layer.py"

# A part of the C++ tests: every tile, every row count, the cut among threads.
PART = "sizes.tokens_of_one_expert,invariance.number_of_threads,grid.silu,chain"


@dataclass(frozen=True)
class Cpu:
    """An emulated CPU: the instruction sets it must offer, and the C++ tests to run, as options of moelab_tests."""

    name: str
    isas: tuple[str, ...]
    cpp: tuple[tuple[str, ...], ...]
    numpy: bool = False
    environment: tuple[tuple[str, str], ...] = ()


# Which instruction sets there are, what is refused and how, that SVE vectors of any length give NEON's bits, and
# everything that belongs to no instruction set.
ANY = ("--filter", "isa.,vector_length.,partition.,chain.models,arguments.the_message,arguments.memory")

FALLBACK = ("neon", "scalar")
SVE = ("sve_bf16", "neon_bf16", *FALLBACK)
ANY_LENGTH = (("MOELAB_SVE_ANY_LENGTH", "1"),)
CPUS = (
    Cpu("max,sve=off", ("neon_bf16", *FALLBACK), (("--isa", "neon_bf16"), ANY), numpy=True),
    # No BF16: the kernel that needs it must be refused, and the fallback must pass.
    Cpu("neoverse-n1", FALLBACK, (("--isa", "neon"), ("--isa", "scalar", "--filter", PART), ANY), numpy=True),
    Cpu("cortex-a76", FALLBACK, (("--isa", "neon", "--filter", PART), ANY), numpy=True),
    Cpu("cortex-a72", FALLBACK, (("--isa", "neon", "--filter", PART), ANY)),
    Cpu("a64fx", FALLBACK, (("--isa", "neon", "--filter", PART), ANY)),  # SVE of 512 bits, no BF16
    # Vectors of 512 bits, as QEMU has them by default: both BFMMLA kernels, and the same bits from both.
    Cpu("max", SVE, (("--isa", "sve_bf16"), ("--isa", "neon_bf16", "--filter", PART), ANY)),
    Cpu("max,sve256=on", SVE, (("--isa", "sve_bf16"), ANY), numpy=True),
    Cpu("max,sve-default-vector-length=256", SVE, (("--isa", "sve_bf16", "--filter", PART), ANY)),  # bytes
    # 128 bits: not the choice there, and refused by name; right all the same.
    Cpu("max,sve128=on", ("neon_bf16", *FALLBACK), (ANY,)),
    Cpu("max,sve128=on", SVE, (("--isa", "sve_bf16", "--filter", PART), ANY), environment=ANY_LENGTH),
    Cpu("max,sve384=on", ("neon_bf16", *FALLBACK), (ANY,)),  # a width that no panel can have
)


@dataclass(frozen=True)
class Machine:
    """How programs of the target run here. `root` None: no arm64 Python, so no numpy tests."""

    build: Path
    emulator: tuple[str, ...]
    libraries: Path | None
    root: Path | None
    site: Path | None

    def command(self, program: Path, *arguments: str) -> list[str]:
        prefix = [*self.emulator, "-L", str(self.libraries)] if self.libraries else []
        return [*prefix, str(program), *arguments]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        for cpu in CPUS:
            print(f"{cpu.name}: {', '.join(cpu.isas)}; {len(cpu.cpp)} C++ runs{', numpy tests' * cpu.numpy}")
        return 0
    native = options.native or platform.machine() == "aarch64"
    if not native:
        missing = install()
        if missing:
            return not_run(missing)
    try:
        machine = native_machine() if native else emulated_machine()
    except (RootError, subprocess.CalledProcessError) as error:
        return not_run(str(error))
    build(machine.build, "-DMOELAB_TESTS=ON", cross=not native)
    if options.setup_only:
        install_clangs()
        say("set up")
        return 0
    loops = inner_loops(machine)
    jobs = native_jobs(machine) if native else emulated_jobs(machine, options.cpu)
    if options.json:
        jobs = with_results(jobs, options.json)
    jobs.insert(0, Job("baseline", [sys.executable, str(ROOT / "ci" / "baseline.py"), str(machine.build)], {}))
    return run_all(jobs, 1 if native else options.jobs) or loops


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup-only", action="store_true", help="get the tools, the root and the build, run nothing")
    parser.add_argument("--native", action="store_true", help="no emulator (the default on aarch64)")
    parser.add_argument("--cpu", action="append", metavar="NAME", choices=sorted({cpu.name for cpu in CPUS}))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="emulators at a time")
    parser.add_argument("--list", action="store_true", help="the CPUs and what runs on each")
    parser.add_argument("--json", type=Path, metavar="DIR", help="write the results of the C++ tests there")
    return parser.parse_args(arguments)


def native_machine() -> Machine:
    return Machine(FOLDER / "native", (), None, None, None)


def emulated_machine() -> Machine:
    FOLDER.mkdir(exist_ok=True)
    root = make_root(FOLDER)
    site = make_site(FOLDER, root, ROOT / "ci" / "constraints.txt")
    return Machine(FOLDER / "build", ("qemu-aarch64",), root, root, site)


def build(folder: Path, *options: str, cross: bool = True, target: str = "all") -> None:
    """libmoelab.so and what the options ask for."""
    say(f"building {folder.relative_to(ROOT)}")
    configure = ["cmake", "-S", str(ROOT / "kernels"), "-B", str(folder), *options]
    if cross:
        configure.append(f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'kernels/cmake/aarch64-linux-gnu.cmake'}")
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    for command in (configure, ["cmake", "--build", str(folder), "--parallel", "--target", target]):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"arm: {' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")


def inner_loops(machine: Machine) -> int:
    """Reads the kernels' inner loops as built, here and by other compilers; the exit status."""
    wrong = 0
    for name, problems in check_build(machine.build, install_clangs()).items():
        say(f"inner loops of {name}: {'; '.join(problems) or 'as expected'}")
        wrong += len(problems)
    return 1 if wrong else 0


@dataclass(frozen=True)
class Job:
    """One process of the suite."""

    name: str
    command: list[str]
    environment: dict[str, str]


def emulated_jobs(machine: Machine, chosen: Sequence[str] | None) -> list[Job]:
    jobs = []
    for cpu in CPUS:
        if chosen and cpu.name not in chosen:
            continue
        # The prefix also as a variable: where the system starts Arm programs by itself, tests start themselves again.
        environment = {"QEMU_CPU": cpu.name, "QEMU_LD_PREFIX": str(machine.libraries), "OMP_NUM_THREADS": "2"}
        environment.update(cpu.environment)
        expected = {"MOELAB_EXPECTED_ISAS": ",".join(cpu.isas)}
        label = [cpu.name, *(f"{name}={value}" for name, value in cpu.environment)]
        for arguments in cpu.cpp:
            command = machine.command(machine.build / "tests" / "moelab_tests", "--quick", *arguments)
            jobs.append(Job(f"{' '.join(label)}: C++ {' '.join(arguments)}", command, {**environment, **expected}))
        if cpu.numpy and machine.root and machine.site:
            interpreter = python_of(machine.root)
            jobs.append(numpy_job(cpu.name, machine.command(interpreter), machine, environment, cpu.isas))
    return jobs


def with_results(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """The same jobs; those of the C++ tests write their results to files of the folder, which held none before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return [
        replace(job, command=[*job.command, "--json", str(folder / f"{number}.json")]) if ": C++" in job.name else job
        for number, job in enumerate(jobs)
    ]


def native_jobs(machine: Machine) -> list[Job]:
    """The whole suite as this machine is, then again without BF16, and the SVE kernel whatever the vector length."""
    tests = machine.build / "tests" / "moelab_tests"
    without = {"MOELAB_CPU_MASK": "bf16"}
    has_sve = "svebf16" in Path("/proc/cpuinfo").read_text()
    return [
        Job("C++", [str(tests)], {}),
        *([Job("C++ sve_bf16", [str(tests), "--isa", "sve_bf16"], dict(ANY_LENGTH))] if has_sve else []),
        Job("C++ without BF16", [str(tests), "--isa", "neon"], without),
        numpy_job("this CPU", [sys.executable], machine, {}, ()),
        numpy_job("without BF16", [sys.executable], machine, without, FALLBACK),
    ]


def numpy_job(
    name: str, python: list[str], machine: Machine, environment: dict[str, str], isas: tuple[str, ...]
) -> Job:
    paths = [*([machine.site] if machine.site else []), ROOT / "kernels", ROOT / "harness"]
    # A folder of its own for pytest's files: several run at a time.
    command = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "emulated", str(ROOT / NUMPY_TESTS)]
    variables = {
        **environment,
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MOELAB_LIBRARY": str(machine.build / "libmoelab.so"),
    }
    if isas:
        variables["MOELAB_EXPECTED_ISAS"] = ",".join(isas)
    return Job(f"{name}: numpy", command, variables)


def run_all(jobs: Sequence[Job], at_a_time: int) -> int:
    start = time.monotonic()
    with ThreadPoolExecutor(max_workers=at_a_time) as pool:
        failed = [job.name for job, ok in zip(jobs, pool.map(run_job, jobs), strict=True) if not ok]
    took = time.monotonic() - start
    say(f"FAILED: {'; '.join(failed)}" if failed else f"all {len(jobs)} runs passed in {took:.0f} s")
    return 1 if failed else 0


def run_job(job: Job) -> bool:
    """Prints one line, or the end of the output where it failed."""
    start = time.monotonic()
    done = subprocess.run(
        job.command,
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**clean_environment(), **job.environment},
    )
    lines = (done.stdout + done.stderr).strip().splitlines()
    verdict = "ok" if done.returncode == 0 else f"exit status {done.returncode}"
    say(f"{job.name}: {verdict}: {lines[-1] if lines else 'no output'} ({time.monotonic() - start:.0f} s)")
    if done.returncode != 0:
        print("\n".join(lines[-60:]), flush=True)
    return done.returncode == 0


def clean_environment() -> dict[str, str]:
    """Without what would change the kernels or the emulated Python."""
    dropped = ("MOELAB_", "PYTHON", "QEMU_", "OMP_", "GOMP_", "LD_", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


if __name__ == "__main__":
    sys.exit(main())
