"""What an interrupted run has measured, so that `bench --resume FOLDER` goes on from there.

Written after each workload, and taken up again only by the same options on the same machine with the same sources and
the same library: a result file holds one run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moelab import provenance
from moelab.conditions import Disturbance
from moelab.measurement import BackendRun, CaseRun, Check, Missing, Sample, Setting, Spent
from moelab.workloads import Case, layer_by_name

Json = dict[str, Any]
Measured = dict[str, tuple[list[CaseRun], list[Missing]]]
"""Cases and what is missing, by workload."""

NAME = "unfinished.json"
_VERSION = 2


@dataclass
class Checkpoint:
    """`arguments` are those of `bench`; `seconds` is the time that the run has taken so far."""

    arguments: list[str]
    identity: Json
    started: str
    seconds: float
    measured: Measured

    def write(self, path: Path) -> None:
        """Replaces the file as a whole: an interruption leaves the old one."""
        document = {
            "version": _VERSION,
            "arguments": self.arguments,
            "identity": self.identity,
            "started": self.started,
            "seconds": self.seconds,
            "measured": {
                workload: {"cases": [_case_json(run) for run in runs], "missing": [asdict(m) for m in missing]}
                for workload, (runs, missing) in self.measured.items()
            },
        }
        new = path.with_suffix(".new")
        new.write_text(json.dumps(document))
        new.replace(path)


def identity(facts: Mapping[str, Any]) -> Json:
    """What must be the same for two parts of a run to be one run."""
    source = provenance.source()
    return {
        "machine": facts["machine_id"],
        "cpu": facts["cpu"]["part"],
        "commit": source["commit"],
        "changed files": source["changed"],
        "library": provenance.build_info().get("git_commit"),
    }


def read(path: Path) -> Checkpoint:
    """ValueError where the file is none of ours."""
    try:
        document = json.loads(path.read_text())
        version = document["version"]
        made = Checkpoint(
            arguments=list(document["arguments"]),
            identity=dict(document["identity"]),
            started=str(document["started"]),
            seconds=float(document["seconds"]),
            measured={
                workload: ([_case_run(c) for c in part["cases"]], [Missing(**m) for m in part["missing"]])
                for workload, part in document["measured"].items()
            },
        )
    except FileNotFoundError:
        raise ValueError(f"{path} is not there: nothing was interrupted in this folder") from None
    except (OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError, ValueError) as error:
        raise ValueError(f"{path} is no record of an interrupted run: {error}") from None
    if version != _VERSION:
        raise ValueError(f"{path} is no record of an interrupted run: version {version}, expected {_VERSION}")
    return made


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, what keeps a run from going on."""
    return [f"{name} was {before.get(name)}, is {now[name]}" for name in now if before.get(name) != now[name]]


def _case_json(run: CaseRun) -> Json:
    values = asdict(run)
    layer = values["case"].pop("layer")
    values["case"]["layer"] = layer["name"]
    return values


def _case_run(values: Json) -> CaseRun:
    case = dict(values["case"])
    return CaseRun(
        **{
            **values,
            "case": Case(**{**case, "layer": layer_by_name(case["layer"])}),
            "setting": Setting(**values["setting"]),
            "disturbance": Disturbance(**values["disturbance"]),
            "backends": {label: _backend(backend) for label, backend in values["backends"].items()},
        }
    )


def _backend(values: Json) -> BackendRun:
    return BackendRun(
        **{
            **values,
            "before": Check(**values["before"]),
            "after": Check(**values["after"]),
            "samples": [Sample(**sample) for sample in values["samples"]],
            "spent": [Spent(**spent) for spent in values["spent"]],
        }
    )
