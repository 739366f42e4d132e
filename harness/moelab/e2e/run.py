"""Visits: one variant of a model in one generation of processes, one for each engine, checked and then timed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from moelab import machine
from moelab.conditions import Monitor
from moelab.cpus import bound_cpus
from moelab.e2e.cells import Cell, token_ids
from moelab.e2e.engines import ENGINES, REFERENCE, EngineProcess
from moelab.e2e.models import Variant, facts, variants_of
from moelab.e2e.plan import Plan
from moelab.progress import Progress
from moelab.worker_process import WorkerDiedError, WorkerError

Json = dict[str, Any]

TOLERANCE = 4.0
"""How many times another right rounding's distance from the reference an engine may be away from it."""
_CHECKED = (3, 24, 9)
"""Prompts, tokens of each, and tokens that follow the last one by one."""
_PROCESS_BYTES = 700_000_000
"""A process with torch and transformers, beside the model."""
_DISK_BYTES = 500_000_000
"""Left free on the disk beside a saved model."""


@dataclass(frozen=True)
class Sample:
    """One timed run of a cell. experts_seconds: only of runs with timers around the experts."""

    process: int
    round: int
    position: int
    seconds: float
    first_token: float | None
    per_token: float | None
    experts_seconds: float | None = None


@dataclass
class EngineOnVariant:
    """What one engine did with one variant: samples by cell id."""

    load_seconds: float | None = None
    peak_bytes: int | None = None
    check: Json | None = None
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    profiles: dict[str, list[Sample]] = field(default_factory=dict)


@dataclass
class VariantRun:
    """A variant with everything that was measured of it."""

    variant: Variant
    facts: Json
    residency: str = "together"
    engines: dict[str, EngineOnVariant] = field(default_factory=dict)


@dataclass
class Missing:
    """What was not measured, and why. kind: unavailable, skipped or failed."""

    engine: str | None
    variant: str | None
    cell: str | None
    kind: str
    reason: str


@dataclass
class Outcome:
    """Everything a run brought."""

    runs: list[VariantRun] = field(default_factory=list)
    engines: dict[str, Json] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> bool:
        return any(m.kind == "failed" for m in self.missing)


class Run:
    """Carries a plan out. `scratch` takes the logs of the engines and the reference's outputs."""

    def __init__(self, plan: Plan, scratch: Path, progress: Progress) -> None:
        self.plan = plan
        self.scratch = scratch
        self.progress = progress
        self.outcome = Outcome()
        self.cpus = bound_cpus(plan.threads)
        self.rng = np.random.default_rng([plan.seed, 9])
        self.monitor = Monitor()
        self._end = 0.0

    def __call__(self) -> Outcome:
        plan = self.plan
        started = time.monotonic()
        self._end = started + plan.budget
        found = [v for model in plan.models for v in variants_of(model, plan.layers, plan.seed)]
        for variant in found:
            run = VariantRun(variant, facts(variant))
            if self._fits(run):
                self.outcome.runs.append(run)
        visits = [(p, r) for p in range(plan.processes) for r in self._shuffled(self.outcome.runs)]
        for number, (process, run) in enumerate(visits):
            if process and time.monotonic() > self._end:
                left = ", ".join(f"{r.variant.name} in process {p}" for p, r in visits[number:])
                self.outcome.conditions.append(f"the time was up, so these were left out: {left}")
                break
            share = max(0.0, self._end - time.monotonic()) / (len(visits) - number)
            try:
                self._visit(process, run, time.monotonic() + share, f"{number + 1}/{len(visits)}")
            except KeyboardInterrupt:  # what is there is a result all the same, and says what is not
                self.outcome.conditions.append(f"interrupted during {run.variant.name} in process {process}")
                break
        return self.outcome

    def _fits(self, run: VariantRun) -> bool:
        """Whether the variant can be in memory at all, and in how many engines at once."""
        longest = max(sum(cell.prompts) for cell in self.plan.cells())
        longest_one = max(max(cell.prompts) for cell in self.plan.cells())
        activations = 24 * longest * run.facts["hidden"] + 10 * run.facts["heads"] * longest_one**2
        # Kept while it waits for its turn: the weights, and those of one expert in two forms while they are packed.
        kept = int(run.facts["bytes"] * 1.05) + _PROCESS_BYTES
        available: Any = machine.memory()["available"]
        everybody = kept * len(self.plan.engines) + activations
        run.residency = "together" if everybody < 0.9 * available else "one at a time"
        if kept + activations < 0.9 * available:
            return True
        reason = f"needs {(kept + activations) / 1e9:.1f} GB, {available / 1e9:.1f} GB are available"
        self._miss(None, run, "skipped", reason)
        return False

    def _visit(self, process: int, run: VariantRun, deadline: float, number: str) -> None:
        names = [n for n in self._shuffled(self.plan.engines) if not self._given_up(n, run)]
        if process == 0 and REFERENCE in names:
            names = [REFERENCE, *(n for n in names if n != REFERENCE)]
        self.progress.step(f"{number} {run.variant.name}: {', '.join(names)}, {run.residency}")
        self.monitor.start()
        try:
            self._make_reference(run, names)
            names = [n for n in names if not self._given_up(n, run)]  # for what no disk had room
            if run.residency == "together":
                self._measure(process, run, names, deadline, None)
            else:
                rounds = None
                for left, name in zip(range(len(names), 0, -1), names, strict=True):
                    share = max(0.0, deadline - time.monotonic()) / left
                    rounds = self._measure(process, run, [name], time.monotonic() + share, rounds)
        except (WorkerError, WorkerDiedError) as error:
            self._miss(None, run, "failed", str(error))
        words = self.monitor.stop().words()
        self.outcome.conditions += [f"{run.variant.name}, process {process}: {text}" for text in words]

    def _measure(
        self, process: int, run: VariantRun, names: list[str], deadline: float, rounds: int | None
    ) -> int | None:
        """Loads these engines, checks and times them interleaved; how many rounds it were, `rounds` if given."""
        with self._loaded(run, names) as team:
            done = 0
            took = 0.0
            while done < (rounds or self.plan.most_rounds):
                late = time.monotonic() + took * 1.3 > deadline  # a third more, for what varies
                if rounds is None and done >= self.plan.fewest_rounds and late:
                    break
                start = time.monotonic()
                self._round(process, done, run, team, profile=False)
                took = time.monotonic() - start
                done += 1
            for number in range(self.plan.fewest_rounds):
                self._round(process, number, run, team, profile=True)
            for name, engine in team.items():
                peak = engine.ask("peak")["bytes"]
                before = run.engines[name].peak_bytes
                run.engines[name].peak_bytes = max(peak or 0, before or 0) or None
            return done if team else rounds

    def _round(
        self, process: int, number: int, run: VariantRun, team: dict[str, EngineProcess], *, profile: bool
    ) -> None:
        for cell in self.plan.cells():
            ids = self._ids(cell, run, process, number)
            for position, name in enumerate(self._shuffled(list(team))):
                self.progress.tick(f"{run.variant.name} {cell.id} {name}, round {number + 1}")
                engine = team[name]
                try:
                    answer = engine.ask("profile" if profile else "run", cell=cell.as_json(), ids=ids)
                except (WorkerError, WorkerDiedError) as error:
                    self._miss(name, run, "failed", f"{cell.id}: {error}", cell.id)
                    team.pop(name).kill()
                    continue
                engine.pause()
                kept = run.engines[name].profiles if profile else run.engines[name].samples
                kept.setdefault(cell.id, []).append(Sample(process, number, position, **answer))

    def _ids(self, cell: Cell, run: VariantRun, process: int, number: int) -> list[list[int]]:
        """Rows of a prompt and the tokens fed after it; a decode's context stays, since it is made once."""
        seed, kind = self.plan.seed, sum(cell.id.encode())
        longest, steps = max(cell.prompts), max(cell.outputs)
        vocabulary = run.facts["vocabulary"]
        fixed = number if cell.phase != "decode" else 0
        prompts = token_ids(vocabulary, (cell.batch, longest), seed, kind, process, fixed)
        fed = token_ids(vocabulary, (cell.batch, steps + 1), seed, kind, process, number, 1)
        if cell.phase == "prefill":
            return [[int(i) for i in row] for row in prompts]
        return [
            [*map(int, prompt[:length]), *map(int, more)]
            for prompt, more, length in zip(prompts, fed, cell.prompts, strict=True)
        ]

    @contextmanager
    def _loaded(self, run: VariantRun, names: list[str]) -> Iterator[dict[str, EngineProcess]]:
        """These engines with the variant loaded and proven right; those that fail are left out and named."""
        team: dict[str, EngineProcess] = {}
        started: list[EngineProcess] = []
        try:
            for name in names:
                if missing := ENGINES[name].missing():
                    self._miss(name, None, "unavailable", missing)
                    continue
                engine = self._start(name)
                started.append(engine)
                reason = self._prepare(engine, run)
                engine.pause()
                if reason is None:
                    team[name] = engine
                else:
                    self.monitor.retire(engine.pid)
                    engine.close()
            yield team
        finally:
            for engine in started:
                self.monitor.retire(engine.pid)
                engine.close()

    def _start(self, name: str) -> EngineProcess:
        engine = EngineProcess(
            name, threads=self.plan.threads, cpus=self.cpus, log=self.scratch / f"{name.replace('+', '-')}.log"
        )
        self.monitor.pids.add(engine.pid)
        return engine

    def _prepare(self, engine: EngineProcess, run: VariantRun) -> str | None:
        """None once the engine is ready to be timed, else why it is not."""
        name = engine.name
        self.progress.tick(f"{run.variant.name}: {name} loads")
        try:
            self.outcome.engines[name] = engine.ask("start", module=engine.entry.module, name=name)
        except (WorkerError, WorkerDiedError) as error:
            absent = str(error).startswith(("ImportError", "ModuleNotFoundError"))
            self._miss(name, None, "unavailable" if absent else "failed", str(error))
            return str(error)
        kept = run.engines.setdefault(name, EngineOnVariant())
        cells = self.plan.cells()
        try:
            start = time.monotonic()
            most_tokens = max(max(c.prompts) + max(c.outputs) + 2 for c in cells)
            most_sequences = max(c.batch for c in cells)
            variant = run.variant
            if engine.entry.checkpoint and _has_to_be_saved(run):
                variant = replace(variant, path=str(self._checkpoint(run)))
            engine.ask("load", variant=variant.as_json(), most_tokens=most_tokens, most_sequences=most_sequences)
            kept.load_seconds = min(time.monotonic() - start, kept.load_seconds or float("inf"))
            kept.check = self._check(engine, run)
            engine.ask("forget_peak")
        except (WorkerError, WorkerDiedError) as error:
            self._miss(name, run, "failed", str(error))
            return str(error)
        if not kept.check["passed"]:
            self._miss(name, run, "failed", kept.check["failure"])
            return str(kept.check["failure"])
        return None

    def _make_reference(self, run: VariantRun, names: list[str]) -> None:
        """The reference's outputs for all engines' checks, by a process of its own that ends before others start.

        It also writes the model where one of `names` loads checkpoints only.
        """
        saves = self._has_to_save(run, names)
        if self._reference(run).exists() and not saves:
            return
        with self._start(REFERENCE) as engine:
            engine.ask("start", module=ENGINES[REFERENCE].module, name=REFERENCE)
            engine.ask("load", variant=run.variant.as_json(), most_tokens=64, most_sequences=1)
            if not self._reference(run).exists():
                prompts, continuation = self._checked_tokens(run)
                out = str(self._reference(run))
                answer = engine.ask("reference_logits", prompts=prompts, continuation=continuation, out=out)
                run.facts["noise"] = answer["noise"]
            if saves:
                self._save(engine, run)
            self.monitor.retire(engine.pid)

    def _has_to_save(self, run: VariantRun, names: list[str]) -> bool:
        """Whether the model has to be written for one of `names`, and can be; where it cannot, they are given up."""
        readers = [n for n in names if ENGINES[n].checkpoint and ENGINES[n].missing() is None]
        if not readers or not _has_to_be_saved(run) or self._checkpoint(run).exists():
            return False
        reason = self._no_room_on_disk(run)
        for name in readers if reason else ():
            self._miss(name, run, "skipped", str(reason))
        return reason is None

    def _no_room_on_disk(self, run: VariantRun) -> str | None:
        """Why the model cannot be saved; other models' files, which can be written again, give way to it."""
        needed = int(run.facts["bytes"] * 1.01) + _DISK_BYTES
        for other in self.outcome.runs:
            if self._free_bytes() < needed:
                shutil.rmtree(self._checkpoint(other), ignore_errors=True)
        free = self._free_bytes()
        if free >= needed:
            return None
        return (
            f"it loads checkpoints only, and writing this one needs {needed / 1e9:.1f} GB of disk; {free / 1e9:.1f} GB "
            "are free in the folder for temporary files (the variable TMPDIR names another)"
        )

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self.scratch).free

    def _save(self, engine: EngineProcess, run: VariantRun) -> None:
        self.progress.tick(f"{run.variant.name}: {run.facts['bytes'] / 1e9:.1f} GB are written for other engines")
        try:
            engine.ask("save", folder=str(self._checkpoint(run)))
        except (WorkerError, WorkerDiedError):  # the next process shall not find half of it
            shutil.rmtree(self._checkpoint(run), ignore_errors=True)
            raise

    def _check(self, engine: EngineProcess, run: VariantRun) -> Json:
        prompts, continuation = self._checked_tokens(run)
        found = engine.ask("compare", prompts=prompts, continuation=continuation, reference=str(self._reference(run)))
        pairs = [(d, TOLERANCE * n) for d, n in zip(found["distances"], run.facts["noise"], strict=False)]
        distance, bound = max(pairs, key=lambda pair: pair[0] / max(pair[1], 1e-12))
        failure = None
        if not distance <= bound:
            failure = (
                f"wrong outputs: log-probabilities are {distance:.3g} away from those of {REFERENCE} in the median "
                f"position, more than {bound:.3g}"
            )
        return {
            "against": REFERENCE,
            "prompts": len(prompts),
            "positions": found["positions"],
            "max_error": distance,
            "bound": bound,
            "agreement": found["agreement"],
            "passed": failure is None,
            "failure": failure,
        }

    def _checkpoint(self, run: VariantRun) -> Path:
        return self.scratch / run.variant.name.replace("/", "-")

    def _reference(self, run: VariantRun) -> Path:
        return self.scratch / f"{run.variant.name.replace('/', '-')}.npy"

    def _checked_tokens(self, run: VariantRun) -> tuple[list[list[int]], list[int]]:
        count, length, more = _CHECKED
        vocabulary = run.facts["vocabulary"]
        prompts = token_ids(vocabulary, (count, length), self.plan.seed, 7).tolist()
        return prompts, token_ids(vocabulary, (more,), self.plan.seed, 8).tolist()

    def _shuffled(self, items: Any) -> list[Any]:
        return [items[i] for i in self.rng.permutation(len(items))]

    def _given_up(self, name: str, run: VariantRun) -> bool:
        """What failed once, or had no room, is not tried again in the next process."""
        return any(m.engine == name and m.variant in (None, run.variant.name) for m in self.outcome.missing)

    def _miss(
        self, engine: str | None, run: VariantRun | None, kind: str, reason: str, cell: str | None = None
    ) -> None:
        self.outcome.missing.append(Missing(engine, run.variant.name if run else None, cell, kind, reason))
        self.progress.step(f"{engine or 'all engines'}: {kind}: {reason}")


def _has_to_be_saved(run: VariantRun) -> bool:
    """Whether the model in BF16 is not on disk yet, for engines that load nothing else."""
    return run.variant.path is None or run.facts["unpacked"]
