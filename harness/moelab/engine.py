"""Runs one workload: every backend proven right, then all of them timed in turn, round by round, process by process.

    for each process:   fresh workers, weights packed anew, every backend checked in every case
        for each case:  for each round: new inputs for all, backends in shuffled order, one sample each

The engine only waits while a sample is taken. Which rows of a timed output are checked is decided here, by chance and
after all outputs of the round are in: nobody can know before. They are compared with the oracle when the workload is
through. The number of a run's first input set is by chance too, and stands with each sample.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moelab import exchange, inputs_on_file, roofline
from moelab.backend_loading import label_of
from moelab.checking import RowChecks, compare, take_rows
from moelab.conditions import Monitor
from moelab.contenders import contenders_of, core_of
from moelab.disagreement import disputed_row
from moelab.eviction import eviction_bytes, write_buffer
from moelab.finishing import finish
from moelab.inputs_on_file import InputFiles
from moelab.measurement import BackendRun, CaseRun, Missing, Probing, Sample, Setting, Spent
from moelab.plan import Plan, any_first_input
from moelab.progress import Progress
from moelab.schedule import Schedule
from moelab.team import BackendError, Team
from moelab.weights import Weights, open_weights
from moelab.workloads import Case, layer_by_name, make_inputs

ROWS_BEFORE = 24
SAMPLE_SECONDS = 1e-3  # warm samples of shorter calls are made of several
MOST_CALLS = 16

_PROBES: dict[Probing, str] = {
    "all": "the probes",
    "one": "the probes, for lack of memory in one process a round",
    "none": "no probes",
}


class WorkloadRun:
    """All cases of one workload. `cpus` are those that the workers are bound to."""

    def __init__(
        self,
        plan: Plan,
        workload: str,
        *,
        cpus: Sequence[int],
        last_level_bytes: int,
        weights: Weights,
        weights_path: Path,
        folder: Path,
        separate_copy: bool,
        probing: Probing,
        progress: Progress,
        emulated: bool = False,
    ) -> None:
        self.plan, self.workload, self.progress = plan, workload, progress
        self.layer = layer_by_name(workload)
        self.cases = plan.cases(workload)
        self.cpus, self.folder, self.weights_path = list(cpus), folder, weights_path
        self.evict_bytes = eviction_bytes(last_level_bytes) if plan.cache == "cold" else 0
        self.setting = Setting(
            threads=plan.threads,
            cpus=self.cpus,
            pinning=f"worker bound to CPUs {self.cpus}; threads placed by the kernel",
            cache=plan.cache,
            eviction=f"read {self.evict_bytes >> 20} MiB before each sample, then {_PROBES[probing]}"
            if self.evict_bytes
            else "none: the layer ran on other tokens with the same routing right before",
            emulated=emulated,
            last_level_bytes=last_level_bytes,
        )
        self.evict_path = folder / "evict" if self.evict_bytes else None
        self.rng = np.random.default_rng([plan.seed, zlib.crc32(workload.encode())])
        self.monitor = Monitor(cpus=self.cpus)
        self.contenders = contenders_of(plan, separate_copy)
        self.separate_copy, self.probing = separate_copy, probing
        self.runs = {case.id: self._case_run(case) for case in self.cases}
        self.schedule = Schedule(plan, core_of(self.contenders, plan.control))
        self.missing: dict[tuple[str, str | None], Missing] = {}
        self._failures: list[Missing] = []
        self._checks = RowChecks(weights, self.layer)
        self._before = RowChecks(weights, self.layer)
        self._chance = np.random.default_rng()
        first = plan.first_input or any_first_input()
        self._next_index = {case.id: first for case in self.cases}
        self._rows_before: dict[str, npt.NDArray[np.intp]] = {}
        self._rounds_done: dict[tuple[str, int], int] = {}

    def _case_run(self, case: Case) -> CaseRun:
        backends = {
            label: BackendRun(label_of(c.facts.name), label, c.role, rounding=c.facts.backend.rounding.as_dict())
            for label, c in self.contenders.items()
        }
        return CaseRun(case, self.setting, label_of(self.plan.baseline), backends, self.separate_copy)

    # ---- the run ----------------------------------------------------------------------------------------------

    def run(self, deadline: float) -> tuple[list[CaseRun], list[Missing]]:
        """Measures until about `deadline` (time.monotonic); says early where the least that it does takes longer."""
        start = time.monotonic()
        if self.evict_path is not None:
            write_buffer(self.evict_path, self.evict_bytes)
        roundings = [c.facts.backend.rounding for c in self.contenders.values()]
        self.progress.step(f"{self.workload}: right answers in fp64")
        digest = self._checks.weights.digest
        for case in self.cases:
            inputs = make_inputs(case, 0)
            rows = _spread_rows(case.tokens, ROWS_BEFORE, self._chance)
            self._before.add((case.id, 0), take_rows(inputs, rows))
            self._rows_before[case.id] = rows
        self._before.compute(roundings)
        self.schedule.begin(deadline, oracle_seconds=time.monotonic() - start)
        for process in range(self.plan.processes):
            self._process(process)
        self.progress.step(f"{self.workload}: checking the timed outputs")
        if open_weights(self.weights_path).digest != digest:  # the oracle would compute on what somebody left there
            for label in self.contenders:
                self._out(label, "the file of the weights was changed during the run, nobody knows by whom")
        self._checks.compute(roundings)
        for case in self.cases:
            self._failures += finish(self.runs[case.id], self.contenders, self._checks)
        return [self.runs[case.id] for case in self.cases], [*self.missing.values(), *self._failures]

    def _alive(self, case: Case | None = None) -> list[str]:
        labels = [label for label, c in self.contenders.items() if c.missing is None and c.failed is None]
        if case is None:
            return labels
        run = self.runs[case.id]
        return [label for label in labels if label in run.backends and run.backends[label].failure is None]

    def _process(self, process: int) -> None:
        """One process of each environment, again without those that took it down."""
        waiting = [self.cases[i] for i in self.rng.permutation(len(self.cases))]
        while waiting and self._alive():
            begun = time.monotonic()
            members = [self.contenders[label].facts for label in self._alive()]
            try:
                with Team(
                    members, threads=self.plan.threads, cpus=self.cpus, folder=self.folder, monitor=self.monitor
                ) as team:
                    self.progress.step(f"{self.workload}: process {process + 1} of {self.plan.processes}: packing")
                    self._prepare(team)
                    self.progress.step(f"{self.workload}: process {process + 1}: every backend against the oracle")
                    for case in waiting:
                        self._verify(team, case, process)
                    late = self.schedule.verified(process, time.monotonic() - begun, waiting)
                    if process == 0:
                        self._say_what_it_takes(late)
                    while waiting:
                        self._rounds(team, waiting[0], process)
                        waiting.pop(0)
                    self._look_at_weights(team)
            except BackendError as failure:
                self._out(failure.label, failure.reason)

    def _out(self, label: str, reason: str) -> None:
        """Takes a label out of the workload for good; what it measured before is no result either."""
        self.progress.step(f"{self.workload}: {label} failed: {reason}")
        self.contenders[label].failed = reason
        self.schedule.forget(label)
        for run in self.runs.values():
            run.backends[label].failure = run.backends[label].failure or reason

    def _say_what_it_takes(self, late: float) -> None:
        thinned = self.schedule.thinned()
        if thinned:
            counts = ", ".join(f"{label} {own} of {full}" for label, (own, full) in thinned.items())
            self.progress.step(f"{self.workload}: samples in each process, so many for the budget: {counts}")
        if late > 1.0:
            self.progress.step(
                f"{self.workload}: needs {late:.0f} s more than its share of the budget of {self.plan.budget:.0f} s: "
                f"{self.plan.processes} processes and {self.plan.fewest_rounds} rounds are the least that is measured"
            )

    # ---- before the clock -------------------------------------------------------------------------------------

    def _prepare(self, team: Team) -> None:
        hello = team.start(self.weights_path, self.workload, self.evict_path, probes=self.probing)
        for label in self._alive():
            contender = self.contenders[label]
            original = contender.facts.copy_of
            started = hello[contender.facts.backend.environment]
            contender.environment, contender.probe_isa = started["environment"], started["probe_isa"]
            if original is not None:
                if self.contenders[original].missing or self.contenders[original].failed:
                    contender.missing = f"{original} did not run"
                    continue
                team.ask(label, "share", label=label, original=original)
                contender.copy_facts(self.contenders[original])
                continue
            answer = team.ask(label, "prepare", label=label, name=contender.facts.name)
            if answer["reason"] is not None:
                contender.missing = answer["reason"]
                if contender.role != "control":
                    name = label_of(contender.facts.name)
                    self.missing[label, None] = Missing(name, None, self.workload, "unavailable", answer["reason"])
                continue
            contender.packing_seconds.append(answer["seconds"])
            contender.packing_extra_bytes.append(int(answer["extra_bytes"]))
            contender.packed_bytes = int(answer["bytes"])
            contender.description, contender.environment = answer["facts"], answer["environment"]
            contender.version = str(answer["facts"].get("version", ""))
            if contender.gemm is None and contender.description.get("amx") in ("possible", "yes"):
                contender.gemm = team.ask(label, "gemm")["rate"]

    def _verify(self, team: Team, case: Case, process: int) -> None:
        """Each backend against the oracle, as it will be timed; also the first estimate of its time."""
        files = inputs_on_file.write(case, 0, 1, self.folder, untimed=False)
        rows = self._rows_before[case.id]
        for label in self._alive(case):
            self.progress.tick(f"{self.workload} t={case.tokens}: {label} against the oracle")
            reason = team.ask(label, "unsuited", label=label, tokens=case.tokens, routing=case.routing, seed=case.seed)[
                "reason"
            ]
            if reason is not None:
                name = label_of(self.contenders[label].facts.name)
                self.missing[label, case.id] = Missing(name, case.id, self.workload, "unsuited", reason)
                del self.runs[case.id].backends[label]
                continue
            run = self.runs[case.id].backends[label]
            begun = time.monotonic()
            answer, output, failure = self._take(team, label, case, files)
            wall = time.monotonic() - begun
            contender = self.contenders[label]
            if failure is None and len(contender.first_call_seconds) < len(contender.packing_seconds):
                contender.first_call_seconds.append(answer["seconds"])
            if failure is None and output is not None:
                reference = self._before.reference((case.id, 0), self.contenders[label].facts.backend.rounding)
                run.before, failure = compare(output[rows], reference)
            if failure is not None:
                run.failure = f"before timing: {failure}"
                self.progress.step(f"{case.id}: {label} is wrong: {failure}")
                continue
            wall, seconds = self._warm_up(team, label, case, files, answer["seconds"], wall)
            if process == 0:
                self.schedule.estimate(case, label, wall, seconds)

    def _warm_up(
        self, team: Team, label: str, case: Case, files: InputFiles, seconds: float, wall: float
    ) -> tuple[float, float]:
        """Untimed samples until two in a row agree within 5 %, or time is up; wall and call seconds of the last one."""
        spent = 0.0
        while spent + wall < self.plan.warm_up_seconds:
            begun = time.monotonic()
            answer, _, failure = self._take(team, label, case, files)
            wall = time.monotonic() - begun
            spent += wall
            if failure is not None:
                break
            before, seconds = seconds, answer["seconds"]
            if abs(seconds / before - 1) < 0.05:
                break
        return wall, seconds

    # ---- samples ----------------------------------------------------------------------------------------------

    def _rounds(self, team: Team, case: Case, process: int) -> None:
        self.monitor.start()
        done = 0
        limit = self.schedule.deadline_of(case)
        turns = self.schedule.turns(case, self._alive(case), self.rng)
        while done < self.schedule.rounds(case) and len(self._alive(case)) > 0:
            if done >= self.plan.fewest_rounds and time.monotonic() > limit:
                break
            self.progress.tick(
                f"{self.workload} t={case.tokens} {case.routing}: process {process + 1}/{self.plan.processes}, "
                f"round {done + 1}/{self.schedule.rounds(case)}"
            )
            number = self._rounds_done.get((case.id, process), 0)
            self._round(team, case, process, number, [label for label in self._alive(case) if done in turns[label]])
            self._rounds_done[case.id, process] = number + 1
            done += 1
        self.runs[case.id].disturbance += self.monitor.stop()
        self.progress.step(f"{case.id}: {done} rounds in process {process + 1}" + self._glance(case))

    def _round(self, team: Team, case: Case, process: int, number: int, labels: Sequence[str]) -> None:
        """One sample of each of the backends on the same new inputs, in random order."""
        calls = self._calls(case)
        first = self._next_index[case.id]
        self._next_index[case.id] += calls
        files = inputs_on_file.write(case, first, calls, self.folder, untimed=True)
        outputs: dict[str, exchange.Output] = {}
        work = [roofline.work(self.layer, one.topk_ids) for one in files.sets]
        for position, index in enumerate(self.rng.permutation(len(labels))):
            label = labels[index]
            answer, output, failure = self._take(team, label, case, files)
            run = self.runs[case.id].backends[label]
            if failure is not None or output is None:
                run.failure = failure
                continue
            outputs[label] = output
            run.spent.append(answer["spent"])
            run.samples_checked += 1
            run.samples.append(
                Sample(
                    process=process,
                    round=number,
                    position=position,
                    input=first,
                    calls=calls,
                    seconds=answer["seconds"],
                    bytes=float(np.mean([w.bytes for w in work])),
                    flops=float(np.mean([w.flops for w in work])),
                    experts=float(np.mean([w.experts for w in work])),
                    probe_read=answer["probe_read"],
                    probe_bf16=answer["probe_bf16"],
                    phases=answer["phases"],
                )
            )

        self._choose_rows(case, files, outputs)

    def _choose_rows(self, case: Case, files: InputFiles, outputs: dict[str, exchange.Output]) -> None:
        """For the oracle: random rows of one of the calls, and one more where the backends contradict each other."""
        call = int(self._chance.integers(len(files.sets)))
        mine = {label: output[call * case.tokens :][: case.tokens] for label, output in outputs.items()}
        rows = self._chance.choice(case.tokens, min(self.plan.rows, case.tokens), replace=False)
        disputed = disputed_row(list(mine.values()))
        if disputed is not None and disputed not in rows:
            rows = np.append(rows, disputed)
        key = (case.id, files.first_index + call)
        self._checks.add(key, take_rows(files.sets[call], rows))
        for label, output in mine.items():
            self._checks.record(label, key, output[rows])

    def _take(
        self, team: Team, label: str, case: Case, files: InputFiles
    ) -> tuple[dict[str, Any], exchange.Output | None, str | None]:
        """One sample: the worker's answer, its output, and what it did wrong that shows at once."""
        resumed = team.activate(label)
        warm = self.plan.cache == "warm"
        output_path = self.folder / "output"
        waited, begun = team.waited(label), time.perf_counter()
        try:
            answer = team.ask(
                label,
                "sample",
                label=label,
                tokens=case.tokens,
                inputs=list(files.paths),
                output=str(output_path),
                untimed=files.untimed if warm or resumed else None,
                cold=not warm,
                probe=self.plan.probe_seconds,
            )
        except BackendError as failed:
            if failed.crashed:
                raise
            return {"seconds": 1.0}, None, failed.reason
        wall, spent, calls = time.perf_counter() - begun, answer["spent"], len(files.paths)
        told = spent.pop("harness") + calls * (spent["bind"] + answer["seconds"] + spent["result"])
        # Question and answer wait for a CPU where threads of the worker's own, or other programs, are busy on it; what
        # the worker waited in between, its own clock saw.
        waited = team.waited(label) - waited - spent.pop("waited")
        answer["spent"] = Spent(**spent, unexplained=max(0.0, wall - told - max(0.0, waited)))
        if not answer["intact"]:
            return answer, None, "it changed its inputs"
        trespass = team.trespass(label)
        if trespass is not None:
            return answer, None, trespass
        try:
            output = exchange.read_output(output_path, answer["dtype"], case.tokens * calls, self.layer.hidden)
        except (ValueError, OSError) as error:
            return answer, None, str(error)
        finally:
            output_path.unlink(missing_ok=True)  # the next backend gets the same inputs: it shall find no answer there
        return answer, output, None

    def _calls(self, case: Case) -> int:
        """Calls in a sample. One where weights are cold: a second call would find them warm."""
        if self.plan.cache == "cold":
            return 1
        fastest = self.schedule.fastest(case)
        return max(1, min(MOST_CALLS, int(np.ceil(SAMPLE_SECONDS / fastest))))

    # ---- after the clock --------------------------------------------------------------------------------------

    def _look_at_weights(self, team: Team) -> None:
        """The weights are mapped copy on write: whoever changed them computed on weights of its own."""
        seen: set[str] = set()
        for label in self._alive():
            mates = set(team.mates(label))
            if label in seen:
                continue
            seen |= mates
            if not team.ask(label, "weights_intact")["intact"]:
                for mate in sorted(mates & set(self._alive())):
                    self._out(mate, f"the shared weights were changed in the process of {', '.join(sorted(mates))}")

    def _glance(self, case: Case) -> str:
        """Median milliseconds so far, for the progress line."""
        run = self.runs[case.id]
        parts = [
            f"{label} {np.median([s.seconds for s in b.samples]) * 1e3:.3g} ms"
            for label, b in run.backends.items()
            if b.samples and b.role != "control"
        ]
        return ": " + ", ".join(parts) if parts else ""


def _spread_rows(tokens: int, most: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """First, last and random rows in between."""
    if tokens <= most:
        return np.arange(tokens)
    inner = rng.choice(np.arange(1, tokens - 1), most - 2, replace=False)
    return np.concatenate(([0], np.sort(inner), [tokens - 1]))
