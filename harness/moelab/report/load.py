"""Result files to the report's model. A file is untrusted: a damaged one becomes a problem in words, not a crash."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moelab.report.cells import read_cells
from moelab.report.machine_facts import read_machine
from moelab.report.model import Cell, Machine, Missing, Result
from moelab.report.model_runs import MARK as RUNS_MARK
from moelab.report.model_runs import ModelRuns, read_missing, read_model_runs
from moelab.report.pairing import compare_with_peers
from moelab.report.reading import Node
from moelab.report.side_tables import MARK, SideTable, read_side_table
from moelab.report.text import clean

SCHEMA = 1
MOST_BYTES = 512 * 2**20


class ReportError(ValueError):
    """No report can be made: says which files were given and what is wrong with each."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that could not be read, or not in full."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything the files hold. `cells`: the newest of each; `superseded`: older ones of the same cell.

    `results` are those of layers and of whole models; `model_runs`: what the latter timed.
    """

    results: tuple[Result, ...]
    cells: tuple[Cell, ...]
    superseded: tuple[Cell, ...]
    problems: tuple[Problem, ...]
    paths: dict[str, Path]
    side_tables: tuple[SideTable, ...] = ()
    model_runs: tuple[ModelRuns, ...] = ()


def load(paths: Sequence[str | os.PathLike[str]]) -> Loaded:
    """Read result files and side tables. Raises ReportError when none of them can be read or none is given."""
    if not paths:
        raise ReportError("result_paths is empty; give at least one result file")
    results: list[Result] = []
    cells: list[Cell] = []
    problems: list[Problem] = []
    side: dict[str, SideTable] = {}
    runs: list[ModelRuns] = []
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        try:
            document, digest = _parse(path)
            if document[MARK]:
                side[digest] = read_side_table(document, path.name, digest, _command(document["command"]))
                continue
            timed = _load_models(document, path.name, digest) if document[RUNS_MARK] else None
            result, own = (timed.result, []) if timed else _load_one(document, path.name, digest)
        except (OSError, ValueError, RecursionError, MemoryError) as error:
            problems.append(Problem(clean(path.name, 200), clean(error) or type(error).__name__))
            continue
        if result.digest in found:
            problems.append(Problem(result.name, "given twice (same content), counted once"))
            continue
        found[result.digest] = path
        results.append(result)
        cells.extend(own)
        runs += [timed] if timed else []
    if not results and not side:
        raise ReportError("no result file could be read: " + "; ".join(f"{p.name}: {p.reason}" for p in problems))
    newest, older = _newest(cells)
    return Loaded(tuple(results), compare_with_peers(newest), older, tuple(problems), found, tuple(side.values()),
                  tuple(runs))  # fmt: skip


def _parse(path: Path) -> tuple[Node, str]:
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("no file" if not path.exists() else "not a regular file")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES} bytes, not read")
    raw = path.read_bytes()
    try:
        return Node(json.loads(raw)), hashlib.sha256(raw).hexdigest()
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def _load_one(document: Node, name: str, digest: str) -> tuple[Result, list[Cell]]:
    if not document["benchmarks"]:
        raise ValueError("no 'benchmarks' in it: not a result file of moelab")
    if not document["moelab"] and not any(entry["extra_info"]["case"] for entry in document["benchmarks"].items()):
        raise ValueError("a pytest-benchmark file without moelab's sections")
    result = _result(document, name, digest)
    cells = read_cells(document, result)
    if not cells:
        result = replace(result, notes=(*result.notes, "no timed case in this file"))
    return result, cells


def _result(document: Node, name: str, digest: str) -> Result:
    own = document["moelab"]
    run, source, library = own["run"], own["source"], own["library"]
    machine = read_machine(document["machine_info"])
    commit = document["commit_info"]
    emulated = machine.emulated or any(
        entry["extra_info"]["setting"]["emulated"].flag() is True for entry in document["benchmarks"].items()
    )
    return Result(
        name=clean(name, 200),
        digest=digest,
        machine=machine,
        started=run["started"].text(limit=40) or document["datetime"].text(limit=40),
        command=_command(run["command"]),
        revision=source["commit"].text(limit=64) or commit["id"].text(limit=64),
        dirty=source["dirty"].flag() if source["dirty"] else commit["dirty"].flag(),
        image=own["image"].text(limit=200),
        library=library["build_id"].text(limit=64),
        seed=run["seed"].integer() if run["seed"] else None,
        level=_between(run["level"], 0.5, 0.9999, 0.95),
        margin=_between(run["margin"], 0.0001, 1.0, 0.02),
        quick=run["quick"].flag() is True,
        emulated=emulated,
        synthetic=own["synthetic"].flag() is True,
        missing=tuple(_missing(node) for node in own["missing"].items()),
        conditions=own["conditions"].texts(),
        cases=tuple(cell["case"].text() for cell in own["cells"].items()) if own["conditions"] else (),
        advice=own["advice"].texts(),
        notes=_schema_notes(own["schema"]),
    )


def _load_models(document: Node, name: str, digest: str) -> ModelRuns:
    """A file of whole models says at its top what a bench file says in its section "moelab"."""
    schema = document[RUNS_MARK].value
    as_bench = {"moelab": {**document.value, "schema": schema}, "machine_info": {"moelab": document["machine"].value}}
    result = replace(_result(Node(as_bench), name, digest), missing=read_missing(document))
    return read_model_runs(document, result)


def _between(node: Node, low: float, high: float, default: float) -> float:
    number = node.number(default)
    return number if low <= number <= high else default


def _command(node: Node) -> str:
    parts = [clean(item.value, 300) for item in node.items() if isinstance(item.value, str)]
    return clean(shlex.join(parts)) if parts else node.text()


def _missing(node: Node) -> Missing:
    case = node["case"].text() or node["workload"].text()
    return Missing(node["backend"].text() or "all backends", case or "whole run", node["kind"].text("skipped"),
                   node["reason"].text("no reason given"))  # fmt: skip


def _schema_notes(node: Node) -> tuple[str, ...]:
    version = node.integer(-1)
    if version == SCHEMA:
        return ()
    if version < 0:
        return ("the file names no schema version; what it lacks is shown as missing",)
    age = "an older" if version < SCHEMA else "a newer"
    return (f"written with {age} schema ({version}, this report reads {SCHEMA}); what it lacks is shown as missing",)


def _newest(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Split into the newest cell of each (machine, case, setting) and the rest; a cell is never mixed from two runs."""
    chosen: dict[tuple[object, ...], Cell] = {}
    for cell in sorted(cells, key=lambda c: (c.result.started, c.result.digest)):
        chosen[(machine_key(cell.result), cell.case.workload, cell.case.tokens, cell.setting)] = cell
    kept = {id(cell) for cell in chosen.values()}
    order = sorted(chosen.values(), key=lambda c: (c.case.workload, c.setting.label, c.case.tokens))
    return tuple(order), tuple(cell for cell in cells if id(cell) not in kept)


def machine_key(result: Result) -> tuple[str, bool, bool]:
    """Synthetic and emulated results never share a page with measured ones, even of the same machine."""
    return (result.machine.key, result.synthetic, result.emulated)


def machines(loaded: Loaded) -> dict[tuple[str, bool, bool], Machine]:
    """The machines of the results, those with real measurements and most cells first."""
    cells: dict[tuple[str, bool, bool], int] = {}
    for cell in loaded.cells:
        key = machine_key(cell.result)
        cells[key] = cells.get(key, 0) + 1
    found = {machine_key(result): result.machine for result in loaded.results}
    order = sorted(found, key=lambda key: (key[1], key[2], -cells.get(key, 0), found[key].name, key[0]))
    return {key: found[key] for key in order}
