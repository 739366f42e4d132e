"""`moelab e2e`: whole models with and without the kernels; checks, measures, and says what explains the difference."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from moelab import machine, provenance
from moelab.bench_command import default_folder
from moelab.cpus import bound_cpus, default_threads
from moelab.e2e import text
from moelab.e2e.document import document
from moelab.e2e.engines import ENGINES
from moelab.e2e.models import NEEDED, SHAPES
from moelab.e2e.plan import QUICK, Plan
from moelab.options import names, numbers
from moelab.progress import Progress

WRONG, USAGE = 1, 2
_OLDEST = (5, 24)
_ENGINES = f"of {', '.join(ENGINES)}; default {','.join(Plan.engines)}"


# option -> field of the plan, keywords of add_argument
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "model": (
        "models",
        {
            "type": names,
            "metavar": "MODEL,…",
            "help": f"{', '.join(SHAPES)} (real layers, random weights), a checkpoint's folder, or a hub id; default: "
            "the three",
        },
    ),
    "engine": ("engines", {"type": names, "metavar": "NAME,…", "help": _ENGINES}),
    "layers": ("layers", {"type": numbers, "metavar": "N,…", "help": "depths that models are cut to; default 2,4"}),
    "prefill": ("prefill", {"type": numbers, "metavar": "N,…", "help": "tokens of a prompt; default 512,2048"}),
    "decode": ("decode", {"type": numbers, "metavar": "N,…", "help": "sequences decoded at once; default 1,8,32"}),
    "threads": ("threads", {"type": int, "metavar": "N", "help": "default: the cores that this process may use"}),
    "processes": ("processes", {"type": int, "metavar": "N", "help": "how often all engines start anew; default 2"}),
    "rounds": ("most_rounds", {"type": int, "metavar": "N", "help": "at most so many in each process; default 12"}),
    "budget": ("budget", {"type": float, "metavar": "SECONDS", "help": "rounds adapt to it; default 1500"}),
    "seed": ("seed", {"type": int, "metavar": "N", "help": "of weights, tokens, lengths and order; default 0"}),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, (_, keywords) in OPTIONS.items():
        parser.add_argument(f"--{name}", default=None, **keywords)
    parser.add_argument("--no-mixed", action="store_true", help="leave the mixed run out")
    parser.add_argument("--quick", action="store_true", help="one small model, fewer cells")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to put e2e.json")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: all outputs right; 1: an engine was wrong or failed; 2: wrong options or set-up."""
    try:
        needed()
        plan = plan_of(arguments)
        cpus = bound_cpus(plan.threads)
        folder: Path = (arguments.out or default_folder().with_name(default_folder().name + "-e2e")).resolve()
        found, wrong = measure(plan, command(arguments), cpus)
    except ValueError as error:
        print(f"moelab e2e: {error}", file=sys.stderr)
        return USAGE
    if found["cells"]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "e2e.json").write_text(json.dumps(found, indent=1) + "\n")
    print(text.summary(found))
    if not found["cells"]:
        print("moelab e2e: nothing was measured, so there is no result file", file=sys.stderr)
        return WRONG
    print(f"result: {folder / 'e2e.json'}")
    return WRONG if wrong else 0


def measure(plan: Plan, words: Sequence[str], cpus: Sequence[int]) -> tuple[dict[str, Any], bool]:
    """The result document, and whether an engine was wrong or failed."""
    from moelab.e2e.run import Run  # needs torch

    started, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="moelab-e2e-") as scratch:
        outcome = Run(plan, Path(scratch), Progress(budget=plan.budget))()
    seconds = time.monotonic() - clock
    found = document(plan, outcome, command=words, started=started, wall_seconds=seconds, cpus=cpus)
    return found, outcome.wrong


def needed() -> None:
    """ValueError in one sentence where the engines cannot run."""
    for name in ("torch", "transformers"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise ValueError(f"{name} is not installed; needs torch and {NEEDED}") from None
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise ValueError(f"transformers {version} is too old; needs {NEEDED}")
    if machine.emulated():
        raise ValueError("instructions are emulated here; a time would mean nothing, none is taken")


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan that the options ask for. ValueError where one is wrong."""
    values = vars(arguments)
    given = {field: values[name] for name, (field, _) in OPTIONS.items() if values[name] is not None}
    given.setdefault("threads", default_threads())
    if arguments.no_mixed:
        given["mixed"] = False
    if arguments.quick:
        given = {"quick": True, **QUICK, **given}
    return Plan(**given)


def command(arguments: argparse.Namespace) -> list[str]:
    """argv that repeats the run from the top of the repository. A checkpoint's folder is named by its last part."""
    words: list[str] = []
    for name in OPTIONS:
        value = getattr(arguments, name)
        if value is None:
            continue
        if name == "model":  # results are published: no path of this machine
            value = tuple(Path(v).name if Path(v).is_dir() else v for v in value)
        words += [f"--{name}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    words += [f"--{flag}" for flag in ("no-mixed", "quick") if getattr(arguments, flag.replace("-", "_"))]
    if provenance.repository() is not None:
        return ["nox", "-s", "e2e", "--", *words]
    return ["python", "-m", "moelab", "e2e", *words]
