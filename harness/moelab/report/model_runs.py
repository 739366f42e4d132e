"""Results of whole models ("moelab_e2e": 1): what `nox -s e2e` timed, engine by engine, as the report's pages need it.

Times are seconds, rates are tokens per second, ratios are baseline's time / engine's (above 1: the engine is faster).
The file is untrusted: what is missing or of the wrong type reads as NaN, "" or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from moelab.report.model import Interval, Machine, Missing, Result
from moelab.report.reading import Node
from moelab.report.text import count

MARK = "moelab_e2e"
SCHEMA = 1
MARGIN = 0.02
_MOST = 500  # of anything listed


@dataclass(frozen=True, slots=True)
class Engine:
    """What ran a model. `batching`: static or continuous; `baselines`: the engines that it is compared with."""

    name: str
    framework: str
    version: str
    torch: str
    isa: str
    batching: str
    baselines: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model: its full number of layers, and of how many layers the ones were that ran."""

    name: str
    source: str
    shape: str
    layers: int
    layers_measured: tuple[int, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Check:
    """One engine's logits in one variant against a reference; memory and loading beside it."""

    variant: str
    engine: str
    against: str
    passed: bool | None
    positions: int
    max_error: float
    bound: float
    agreement: float
    failure: str
    peak_bytes: float
    load_seconds: float
    residency: str


@dataclass(frozen=True, slots=True)
class EngineRun:
    """One engine in one cell. `share`: fraction of its time in the experts modules; NaN where that was not timed."""

    seconds: Interval
    rate: Interval
    first_token: Interval
    per_token: Interval
    share: Interval
    samples: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Amdahl's prediction of a ratio from the layer's ratio and the baseline's share of time in the experts."""

    baseline_share: float
    layer_ratio: float
    predicted: Interval
    rest_ratio: float
    explained: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class RunRatio:
    """An engine's speed over a baseline in one cell; `explanation` is None where the experts were not timed."""

    engine: str
    baseline: str
    ratio: Interval
    pairs: int
    minimum_detectable: float
    explanation: Explanation | None

    @property
    def verdict(self) -> str:
        """From the interval and the margin alone: a run of a model has no A/A control."""
        low, high = self.ratio.low, self.ratio.high
        if not self.ratio.has_ends:
            return "undecided"
        if low > 1 + MARGIN:
            return "faster"
        if high < 1 / (1 + MARGIN):
            return "slower"
        return "same" if low >= 1 / (1 + MARGIN) and high <= 1 + MARGIN else "undecided"


@dataclass(frozen=True, slots=True)
class RunCell:
    """One kind of run of a model of `layers` layers; `extrapolated`: fitted to full depth, not run."""

    model: str
    variant: str
    layers: int
    id: str
    phase: str
    about: str
    unit: str
    note: str
    extrapolated: bool
    from_layers: tuple[int, ...]
    engines: Mapping[str, EngineRun]
    ratios: tuple[RunRatio, ...]

    @property
    def depth(self) -> str:
        """2 layers, or: all 24 layers, extrapolated."""
        return f"all {self.layers} layers, extrapolated" if self.extrapolated else count(self.layers, "layer")

    @property
    def name(self) -> str:
        """decode/b8, 2 layers."""
        return f"{self.id}, {count(self.layers, 'layer')}"


@dataclass(frozen=True, slots=True)
class ModelRuns:
    """One result file of whole models."""

    result: Result
    threads: int
    engines: tuple[Engine, ...]
    models: tuple[Subject, ...]
    checks: tuple[Check, ...]
    cells: tuple[RunCell, ...]

    @property
    def machine(self) -> Machine:
        return self.result.machine


def read_model_runs(document: Node, result: Result) -> ModelRuns:
    """Raises ValueError where nothing was timed."""
    cells = [_cell(node) for node in list(document["cells"].items())[:_MOST]]
    cells += [_full(node) for node in list(document["full_depth"].items())[:_MOST]]
    cells = [cell for cell in cells if cell.model and cell.id and cell.engines]
    if not cells:
        raise ValueError("no timed run of a model in this file")
    return ModelRuns(
        result=result,
        threads=document["run"]["threads"].integer(),
        engines=tuple(_engine(node) for node in document["engines"].items() if node["name"].text()),
        models=tuple(_subject(node) for node in document["models"].items() if node["name"].text()),
        checks=tuple(check for node in document["variants"].items() for check in _checks(node)),
        cells=tuple(cells),
    )


def read_missing(document: Node) -> tuple[Missing, ...]:
    """What did not run and why."""
    return tuple(
        Missing(
            node["engine"].text("all engines", limit=100),
            ", ".join(part for part in (node["variant"].text(), node["cell"].text()) if part) or "whole run",
            node["kind"].text("skipped", limit=40),
            node["reason"].text("no reason given"),
        )
        for node in list(document["missing"].items())[:_MOST]
    )


def _engine(node: Node) -> Engine:
    return Engine(
        name=node["name"].text(limit=60),
        framework=node["framework"].text(limit=60),
        version=node["version"].text(limit=60),
        torch=node["torch"].text(limit=60),
        isa=node["isa"].text(limit=40),
        batching=node["batching"].text(limit=40),
        baselines=node["baselines"].texts(20, 60),
        notes=tuple(
            f"{name.replace('_', ' ')}: {text}" for name, value in node["notes"].pairs() if (text := _scalar(value))
        ),
    )


def _scalar(node: Node) -> str:
    flag = node.flag()
    return node.text(limit=200) if flag is None else "yes" if flag else "no"


def _subject(node: Node) -> Subject:
    sizes = [f"{letter} {size}" for letter, key in (("E", "experts"), ("K", "topk"), ("H", "hidden"),
             ("I", "intermediate")) if (size := node[key].integer())]  # fmt: skip
    return Subject(
        name=node["name"].text(limit=100),
        source=node["source"].text(limit=200),
        shape=", ".join(part for part in (node["architecture"].text(limit=80), *sizes) if part),
        layers=node["layers"].integer(),
        layers_measured=node["layers_measured"].integers()[:20],
        note=node["note"].text(),
    )


def _checks(variant: Node) -> list[Check]:
    found = []
    for name, engine in list(variant["engines"].pairs())[:20]:
        check = engine["check"]
        found.append(
            Check(
                variant=variant["name"].text(limit=100),
                engine=name,
                against=check["against"].text(limit=100),
                passed=check["passed"].flag(),
                positions=check["positions"].integer(),
                max_error=check["max_error"].number(),
                bound=check["bound"].number(),
                agreement=check["agreement"].number(),
                failure=check["failure"].text(),
                peak_bytes=engine["peak_bytes"].positive(),
                load_seconds=engine["load_seconds"].positive(),
                residency=variant["residency"].text(limit=60),
            )
        )
    return found


def _cell(node: Node) -> RunCell:
    return RunCell(
        model=node["model"].text(limit=100),
        variant=node["variant"].text(limit=100),
        layers=node["layers"].integer(),
        id=node["id"].text(limit=60),
        phase=node["phase"].text(limit=40),
        about=_about(node),
        unit=node["unit"].text("tokens", limit=60),
        note=node["note"].text(),
        extrapolated=False,
        from_layers=(),
        engines={name: _run(run) for name, run in list(node["engines"].pairs())[:20] if _timed(run)},
        ratios=_ratios(node),
    )


def _full(node: Node) -> RunCell:
    layers, model = node["layers"].integer(), node["model"].text(limit=100)
    return RunCell(
        model=model,
        variant=f"{model}/{layers}L",
        layers=layers,
        id=node["id"].text(limit=60),
        phase="",
        about="",
        unit="tokens",
        note=node["note"].text(),
        extrapolated=True,
        from_layers=node["from_layers"].integers()[:20],
        engines={name: _run(run) for name, run in list(node["engines"].pairs())[:20] if _timed(run)},
        ratios=_ratios(node),
    )


def _about(node: Node) -> str:
    batch, prompt, output = (node[key].integer() for key in ("batch", "prompt_tokens", "output_tokens"))
    return f"batch {batch}, {prompt} prompt tokens, {output} output tokens"


def _timed(run: Node) -> bool:
    return math.isfinite(run["seconds"]["median"].positive())


def _run(run: Node) -> EngineRun:
    share = _interval(run["experts"]["share"])
    alone = run["experts_share"].number()  # at full depth, a number without an interval
    return EngineRun(
        seconds=_interval(run["seconds"]),
        rate=_interval(run["tokens_per_second"]),
        first_token=_interval(run["time_to_first_token"]),
        per_token=_interval(run["time_per_token"]),
        share=share if math.isfinite(share.value) else Interval(alone),
        samples=sum(1 for _ in run["samples"]["seconds"].items()),
    )


def _interval(node: Node) -> Interval:
    return Interval(node["median"].positive(), node["low"].positive(), node["high"].positive())


def _ratios(node: Node) -> tuple[RunRatio, ...]:
    found = []
    for item in list(node["ratios"].items())[:_MOST]:
        engine, baseline = item["engine"].text(limit=60), item["baseline"].text(limit=60)
        value = item["value"].positive()
        if engine and baseline and math.isfinite(value):
            found.append(
                RunRatio(
                    engine=engine,
                    baseline=baseline,
                    ratio=Interval(value, item["low"].positive(), item["high"].positive()),
                    pairs=item["pairs"].integer(),
                    minimum_detectable=item["minimum_detectable"].number(),
                    explanation=_explanation(item["amdahl"]) if item["amdahl"] else None,
                )
            )
    return tuple(found)


def _explanation(node: Node) -> Explanation:
    return Explanation(
        baseline_share=node["baseline_share"].number(),
        layer_ratio=node["layer_ratio"].positive(),
        predicted=_interval(node["predicted"]),
        rest_ratio=node["rest_ratio"].positive(),
        explained=node["explained"].flag(),
        reason=node["reason"].text(),
    )
