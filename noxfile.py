"""The sessions of moelab. `nox` alone runs lint and tests; options after `--` go to the session."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2025.10.14"  # sessions that require others
nox.options.sessions = ["lint", "tests"]
nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "venv"  # pip and its configuration: uv does not read it
nox.options.error_on_external_run = True
nox.options.stop_on_first_error = True

ROOT = Path(__file__).resolve().parent
CONSTRAINTS = ROOT / "ci" / "constraints.txt"
CPP_TESTS = ROOT / "build" / "tests"
PROJECT: dict[str, Any] = nox.project.load_toml(ROOT / "pyproject.toml")

# The folder kernels/ at the root would hide the PyPI package of that name, which transformers looks for.
ENVIRONMENT = {"PYTHONSAFEPATH": "1"}
if os.environ.get("CI") == "true":
    ENVIRONMENT["MOELAB_BROWSER_REQUIRED"] = "1"  # a report that no browser has shown is not tested


def extras(*names: str) -> list[str]:
    """The requirements of some of the project's extras, without the project itself."""
    listed = PROJECT["project"]["optional-dependencies"]
    return [requirement for name in names for requirement in listed[name] if not requirement.startswith("moelab[")]


@contextmanager
def part(session: nox.Session, name: str) -> Iterator[None]:
    """Says how long a part of a session took."""
    start = time.monotonic()
    try:
        yield
    finally:
        session.log(f"{name}: {time.monotonic() - start:.0f} s")


def state_of_sources() -> str:
    """A digest of everything that decides what the environment contains; the commit is part of the library."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=ROOT,
        check=False,
        capture_output=True,
    ).stdout
    digest = hashlib.sha256(commit)
    files = [ROOT / "pyproject.toml", ROOT / "README.md", CONSTRAINTS, ROOT / "ci" / "install_torch.py"]
    for folder in ("kernels", "harness/moelab"):
        files += (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    for path in sorted(files):
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@nox.session(default=False)
def lab(session: nox.Session) -> None:
    """The environment that the other sessions share: torch (CPU), the project and what tests and bench need."""
    stamp = Path(session.virtualenv.location) / "moelab-installed"
    state = state_of_sources()
    if stamp.exists() and stamp.read_text() == state:
        session.log("up to date")
        return
    stamp.unlink(missing_ok=True)
    with part(session, "torch"):
        session.run("python", "ci/install_torch.py")
    with part(session, "other packages"):
        build = ["scikit-build-core", "cmake", "ninja"]
        session.install(
            "-c", str(CONSTRAINTS), *build, *PROJECT["project"]["dependencies"], *extras("test", "bench", "bf16")
        )
    with part(session, "kernels"):
        # Not isolated: an isolated build would fetch its own tools, and not the pinned ones.
        session.install("--no-deps", "--no-build-isolation", ".")
    stamp.write_text(state)


def run_in_lab(session: nox.Session, program: str, *arguments: str, **options: Any) -> None:
    """Runs a program of the shared environment."""
    binaries = session.cache_dir.parent / "lab" / "bin"
    path = f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**ENVIRONMENT, **options.pop("env", {}), "PATH": path}
    session.run(str(binaries / program), *arguments, env=environment, **options)


@nox.session(venv_backend="none", requires=["lab"])
def tests(session: nox.Session) -> None:
    """Everything that a clean machine can prove: C++, Arm, counts, Python. With options: pytest alone, with them."""
    if not session.posargs:
        with part(session, "C++ tests"):
            cpp_tests(session)
        if platform.machine() != "aarch64":  # there, the suite is the native tests
            with part(session, "Arm suite"):
                arm_suite(session)
            with part(session, "instruction counts"):
                instruction_counts(session)
    with part(session, "Python tests"):
        run_in_lab(session, "python", "-m", "pytest", *session.posargs)
    if not session.posargs and platform.machine() != "aarch64":
        with part(session, "predictions"):
            run_in_lab(session, "python", "ci/predict.py")


def cpp_tests(session: nox.Session, *options: str) -> None:
    """Builds and runs the C++ tests for this machine."""
    run_in_lab(session, "cmake", "-S", "kernels", "-B", str(CPP_TESTS), "-G", "Ninja", "-DMOELAB_TESTS=ON", silent=True)
    run_in_lab(session, "cmake", "--build", str(CPP_TESTS), silent=True)
    session.run(str(CPP_TESTS / "tests" / "moelab_tests"), *options)


def arm_suite(session: nox.Session, *options: str) -> None:
    """The Arm tests: emulated on x86-64. The script says what it needs and how to get it."""
    run_in_lab(session, "python", "ci/arm.py", *options)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def arm(session: nox.Session) -> None:
    """The Arm suite: cross-compiled and emulated on x86-64, native on Arm."""
    arm_suite(session, *session.posargs)


def instruction_counts(session: nox.Session, *options: str) -> None:
    """Counts against the committed table; the script says what it needs and how to get it."""
    run_in_lab(session, "python", "ci/counts.py", *options)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def counts(session: nox.Session) -> None:
    """Retired instructions under emulation, against reports/counts.json; `--update` writes it, `--vllm` counts vLLM."""
    options = [option for option in session.posargs if option != "--vllm"]
    if len(options) < len(session.posargs):
        run_in_lab(session, "python", "ci/counts_vllm.py", *options)
    else:
        instruction_counts(session, *options)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def predict(session: nox.Session) -> None:
    """Static cycles of the Arm kernels for named cores, and a predicted time per layer: no measurement."""
    run_in_lab(session, "python", "ci/predict.py", *session.posargs)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def vllm(session: nox.Session) -> None:
    """The plugin in the real vLLM, in an environment of its own (0.8 GB): models on vLLM's kernels and on ours."""
    with part(session, "environment"):
        run_in_lab(session, "python", "-m", "moelab.vllm_environment")
    environments = ROOT / os.environ.get("MOELAB_ENVS", ".envs")
    python = environments / "vllm-engine" / "venv" / "bin" / "python"
    tests = ["-m", "pytest", "-p", "no:cacheprovider", "tests/in_vllm", *session.posargs]
    session.run(str(python), *tests, env=ENVIRONMENT, external=True)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def bench(session: nox.Session) -> None:
    """Proves every backend correct, times them interleaved, writes a result file and a report."""
    run_in_lab(session, "python", "-m", "moelab", "bench", *session.posargs)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def report(session: nox.Session) -> None:
    """A report from result files: `nox -s report -- RESULT...`."""
    run_in_lab(session, "python", "-m", "moelab", "report", *session.posargs)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def compare(session: nox.Session) -> None:
    """Whether something changed between result files: `nox -s compare -- A B`."""
    run_in_lab(session, "python", "-m", "moelab", "compare", *session.posargs)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def reproduce(session: nox.Session) -> None:
    """Runs the command of a result file again and says whether it agrees: `nox -s reproduce -- RESULT`."""
    run_in_lab(session, "python", "-m", "moelab", "reproduce", *session.posargs)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def ab(session: nox.Session) -> None:
    """The kernels of a revision against the work tree's, interleaved: `nox -s ab -- BASE [options of bench]`."""
    run_in_lab(session, "python", "ci/ab.py", *session.posargs)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def e2e(session: nox.Session) -> None:
    """Whole models with and without the kernels: `nox -s e2e [-- --quick] [--model NAME, FOLDER or hub id]`."""
    if any("vllm" in word for word in session.posargs):  # 0.8 GB, only where somebody asks for that engine
        with part(session, "vLLM's environment"):
            run_in_lab(session, "python", "-m", "moelab.vllm_environment")
    run_in_lab(session, "python", "-m", "moelab", "e2e", *session.posargs)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def sanitizers(session: nox.Session) -> None:
    """The C++ tests under sanitizers, the fuzzer and valgrind."""
    run_in_lab(session, "python", "ci/sanitizers.py", *session.posargs)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def mutants(session: nox.Session) -> None:
    """Can the tests fail? Puts known faults into the kernels one at a time: `nox -s mutants [-- --sample N]`."""
    run_in_lab(session, "python", "ci/mutants.py", *session.posargs)


@nox.session(venv_backend="none", requires=["lab"], default=False)
def properties(session: nox.Session) -> None:
    """The README's table of what the suite covers: runs it on everything here, emulated CPUs and peers included."""
    results = ROOT / "build" / "properties"
    results.mkdir(parents=True, exist_ok=True)
    native, backends = str(results / "native.json"), str(results / "backends.json")
    cpp_tests(session, "--json", native)
    runs = [f"native={native}"]
    if platform.machine() != "aarch64":
        arm_suite(session, "--json", str(results / "arm"))
        runs += [f"emulated={path}" for path in sorted((results / "arm").glob("*.json"))]
    run_in_lab(session, "python", "-m", "moelab.backends.environments", "vllm")
    names = ",".join(session.posargs or ["moelab", "torch_loop", "vllm", "sglang"])
    suite = ["-m", "pytest", "-q", "--tb=line", "tests/properties/test_layer_properties.py"]
    # 1: some backend lacks a property, which is what the table says.
    run_in_lab(session, "python", *suite, "--backend", names, "--properties-json", backends, success_codes=[0, 1])
    collected = [word for run in runs for word in ("--cpp", run)]
    data = "reports/properties.json"
    run_in_lab(session, "python", "ci/property_table.py", "collect", *collected, "--backends", backends, "--out", data)
    run_in_lab(session, "python", "ci/property_table.py")


@nox.session(default=False)
def images(session: nox.Session) -> None:
    """Builds the images for both architectures, twice, and runs them."""
    session.install("-c", str(CONSTRAINTS), *extras("images"))
    session.run("python", "ci/images.py", *session.posargs, env=ENVIRONMENT)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and types: ruff, mypy strict, clang-format; workflows, Dockerfiles and pins."""
    stamp = Path(session.virtualenv.location) / "moelab-installed"
    wanted = CONSTRAINTS.read_text() + (ROOT / "pyproject.toml").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        # numpy, matplotlib and the like for their types.
        packages = [*PROJECT["project"]["dependencies"], *extras("lint", "bench", "test"), "nox"]
        # transformers is large, and mypy passes over it.
        session.install("-c", str(CONSTRAINTS), *(p for p in packages if not p.startswith("transformers")))
        stamp.write_text(wanted)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    sources = [str(path) for path in sorted((ROOT / "kernels").rglob("*")) if path.suffix in {".h", ".cpp"}]
    session.run("clang-format", "--dry-run", "-Werror", *sources)
    session.run("python", "ci/lint_workflows.py", env=ENVIRONMENT)
