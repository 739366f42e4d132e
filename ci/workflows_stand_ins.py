"""State of a local run of a workflow, and the stand-ins for the actions that can have one."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from workflows_expressions import Value, as_text

ROOT = Path(__file__).resolve().parents[1]
KEPT = (".nox", ".venv-nox")  # environments that a second checkout keeps, so that each job need not install again


@dataclass
class Line:
    """What became of one step."""

    job: str
    step: str
    state: str  # "ok", "failed", "could not run", "skipped", "would run"
    note: str = ""


@dataclass
class Run:
    """State of one local run of one workflow."""

    event: str
    plan: bool
    limit: float
    folder: Path
    after: str = "push"
    """The event of the run that a workflow_run follows."""
    lines: list[Line] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        """The clean clone."""
        return self.folder / "workspace"

    @property
    def artifacts(self) -> Path:
        """Stand-in for the artifact store."""
        return self.folder / "artifacts"

    def note(self, job: str, step: str, state: str, note: str = "") -> None:
        """Records and prints what became of a step."""
        self.lines.append(Line(job, step, state, note))
        print(f"  {state:13} {job}: {step}{f' ({note})' if note else ''}", flush=True)


def git(*arguments: str, cwd: Path = ROOT) -> str:
    """Output of a git command."""
    return subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


def checkout(run: Run, options: dict[str, Value]) -> str | None:
    """Stand-in for actions/checkout: a clone of the committed HEAD (or of a branch); None, or why it cannot."""
    ref = as_text(options.get("ref")) or git("rev-parse", "HEAD")
    target = run.workspace / as_text(options.get("path"))
    known = subprocess.run(["git", "rev-parse", "--verify", "-q", f"{ref}^{{commit}}"], cwd=ROOT, capture_output=True,
                           check=False)  # fmt: skip
    if known.returncode:
        return f"no revision {ref} here"
    if not (target / ".git").exists():
        target.mkdir(parents=True, exist_ok=True)
        git("clone", "-q", "--no-checkout", ROOT.as_uri(), ".", cwd=target)
    git("checkout", "-q", "-f", "--detach", known.stdout.decode().strip(), cwd=target)
    git("clean", "-ffdxq", *itertools.chain.from_iterable(("-e", kept) for kept in KEPT), cwd=target)
    return None


def upload(run: Run, options: dict[str, Value]) -> str | None:
    """Stand-in for actions/upload-artifact."""
    target = run.artifacts / as_text(options.get("name"))
    found = 0
    for pattern in as_text(options.get("path")).split():
        base = Path(pattern) if Path(pattern).is_absolute() else run.workspace / pattern
        for path in sorted(base.parent.glob(base.name)) if base.name else [base]:
            target.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            else:
                shutil.copy2(path, target / path.name)
            found += 1
    if not found and as_text(options.get("if-no-files-found")) == "error":
        raise FileNotFoundError(f"nothing to upload at {options.get('path')}")
    return None


def download(run: Run, options: dict[str, Value]) -> str | None:
    """Stand-in for actions/download-artifact: by name, or all that match a pattern."""
    if options.get("run-id"):
        return "takes artifacts of another run"
    name, pattern = as_text(options.get("name")), as_text(options.get("pattern")) or "*"
    merged = as_text(options.get("merge-multiple")) == "true" or bool(name)
    target = run.workspace / as_text(options.get("path"))
    found = sorted(run.artifacts.glob(name or pattern)) if run.artifacts.exists() else []
    if name and not found:
        raise FileNotFoundError(f"no artifact {name}")
    for folder in found:
        shutil.copytree(folder, target if merged else target / folder.name, dirs_exist_ok=True)
    return None


STAND_INS = {
    "actions/checkout": checkout,
    "actions/upload-artifact": upload,
    "actions/download-artifact": download,
}
