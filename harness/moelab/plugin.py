"""pytest plugin (`-p moelab.plugin`): interleaved rounds whose samples become pytest-benchmark's own statistics.

pytest-benchmark times one function at a time. Here the engine measures all backends of a workload at once when the
first of its tests runs; each test then hands the samples of one backend in one case to its `benchmark` fixture.
"""

from __future__ import annotations

import signal
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moelab import advice, checkpoint, expect, machine, options, provenance, redaction, results, statistics
from moelab.backend_loading import label_of
from moelab.measurement import BackendRun, CaseRun, Missing
from moelab.plan import Plan, any_first_input
from moelab.progress import Progress
from moelab.run import Run

Json = dict[str, Any]
BENCH = pytest.StashKey["Bench"]()


class Bench:
    """State of one pytest session: the plan, and what has been measured of it, there or before an interruption."""

    def __init__(self, plan: Plan, arguments: list[str], facts: Json, record: Path | None = None) -> None:
        self.plan, self.arguments, self.facts = plan, arguments, facts
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.measured: checkpoint.Measured = {}
        self._clock = time.monotonic()
        self._run: Run | None = None
        self._record, self._identity, self._resumed = record, checkpoint.identity(facts), list[str]()
        if record is not None and record.exists():
            before = checkpoint.read(record)
            self.started, self.measured = before.started, before.measured
            self._clock -= before.seconds
            self._resumed = list(before.measured)

    def workload(self, name: str) -> tuple[list[CaseRun], list[Missing]]:
        """Measured when first asked for."""
        if self._run is None:
            self._run = Run(self.plan, Progress(budget=self.plan.budget), done=self._resumed)
        if name not in self.measured:
            self.measured[name] = self._run.measure(name)
            if self._record is not None:
                seconds = time.monotonic() - self._clock
                checkpoint.Checkpoint(self.arguments, self._identity, self.started, seconds, self.measured).write(
                    self._record
                )
        return self.measured[name]

    def case(self, workload: str, case_id: str) -> CaseRun | None:
        return next((run for run in self.workload(workload)[0] if run.case.id == case_id), None)

    def why_missing(self, workload: str, case_id: str, label: str) -> str:
        for missing in self.workload(workload)[1]:
            if missing.backend in (None, label) and missing.case in (None, case_id):
                return missing.reason
        return "did not run"

    def cells(self) -> list[results.Cell]:
        """All cases with their statistics, verdicts corrected for the whole table."""
        return results.analyse([run for runs, _ in self.measured.values() for run in runs], seed=self.plan.seed)

    def block(self, cells: list[results.Cell]) -> Json:
        """The top-level key `moelab` of the result file."""
        runs = [cell.run for cell in cells]
        environments = [b.environment for run in runs for b in run.backends.values() if b.name == "moelab"]
        conditions = [f"{run.case.id}: {text}" for run in runs for text in run.conditions]
        conditions += self._budget_in_words(runs)
        if self._resumed:
            conditions.append(f"the run was interrupted; measured before that: {', '.join(self._resumed)}")
        return results.moelab_block(
            cells,
            run=self._run_json(),
            source=provenance.source(),
            library=provenance.library(environments),
            image=provenance.image(),
            missing=[m for _, all_missing in self.measured.values() for m in all_missing],
            conditions=conditions,
            advice=advice.advice(self.facts),
        )

    def _budget_in_words(self, runs: list[CaseRun]) -> list[str]:
        """Backends that were in fewer rounds than others, and a budget that was not enough."""
        samples: dict[str, int] = {}
        rounds: dict[str, int] = {}
        for run in runs:
            most = max((len(b.samples) for b in run.backends.values()), default=0)
            for label, backend in run.backends.items():
                if backend.failure is None:
                    samples[label] = samples.get(label, 0) + len(backend.samples)
                    rounds[label] = rounds.get(label, 0) + most
        words = [
            f"{label}: timed in {samples[label]} of {full} rounds, for the budget"
            for label, full in rounds.items()
            if samples[label] < full
        ]
        seconds = time.monotonic() - self._clock
        if seconds > 1.1 * self.plan.budget > 0:
            words.append(
                f"the run took {seconds:.0f} s for a budget of {self.plan.budget:.0f} s: "
                f"{self.plan.processes} processes with {self.plan.fewest_rounds} rounds are the least that is measured"
            )
        return words

    def _run_json(self) -> Json:
        return {
            "id": uuid.uuid4().hex[:12],
            "started": self.started,
            "seconds": time.monotonic() - self._clock,
            "command": provenance.command(self.arguments),
            "options": self.plan.as_dict(),
            "seed": self.plan.seed,
            "baseline": label_of(self.plan.baseline),
            "backends": [label_of(name) for name in self.plan.backends],
            "margin": statistics.MARGIN,
            "level": statistics.LEVEL,
            "processes": self.plan.processes,
            "quick": self.plan.quick,
            "budget_seconds": self.plan.budget,
        }


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("moelab", "moelab: interleaved measurement of fused MoE")
    options.add_to(group.addoption, "--moelab-")
    group.addoption("--moelab-record", type=Path, metavar="FILE", help="keeps what is measured, and goes on from it")


def pytest_configure(config: pytest.Config) -> None:
    def value_of(name: str) -> Any:
        return config.getoption(f"moelab_{name}")

    try:
        plan = options.plan_of(value_of)
        facts: Any = machine.gather()
        unmet = expect.unmet(expect.parse(value_of("expect")), facts) if value_of("expect") else []
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if unmet:
        raise pytest.UsageError("not the machine that was expected: " + "; ".join(unmet))
    # Ends as by Ctrl-C: workers are ended and the weights, gigabytes of shared memory, removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plan = replace(plan, first_input=plan.first_input or any_first_input())
    config.stash[BENCH] = Bench(plan, options.arguments_of(value_of), facts, value_of("record"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fused_moe" not in metafunc.fixturenames:
        return
    plan = metafunc.config.stash[BENCH].plan
    parameters = [
        pytest.param((workload, case.id, label), id=f"{case.id}-{label}")
        for workload in plan.workloads
        for case in plan.cases(workload)
        for label in plan.labels
    ]
    metafunc.parametrize("fused_moe", parameters, indirect=True)


@pytest.fixture
def fused_moe(request: pytest.FixtureRequest, benchmark: Any) -> BackendRun:
    """The measured backend of this test, its samples already in pytest-benchmark's statistics.

    Skips where the backend did not run, fails where it was wrong or faster than its roof. Never fails for time.
    """
    workload, case_id, label = request.param
    bench = request.config.stash[BENCH]
    run = bench.case(workload, case_id)
    backend = None if run is None else run.backends.get(label)
    if run is None or backend is None:
        benchmark.skipped = True
        pytest.skip(f"{label}: {bench.why_missing(workload, case_id, label)}")
    if backend.failure is not None:
        benchmark.has_error = benchmark.skipped = True
        pytest.fail(f"{case_id}: {label}: {backend.failure}", pytrace=False)
    cell = results.analyse([run], seed=bench.plan.seed)[0]
    inject(benchmark, case_id, backend, results.entry_info(cell, label, seed=bench.plan.seed))
    roof = cell.roofs[label]
    if roof.broken:
        pytest.fail(f"{case_id}: {label} is a broken measurement: {roof.reason}", pytrace=False)
    return backend


def inject(benchmark: Any, group: str, backend: BackendRun, info: Json) -> None:
    """Gives a `benchmark` fixture samples that were taken elsewhere, as if it had taken them.

    tests/test_plugin.py compares the file that comes of it, read by pytest-benchmark's own loader.
    """
    calls = backend.samples[0].calls
    benchmark._mode = "moelab interleaved rounds"
    benchmark.group = group
    benchmark.extra_info.update(info)
    stats = benchmark._make_stats(calls)
    for sample in backend.samples:
        stats.update(sample.seconds * calls)  # which divides by the calls


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Json) -> None:
    machine_info.pop("node", None)  # a host name is nobody's business
    machine_info["moelab"] = config.stash[BENCH].facts


def pytest_benchmark_update_commit_info(commit_info: Json) -> None:
    """Where the revision was fetched from may hold a password, and a branch a name; neither tells what was measured."""
    for key in ("branch", "error"):
        commit_info.pop(key, None)
    commit_info["project"] = "moelab"


def pytest_benchmark_update_json(config: pytest.Config, benchmarks: list[Any], output_json: Json) -> None:
    """Verdicts are corrected for the number of cells, so they are known only when all of them are through."""
    bench = config.stash[BENCH]
    cells = bench.cells()
    infos = {
        (cell.run.case.id, label): results.entry_info(cell, label, seed=bench.plan.seed)
        for cell in cells
        for label in cell.roofs
    }
    for entry in output_json["benchmarks"]:
        entry["extra_info"] = infos[entry["group"], entry["extra_info"]["backend"]["label"]]
    output_json["moelab"] = bench.block(cells)
    cleaner = redaction.redactor(provenance.repository())
    output_json.update({key: cleaner.clean(value) for key, value in output_json.items()})
