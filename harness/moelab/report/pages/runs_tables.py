"""Tables of whole models: what was measured, extrapolated and predicted, and whether the models were right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from moelab.report.blocks import Table, Value
from moelab.report.figures.model_runs import engines_of
from moelab.report.model import Interval
from moelab.report.model_runs import MARGIN, ModelRuns, RunCell, RunRatio
from moelab.report.pages.tables import TONES
from moelab.report.palette import engine_order
from moelab.report.text import binary_size, percent, ratio, ratio_interval, significant

Cells = Sequence[RunCell]


def pairs_of(cells: Cells) -> list[tuple[str, str]]:
    """(engine, baseline), each once."""
    found = {(r.engine, r.baseline) for cell in cells for r in cell.ratios}
    return sorted(found, key=lambda pair: (engine_order(pair[0]), engine_order(pair[1])))


def rates_table(cells: Cells, caption: str) -> Table:
    """Tokens per second of every engine, then the ratios, one row per kind of run and number of layers."""
    engines, pairs = engines_of(cells), pairs_of(cells)
    rows: list[list[str | Value]] = []
    for cell in cells:
        row: list[str | Value] = [Value(cell.name, _under(cell))]
        row += [_rate(cell, name) for name in engines]
        row += [ratio_value(cell, _ratio(cell, *pair)) for pair in pairs]
        rows.append(row)
    columns = ("run", *(f"{name} [tokens/s]" for name in engines), *(f"{e} over {b}" for e, b in pairs))
    units = "; ".join(f"{kind}: {unit}" for kind, unit in {c.id: c.unit for c in cells if c.phase}.items())
    return Table(caption, columns, rows, frozenset(range(1, len(columns))), note=(
        f"Medians, below them the interval. Verdicts from the interval and the margin of {MARGIN:.0%} alone, since "
        f"runs of models have no A/A control. Tokens per second count: {units}."
    ))  # fmt: skip


def _under(cell: RunCell) -> str:
    if not cell.extrapolated:
        return cell.about
    return f"extrapolated from {' and '.join(map(str, cell.from_layers))} layers, not run"


def _ratio(cell: RunCell, engine: str, baseline: str) -> RunRatio | None:
    return next((r for r in cell.ratios if (r.engine, r.baseline) == (engine, baseline)), None)


def ratio_value(cell: RunCell, found: RunRatio | None) -> Value:
    """A ratio with its interval and verdict, and "extrapolated" where it is."""
    if found is None:
        return Value("–", tone="muted")
    ends = ratio_interval(found.ratio.low, found.ratio.high)
    under = f"{ends}, {found.verdict}" if found.ratio.has_ends else "no interval"
    under += ", extrapolated" if cell.extrapolated else ""
    return Value(ratio(found.ratio.value), under, TONES[found.verdict])


def _rate(cell: RunCell, engine: str) -> Value:
    run = cell.engines.get(engine)
    if run is None or not math.isfinite(run.rate.value):
        return Value("–", tone="muted")
    return _with_interval(run.rate)


def _with_interval(value: Interval) -> Value:
    ends = f"{significant(value.low)}–{significant(value.high)}" if value.has_ends else ""
    return Value(significant(value.value), ends)


def amdahl_table(cells: Cells, caption: str) -> Table | None:
    """Prediction from the layer beside the measured ratio; None where the experts were not timed."""
    rows: list[list[str | Value]] = []
    for cell in cells:
        for found in sorted(cell.ratios, key=lambda r: (engine_order(r.engine), engine_order(r.baseline))):
            e = found.explanation
            if e is None or not math.isfinite(e.predicted.value):
                continue
            word, tone = {True: ("agrees", "good"), False: ("differs", "bad"), None: ("–", "muted")}[e.explained]
            rows.append(
                [
                    Value(cell.name, f"{found.engine} over {found.baseline}"),
                    percent(e.baseline_share),
                    ratio(e.layer_ratio),
                    Value(ratio(e.predicted.value), ratio_interval(e.predicted.low, e.predicted.high)),
                    Value(ratio(found.ratio.value), ratio_interval(found.ratio.low, found.ratio.high)),
                    ratio(e.rest_ratio),
                    Value(word, e.reason if e.explained is False else "", tone),
                ]
            )
    if not rows:
        return None
    columns = ("run", "experts' share of the baseline", "experts alone", "predicted", "measured", "everything else",
               "prediction")  # fmt: skip
    return Table(caption, columns, rows, frozenset(range(1, 6)), note=(
        "Amdahl: with a share s of the baseline's time in its experts and the experts r times as fast, the whole is "
        "1 / (1 - s + s / r) times as fast. s and r come from timers around the experts modules, in runs of their own. "
        "Everything else: the baseline's time outside the experts over the engine's; away from 1, the two differ in "
        "more than their experts. The prediction agrees where its interval and the measured one overlap."
    ))  # fmt: skip


def latency_table(cells: Cells, caption: str) -> Table | None:
    """Time to first token and per token in milliseconds, where they were taken."""
    engines = engines_of(cells)
    rows: list[list[str | Value]] = []
    for cell in cells:
        for what, field in (("first token", "first_token"), ("each further token", "per_token")):
            times = [getattr(cell.engines[name], field) if name in cell.engines else None for name in engines]
            if any(time and math.isfinite(time.value) for time in times):
                rows.append([Value(cell.name, what), *(_milliseconds(t) for t in times)])
    columns = ("run", *(f"{name} [ms]" for name in engines))
    return Table(caption, columns, rows, frozenset(range(1, len(columns)))) if rows else None


def _milliseconds(time: Interval | None) -> Value:
    if time is None or not math.isfinite(time.value):
        return Value("–", tone="muted")
    return _with_interval(Interval(time.value * 1e3, time.low * 1e3, time.high * 1e3))


def losses_table(runs: Sequence[ModelRuns], caption: str) -> Table | None:
    """Every ratio that is decided slower, worst first; None where there is none."""
    found = sorted(
        ((r.ratio.value, i, run, cell, r) for i, (run, cell, r) in enumerate(
            (run, cell, r) for run in runs for cell in run.cells for r in cell.ratios if r.verdict == "slower")),
        key=lambda item: item[:2],
    )  # fmt: skip
    rows: list[list[str | Value]] = [
        [f"{cell.model}, {cell.id}", cell.depth, f"{r.engine} over {r.baseline}", ratio_value(cell, r),
         run.machine.name]
        for _, _, run, cell, r in found
    ]  # fmt: skip
    return Table(caption, ("run", "layers", "what", "speed", "on"), rows, frozenset({3})) if rows else None


def checks_table(run: ModelRuns, models: Sequence[str], caption: str) -> Table | None:
    """Were the models right, and what did they need."""
    variants = {cell.variant for cell in run.cells if cell.model in models}
    words = {True: ("passed", "good"), False: ("WRONG", "bad"), None: ("not checked", "warn")}
    rows: list[list[str | Value]] = []
    for check in run.checks:
        if check.variant in variants:
            word, tone = words[check.passed]
            rows.append(
                [
                    f"{check.variant}, {check.engine}",
                    Value(word, check.failure, tone),
                    check.against or "–",
                    significant(check.max_error),
                    significant(check.bound),
                    percent(check.agreement),
                    str(check.positions or "–"),
                    binary_size(check.peak_bytes) if math.isfinite(check.peak_bytes) else "–",
                    significant(check.load_seconds),
                    check.residency or "–",
                ]
            )
    columns = ("model, engine", "logits", "against", "largest error", "its bound", "same best token", "positions",
               "peak memory", "loading [s]", "in memory")  # fmt: skip
    return Table(caption, columns, rows, frozenset({3, 4, 5, 6, 7, 8})) if rows else None


def engines_table(run: ModelRuns) -> Table:
    """What ran."""
    rows: list[list[str | Value]] = [
        [
            Value(e.name, "; ".join(e.notes)),
            f"{e.framework} {e.version}".strip() or "–",
            e.torch or "–",
            e.isa or "–",
            e.batching or "–",
            ", ".join(e.baselines) or "–",
        ]
        for e in run.engines
    ]
    columns = ("engine", "framework", "torch", "ISA", "batching", "compared with")
    return Table(f"Engines on {run.machine.name}", columns, rows)
