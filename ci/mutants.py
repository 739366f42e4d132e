"""Can the tests fail? Known faults are put into the kernels one at a time; each must be caught by a test.

    python ci/mutants.py [--sample N --seed S] [--only NAME,...] [--arch native|aarch64|all] [--build DIR] [--jobs N]
    python ci/mutants.py --check       only: does each mutant still fit the sources?

A mutant of kernels/tests/mutants.toml changes one text of one file. Only the object that holds it is compiled again and
linked with the others of an ordinary build; the test that should catch it runs first, the rest of the quick tests only
if it does not. Survivors are printed and make the exit status 1: each is a hole in the tests. A mutant of an
instruction set that this machine can neither run nor emulate is reported as not runnable here, never as caught.

A sample is drawn from the mutants that can run here, by a seed that is the commit's unless given: every revision tries
others, and the same revision the same ones.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH hides this folder
import arm_tools

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "kernels" / "src"
TABLE = ROOT / "kernels" / "tests" / "mutants.toml"
# A mutant that hangs is caught too, by the time it takes: many times what the unchanged kernels need.
SECONDS_PER_TEST = {"native": 120, "aarch64": 600}
SECONDS_PER_RUN = {"native": 240, "aarch64": 1200}


@dataclass(frozen=True)
class Mutant:
    """One fault: `old` becomes `new` in `file`; `unit` is the source that is compiled, `isa` where it shows."""

    name: str
    file: str
    unit: str
    isa: str
    filter: str
    old: str
    new: str
    arch: str = "native"
    quick: bool = True  # False: it shows only in a case that the quick tests leave out

    def problem(self) -> str | None:
        """Why this mutant no longer fits the sources, or None."""
        count = (SOURCES / self.file).read_text(encoding="utf-8").count(self.old)
        return None if count == 1 else f"{self.name}: its text occurs {count} times in {self.file}; expected once"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: the tests that failed on it, or "" for a survivor."""

    mutant: Mutant
    caught_by: str
    seconds: float


def load() -> list[Mutant]:
    with TABLE.open("rb") as file:
        return [Mutant(**entry) for entry in tomllib.load(file)["mutant"]]


class Build:
    """An ordinary build of moelab_tests, whose objects are linked again with one of them replaced."""

    def __init__(self, folder: Path, arch: str, jobs: int) -> None:
        folder = folder.resolve()
        self.folder = folder / arch
        self.arch = arch
        self.runner: list[str] = []
        # A copy, so that work on the sources meanwhile does not mix two states of them.
        copied = folder / "kernels"
        shutil.copytree(ROOT / "kernels", copied, dirs_exist_ok=True)
        self.sources = copied / "src"
        command = ["cmake", "-S", str(copied), "-B", str(self.folder), "-DMOELAB_TESTS=ON"]
        if shutil.which("ninja"):
            command += ["-G", "Ninja"]
        if arch == "aarch64" and platform.machine() != "aarch64":
            toolchain = ROOT / "kernels" / "cmake" / "aarch64-linux-gnu.cmake"
            openmp = output("aarch64-linux-gnu-g++", "-print-file-name=libgomp.a")
            command += [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", f"-DOpenMP_gomp_LIBRARY={openmp}"]
            command += ["-DCMAKE_EXE_LINKER_FLAGS=-static"]
            self.runner = [shutil.which("qemu-aarch64-static") or "qemu-aarch64", "-cpu", "max"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        build = ["cmake", "--build", str(self.folder), "--target", "moelab_tests", "-j", str(jobs)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        entries = json.loads((self.folder / "compile_commands.json").read_text(encoding="utf-8"))
        self.compile = {Path(entry["file"]): shlex.split(entry["command"]) for entry in entries}
        objects = self.folder / "CMakeFiles" / "moelab_objects.dir" / "src"
        tests = self.folder / "tests" / "CMakeFiles" / "moelab_tests.dir"
        self.kernel_objects = {path.relative_to(objects): path for path in objects.rglob("*.o")}
        self.test_objects = list(tests.glob("*.o"))
        self.compiler = self.compile[self.sources / "route.cpp"][0]
        self.static = ["-static"] if self.runner else []

    def mutate(self, mutant: Mutant, scratch: Path) -> Path:
        """The test program with the mutant in it."""
        sources = scratch / "src"
        shutil.copytree(self.sources, sources)
        changed = sources / mutant.file
        changed.write_text(changed.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        command = [word.replace(str(self.sources), str(sources)) for word in self.compile[self.sources / mutant.unit]]
        replaced = scratch / "mutant.o"
        command[command.index("-o") + 1] = str(replaced)
        subprocess.run([*command, "-w", "-O2"], check=True, cwd=self.folder)
        unit = Path(mutant.unit + ".o")
        others = [str(path) for name, path in self.kernel_objects.items() if name != unit]
        program = scratch / "moelab_tests"
        link = [
            self.compiler,
            *self.static,
            *map(str, self.test_objects),
            str(replaced),
            *others,
            "-fopenmp",
            "-pthread",
            "-Wl,--wrap=moelab_alloc",
            "-Wl,--wrap=moelab_free",
        ]
        subprocess.run([*link, "-o", str(program)], check=True, stderr=subprocess.DEVNULL)
        return program

    def failures(self, program: Path, mutant: Mutant, *options: str) -> str:
        """The tests that fail, shortened; empty if none does."""
        isa = ["--isa", mutant.isa] if mutant.isa else []
        quick = ["--quick"] if mutant.quick else []
        command = [*self.runner, str(program), *quick, "--timeout", str(SECONDS_PER_TEST[self.arch]), *isa, *options]
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        try:
            limit = SECONDS_PER_RUN[self.arch]
            result = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=limit, env=environment
            )
        except subprocess.TimeoutExpired:
            return "a test that does not end"
        if result.returncode == 0:
            return ""
        names = re.findall(r"^FAIL ([\w./]+)", result.stdout, re.MULTILINE)
        if not names:
            raise RuntimeError(f"{mutant.name}: exit status {result.returncode}, no test failed: {result.stderr}")
        first = names[0] + " (timeout)" * ("TIMEOUT" in result.stdout)
        return first + (f" and {len(names) - 1} more" if len(names) > 1 else "")

    def judge(self, mutant: Mutant) -> Verdict:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="moelab-mutant-") as folder:
            program = self.mutate(mutant, Path(folder))
            caught = self.failures(program, mutant, "--filter", mutant.filter)
            if not caught and mutant.quick:
                caught = self.failures(program, mutant)
                caught = caught and f"{caught} (not by {mutant.filter})"
        return Verdict(mutant, caught, time.monotonic() - start)


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def usable(arch: str) -> str | None:
    """Why mutants of an architecture cannot run here, or None. Installs the cross compiler and QEMU where it may."""
    return None if arch == "native" or platform.machine() == "aarch64" else arm_tools.install()


def split_by_machine(mutants: list[Mutant], build: Build) -> tuple[list[Mutant], list[Mutant]]:
    """Those whose instruction set this machine can run or emulate, and the others."""
    listed = output(*build.runner, str(build.folder / "tests" / "moelab_tests"), "--list")
    here = set(re.findall(r"/(\w+)$", listed, re.MULTILINE))
    runnable = [mutant for mutant in mutants if not mutant.isa or mutant.isa in here]
    return runnable, [mutant for mutant in mutants if mutant not in runnable]


def run(mutants: list[Mutant], build: Build, arguments: argparse.Namespace) -> list[Verdict]:
    # A test that fails without a mutant would seem to catch it: all of those that are asked must pass first.
    unchanged = Mutant("unchanged", "", "", "", "", "", "", build.arch)
    asked = ",".join(sorted({mutant.filter for mutant in mutants if mutant.quick}))
    if asked and (failing := build.failures(build.folder / "tests" / "moelab_tests", unchanged, "--filter", asked)):
        raise SystemExit(f"the unchanged kernels fail already: {failing}")
    verdicts = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for verdict in pool.map(build.judge, mutants):
            name, caught = verdict.mutant.name, verdict.caught_by
            print(f"{'caught' if caught else 'SURVIVED':9} {name}: {caught} ({verdict.seconds:.0f} s)", flush=True)
            verdicts.append(verdict)
    return verdicts


def commit() -> str:
    """The revision, as the seed of a sample; "unknown" outside a checkout."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], check=False, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip() or "unknown"


def arguments_of_the_command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="this many, chosen by --seed (default: all)")
    parser.add_argument("--seed", default=None, help="any text (default: the commit)")
    parser.add_argument("--only", help="comma-separated names")
    parser.add_argument("--arch", choices=("native", "aarch64", "all"), default="all")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--check", action="store_true", help="only whether every mutant fits the sources")
    arguments = parser.parse_args()
    arguments.seed = arguments.seed or commit()
    return arguments


def named(mutants: list[Mutant], only: str | None) -> list[Mutant]:
    """What --only leaves."""
    if not only:
        return mutants
    wanted = set(only.split(","))
    if unknown := wanted - {mutant.name for mutant in mutants}:
        raise SystemExit(f"--only: no mutant is called {', '.join(sorted(unknown))}")
    return [mutant for mutant in mutants if mutant.name in wanted]


def sampled(mutants: list[Mutant], arguments: argparse.Namespace) -> list[Mutant]:
    """What --sample leaves, by name."""
    if arguments.sample is None:
        return mutants
    chosen = random.Random(arguments.seed).sample(mutants, min(arguments.sample, len(mutants)))  # noqa: S311
    print(f"{len(chosen)} of {len(mutants)} mutants, by the seed {arguments.seed}", flush=True)
    return sorted(chosen, key=lambda mutant: mutant.name)


@dataclass
class Plan:
    """What a run will try: per architecture its build and its mutants, and what cannot run here or was not drawn."""

    chosen: dict[str, tuple[Build, list[Mutant]]]
    not_here: list[Mutant]
    not_drawn: int


def plan(mutants: list[Mutant], arguments: argparse.Namespace) -> Plan:
    """Builds what is needed to know which mutants can run here, and draws the sample."""
    builds: dict[str, Build] = {}
    candidates: list[Mutant] = []
    not_here: list[Mutant] = []
    for arch in ("native", "aarch64") if arguments.arch == "all" else (arguments.arch,):
        mine = [mutant for mutant in mutants if mutant.arch == arch]
        if not mine:
            continue
        if reason := usable(arch):
            print(f"\n!!! {len(mine)} mutants of {arch} DID NOT RUN: {reason}\n")
            if os.environ.get("CI") == "true":
                raise SystemExit(1)
            not_here += mine
            continue
        builds[arch] = Build(arguments.build, arch, arguments.jobs)
        runnable, others = split_by_machine(mine, builds[arch])
        candidates += runnable
        not_here += others
    drawn = sampled(candidates, arguments)
    chosen = {arch: (build, [mutant for mutant in drawn if mutant.arch == arch]) for arch, build in builds.items()}
    return Plan(chosen, not_here, len(candidates) - len(drawn))


def main() -> int:
    arguments = arguments_of_the_command_line()
    mutants = load()
    if problems := [problem for mutant in mutants if (problem := mutant.problem())]:
        print("\n".join(problems))
        return 1
    if arguments.check:
        print(f"{len(mutants)} mutants fit the sources")
        return 0
    planned = plan(named(mutants, arguments.only), arguments)
    for mutant in planned.not_here:
        print(f"not here  {mutant.name}: nothing here runs {mutant.isa}", flush=True)
    verdicts = [verdict for build, mine in planned.chosen.values() if mine for verdict in run(mine, build, arguments)]
    survivors = [verdict.mutant.name for verdict in verdicts if not verdict.caught_by]
    print(
        f"mutants: {len(verdicts) - len(survivors)} caught, {len(survivors)} survived, "
        f"{len(planned.not_here)} not runnable here, {planned.not_drawn} not in the sample"
    )
    if survivors:
        print("survivors: " + ", ".join(survivors))
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
