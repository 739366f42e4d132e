"""`moelab reproduce RESULT`: the same command with the same seeds once more, and whether the numbers agree.

The ACM's words: *repeatable* if it agrees on the same machine by the same hands, *reproduced* if it does on somebody
else's machine. This program can only say on which machine it ran; who ran it is for the reader to know.

Weights, routing and tokens are those of the seed and of the first input set that the result records; every other run
draws its first set by chance (see harness/README.md).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from moelab import comparison, machine, provenance, results, statistics
from moelab.comparison import Entry
from moelab.statistics import Ratio
from moelab.text_table import table

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", type=Path, metavar="RESULT")
    parser.add_argument("--here", action="store_true", help="run this revision instead of rebuilding the result's")
    parser.add_argument(
        "--with", dest="other", type=Path, metavar="NEW", help="compare with this file instead of running"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to put the new result")


def run(arguments: argparse.Namespace) -> int:
    """0: every case agrees; 1: some do not, or could not be run again; 2: the run cannot be repeated."""
    try:
        old = results.load(arguments.result)
        path = arguments.other or _run_again(old, arguments)
        new = results.load(path)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"moelab reproduce: {error}", file=sys.stderr)
        return 2
    rows, word = agreement(old, new)
    print(table(["case", "backend", "then", "now", "says"], rows))
    good = sum(row[-1].startswith("agrees") for row in rows)
    print(f"{good} of {len(rows)} agree: {word if good == len(rows) else 'not ' + word}")
    print(f"new result: {path}")
    return 0 if rows and good == len(rows) else 1


def _run_again(old: Json, arguments: argparse.Namespace) -> Path:
    run_, source = old["moelab"]["run"], old["moelab"]["source"]
    folder = (arguments.out or Path(tempfile.mkdtemp(prefix="moelab-reproduce-"))).resolve()
    root = provenance.repository()
    options = [*_bench_arguments(run_["command"]), *_inputs(run_), "--out", str(folder)]
    digest = old["moelab"]["image"]
    installed = os.environ.get("MOELAB_INSTALLED_TOOLS") == "1"  # the image `ab` says so, in a clone of its user's
    if digest and not arguments.here and not installed:
        folder.mkdir(parents=True, exist_ok=True)  # else docker makes it, as root
        command = [
            "docker", "run", "--rm", "-v", f"{folder}:{folder}", "--user", f"{os.getuid()}:{os.getgid()}",
            "-e", f"MOELAB_IMAGE_DIGEST={digest}", digest, "bench", *options,
        ]  # fmt: skip
        print("running in the image of the result:", " ".join(command), file=sys.stderr)
        subprocess.run(command, check=True)
        return folder / "result.json"
    if arguments.here or (root is None and not installed):
        subprocess.run([sys.executable, "-m", "moelab", "bench", *options], check=False)
        return folder / "result.json"
    commit = source["commit"]
    if commit is None:
        raise ValueError("the result names no commit; --here runs this revision instead")
    if source["dirty"]:
        raise ValueError(
            f"the result came from {commit[:12]} with changes that were not committed "
            f"({', '.join(source['changed'][:3])}…), so it cannot be rebuilt; --here runs this revision instead"
        )
    if installed:
        _with_installed_tools(commit, options)
        return folder / "result.json"
    with tempfile.TemporaryDirectory(prefix="moelab-revision-") as tree:
        subprocess.run(["git", "-C", str(root), "worktree", "add", "--detach", tree, commit], check=True)
        try:
            # The revision's own bootstrap, which brings its own nox and environment.
            subprocess.run([str(Path(tree) / "ci" / "lab"), "bench", *options], cwd=tree, check=False)
        finally:
            subprocess.run(["git", "-C", str(root), "worktree", "remove", "--force", tree], check=True)
    return folder / "result.json"


def _with_installed_tools(commit: str, options: list[str]) -> None:
    """Builds the commit of the clone in the working folder with compilers and packages that are here, and runs it."""
    with tempfile.TemporaryDirectory(prefix="moelab-revision-") as scratch:
        tree, site, archive = (Path(scratch) / part for part in ("tree", "site", "tree.tar"))
        tree.mkdir()
        subprocess.run(["git", "archive", "--output", str(archive), commit], check=True)
        subprocess.run(["tar", "-xf", str(archive), "-C", str(tree)], check=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        environment = {**os.environ, "MOELAB_GIT_COMMIT": commit}
        subprocess.run([*pip, "--target", str(site), str(tree)], check=True, env=environment)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
        subprocess.run([sys.executable, "-m", "moelab", "bench", *options], check=False, env=environment)


def _inputs(run_: Json) -> list[str]:
    """The option for the same input sets. Results of older revisions, which had no such option, record none."""
    first = run_["options"].get("first_input")
    return [] if first is None or "--inputs" in run_["command"] else ["--inputs", str(first)]


def _bench_arguments(command: list[str]) -> list[str]:
    """Options of `bench` in a recorded command, without where the result went and which machine it was meant for."""
    if "ab" in command[:4]:
        raise ValueError(f"the result compares two revisions; repeat it with: {' '.join(command)}")
    if "--" in command:
        options = command[command.index("--") + 1 :]
    elif "bench" in command:
        options = command[command.index("bench") + 1 :]
    else:
        raise ValueError(f"the result's command is not a bench command: {' '.join(command)}")
    left = ("--out", "--expect")
    return [o for i, o in enumerate(options) if o not in left and (i == 0 or options[i - 1] not in left)]


def agreement(old: Json, new: Json) -> tuple[list[list[str]], str]:
    """One row per case and backend of the old run, and the word for agreement on this machine."""
    before, after = comparison.entries(old), comparison.entries(new)
    same_machine = _machine(old) == _machine(new)
    rows = []
    for key, entry in before.items():
        if entry.speed is None:
            continue  # the baseline: its speed is 1 by definition
        other = after.get(key)
        rows.append([*key, *_judge(entry, other)])
    return rows, "repeatable on this machine" if same_machine else "reproduced on another machine"


def _machine(document: Json) -> str:
    return str(document["machine_info"]["moelab"]["machine_id"])


def _judge(old: Entry, new: Entry | None) -> list[str]:
    assert old.speed is not None
    if new is None or new.speed is None:
        return [_shown(old.speed), "", "not measured again"]
    quotient = comparison.quotient(old.speed, new.speed)
    why = comparison.differences(old, new)
    remark = f" (other {', '.join(w.partition(':')[0] for w in why)})" if why else ""
    margin = statistics.MARGIN
    overlap = quotient.low <= 1 + margin and quotient.high >= 1 / (1 + margin)
    says = ("agrees" if overlap else "differs") + remark
    return [_shown(old.speed), _shown(new.speed), says]


def _shown(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def this_machine_is(document: Json) -> bool:
    """Whether a result was measured here."""
    facts: Any = machine.gather()
    return bool(facts["machine_id"] == _machine(document))
