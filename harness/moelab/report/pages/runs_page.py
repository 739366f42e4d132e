"""The page "From layer to model": whole models, engine by engine, and why they gain less than their layers."""

from __future__ import annotations

from collections.abc import Sequence

from moelab.report.blocks import Banner, Block, Command, Link, Links, Page, Section, Table, Text, Value
from moelab.report.figures import model_runs as figures
from moelab.report.figures.canvas import Drawn
from moelab.report.load import Loaded, machine_key
from moelab.report.model import OURS, Interval
from moelab.report.model_runs import ModelRuns, RunCell, RunRatio
from moelab.report.pages import runs_tables as tables
from moelab.report.pages.claim import claim_section
from moelab.report.pages.context import Context, machine_page
from moelab.report.provenance import GOES_ON, origin
from moelab.report.text import count, ratio, ratio_interval, slug

PAGE = "from-layer-to-model"
TITLE = "From layer to model"
_PHASES = ("prefill", "decode", "mixed")
MOST_ROWS = 24


def newest(loaded: Loaded) -> list[ModelRuns]:
    """Of every machine, number of threads and model the newest file's cells; real ones before invented ones."""
    chosen: dict[tuple[object, ...], ModelRuns] = {}
    for run in sorted(loaded.model_runs, key=lambda r: (r.result.started, r.result.digest)):
        for model in {cell.model for cell in run.cells}:
            chosen[(machine_key(run.result), run.threads, model)] = run
    kept = []
    for run in loaded.model_runs:
        own = tuple(c for c in run.cells if chosen[(machine_key(run.result), run.threads, c.model)] is run)
        if own:
            kept.append(ModelRuns(run.result, run.threads, run.engines, run.models, run.checks, _ordered(own)))
    return sorted(kept, key=lambda r: (r.result.synthetic, r.result.emulated, r.machine.name, r.result.started))


def _ordered(cells: Sequence[RunCell]) -> tuple[RunCell, ...]:
    """By model, then prefill, decode, mixed, then fewest layers first."""
    phase = {cell.id: cell.phase for cell in cells if cell.phase}
    place = {cell.id: i for i, cell in reversed(list(enumerate(cells)))}

    def key(cell: RunCell) -> tuple[str, int, int, int]:
        kind = phase.get(cell.id, "")
        return cell.model, _PHASES.index(kind) if kind in _PHASES else 9, place[cell.id], cell.layers

    return tuple(sorted(cells, key=key))


def is_ours(engine: str) -> bool:
    """Whether the engine's experts are ours: moelab, vllm+moelab."""
    return OURS in engine.split("+")


def our_ratios(runs: Sequence[ModelRuns], *, extrapolated: bool) -> list[tuple[ModelRuns, RunCell, RunRatio]]:
    return [
        (run, cell, r)
        for run in runs
        for cell in run.cells
        for r in cell.ratios
        if is_ours(r.engine) and cell.extrapolated == extrapolated
    ]


def sentences(runs: Sequence[ModelRuns]) -> list[str]:
    """The result in words, per machine: what was measured, what was lost, whether the layer explains it."""
    said = []
    for run in runs:
        loud = "SYNTHETIC, not measured: " if run.result.synthetic else ""
        loud = loud or ("EMULATED, no speed: " if run.result.emulated else "")
        found = our_ratios([run], extrapolated=False)
        if not found:
            said.append(f"{loud}On {run.machine.name} no engine with our kernels was compared with another.")
            continue
        parts = []
        for pair in dict.fromkeys((r.engine, r.baseline) for _, _, r in found):
            own = [r for _, _, r in found if (r.engine, r.baseline) == pair]
            low, high = min(r.ratio.value for r in own), max(r.ratio.value for r in own)
            parts.append(f"{pair[0]} at {ratio(low)} to {ratio(high)} the speed of {pair[1]}")
        models = list(dict.fromkeys(cell.model for _, cell, _ in found))
        words = {w: sum(r.verdict == w for _, _, r in found) for w in ("faster", "same", "undecided", "slower")}
        counts = ", ".join(f"{number} {word}" for word, number in words.items())
        told = [r.explanation for _, _, r in found if r.explanation and r.explanation.explained is not None]
        agree = sum(e.explained is True for e in told)
        explained = f" The layer's own ratio explains {agree} of {len(told)} (Amdahl)." if told else ""
        said.append(
            f"{loud}On {run.machine.name} with {count(run.threads, 'thread')}, whole models ({', '.join(models)}"
            f"{_cut(run)}) ran with {'; '.join(parts)}. Of {count(len(found), 'comparison')}: {counts}.{explained}"
        )
    return said


def _cut(run: ModelRuns) -> str:
    cut = any(cell.extrapolated for cell in run.cells)
    return ", cut to few layers" if cut else ""


def runs_page(context: Context) -> Page | None:
    """None where no file holds runs of models."""
    runs = newest(context.loaded)
    if not runs:
        return None
    page = Page(PAGE, f"{PAGE}.html", TITLE, group="Models")
    first = Section("")
    first.blocks += context.alarms
    first.blocks += [Text(sentence, lead=True) for sentence in sentences(runs)]
    first.blocks.append(Banner("info", "What these numbers are", _what(runs)))
    page.sections.append(first)
    page.sections.append(_lost(runs))
    claim = claim_section(context.groups, runs)
    claim.brief = False  # the front page's is
    page.sections.append(claim)
    for run in runs:
        for model in dict.fromkeys(cell.model for cell in run.cells):
            page.sections.append(_model(context, run, model))
    for run in runs:
        page.sections.append(_how(run))
    return page


def _what(runs: Sequence[ModelRuns]) -> tuple[str, ...]:
    lines = [
        "Whole models: attention, embedding, sampling and everything else that a model does is in the times.",
    ]
    if any(cell.extrapolated for run in runs for cell in run.cells):
        lines.append(
            "Full depth is extrapolated from fewer layers (time = fixed + layers x time per layer). It was not run."
        )
    for run in runs:
        for model in run.models:
            if any(cell.model == model.name for cell in run.cells):
                cut = f", {model.layers} layers in full" if model.layers else ""
                note = f"; {model.note}" if model.note else ""
                lines.append(f"{model.name}: {model.source} ({model.shape}{cut}){note}.")
    return tuple(dict.fromkeys(lines))


def _lost(runs: Sequence[ModelRuns]) -> Section:
    section = Section("Where a model got slower")
    mine = [ModelRuns(r.result, r.threads, r.engines, r.models, r.checks, tuple(_only_ours(c) for c in r.cells))
            for r in runs]  # fmt: skip
    table = tables.losses_table(mine, "Runs that are slower with our kernels")
    total = sum(len(cell.ratios) for run in mine for cell in run.cells)
    section.blocks.append(
        table or Text(f"None of {count(total, 'comparison')} with our kernels is decided slower than its baseline.")
    )
    return section


def _only_ours(cell: RunCell) -> RunCell:
    own = tuple(r for r in cell.ratios if is_ours(r.engine))
    return RunCell(cell.model, cell.variant, cell.layers, cell.id, cell.phase, cell.about, cell.unit, cell.note,
                   cell.extrapolated, cell.from_layers, cell.engines, own)  # fmt: skip


def _model(context: Context, run: ModelRuns, model: str) -> Section:
    section = Section(f"{model} on {run.machine.name}, {count(run.threads, 'thread')}")
    cells = [cell for cell in run.cells if cell.model == model]
    section.blocks += context.figures(_charts(run, model, cells))
    section.blocks.append(tables.rates_table(cells, f"{model}: tokens per second and speed"))
    wanted = (
        tables.amdahl_table(cells, f"{model}: does the layer's speedup explain the model's?"),
        tables.latency_table(cells, f"{model}: time to the first token and per token"),
        tables.checks_table(run, [model], f"{model}: logits, memory and loading"),
    )
    section.blocks += [table for table in wanted if table]
    notes = list(dict.fromkeys(cell.note for cell in cells if cell.note))
    section.blocks += [Text(note) for note in notes]
    return section


def _charts(run: ModelRuns, model: str, cells: list[RunCell]) -> list[Drawn | None]:
    key = machine_page(machine_key(run.result), run.machine.name)

    def name(*parts: str) -> str:
        return slug("-".join(("model", *parts, model, key, f"{run.threads}T")))

    def footer(units: str) -> str:
        sizes = [engine.samples for cell in cells if not cell.extrapolated for engine in cell.engines.values()]
        low, high = min(sizes, default=0), max(sizes, default=0)
        n = f"n = {low if low == high else f'{low} to {high}'} runs per point" if sizes else "n unknown"
        return origin([run.result], units, n, [count(run.threads, "thread")])

    charts = [
        figures.speeds(
            name("speed", engine, baseline),
            f"{model}: speed of {engine} over {baseline}",
            footer(f"Time of the baseline / time of the engine, median over paired runs; NL: N layers{GOES_ON}"),
            cells,
            engine,
            baseline,
        )
        for engine, baseline in tables.pairs_of(cells)
    ]
    return [
        *charts,
        figures.experts_share(
            name("share"), f"{model}: time in the experts", footer("Median time; share from timed runs"), cells
        ),
        figures.rates(
            name("rates"), f"{model}: tokens per second", footer(f"Tokens per second, median{GOES_ON}"), cells
        ),
    ]


def _how(run: ModelRuns) -> Section:
    section = Section(f"How it was run on {run.machine.name}, {run.result.started[:10] or 'date unknown'}")
    section.blocks.append(tables.engines_table(run))
    if run.result.command:
        section.blocks.append(Command(run.result.command))
    page = machine_page(machine_key(run.result), run.machine.name)
    section.blocks.append(Links((Link(f"{run.machine.name}: facts, conditions, result files", page=page),)))
    return section


# ---- on the front page ----------------------------------------------------------------------------------------------
def brief(context: Context) -> Section:
    """The point of the page, for the front page and the Markdown."""
    section = Section(TITLE, brief=True)
    runs = newest(context.loaded)
    if not runs:
        return section
    section.blocks += [Text(sentence, lead=not context.groups) for sentence in sentences(runs)]
    rows = _brief_rows(runs)
    note = "Predicted: from the layer's ratio inside the model and the experts' share of its time (Amdahl)."
    if len(rows) > MOST_ROWS:
        note = f"The first {MOST_ROWS} of {len(rows)}; the page has the rest. {note}"
    columns = ("run", "measured", "predicted", "full depth, extrapolated", "on")
    blocks: list[Block] = [Table("Whole models", columns, rows[:MOST_ROWS], frozenset({1, 2, 3}), note)]
    section.blocks += [*blocks, Links((Link("From layer to model, in full", page=PAGE),))]
    return section


def _brief_rows(runs: Sequence[ModelRuns]) -> list[list[str | Value]]:
    """One row per kind of run and pair of engines: at the most layers that ran, and at full depth."""
    fitted = {(id(run), cell.model, cell.id, r.engine, r.baseline): (cell, r)
              for run, cell, r in our_ratios(runs, extrapolated=True)}  # fmt: skip
    rows: list[list[str | Value]] = []
    for run, cell, r in our_ratios(runs, extrapolated=False):
        if cell.layers < max(c.layers for c in run.cells if (c.model, c.extrapolated) == (cell.model, False)):
            continue
        measured = tables.ratio_value(cell, r)
        full = fitted.get((id(run), cell.model, cell.id, r.engine, r.baseline))
        rows.append(
            [
                Value(f"{cell.model}, {cell.id}", f"{r.engine} over {r.baseline}"),
                Value(measured.text, f"{measured.under}, {cell.depth}", measured.tone),
                _predicted(r),
                tables.ratio_value(*full) if full else Value("–", tone="muted"),
                f"{run.machine.name}, {count(run.threads, 'thread')}",
            ]
        )
    return rows


def _predicted(r: RunRatio) -> Value:
    p = r.explanation.predicted if r.explanation else Interval(float("nan"))
    return Value(ratio(p.value), ratio_interval(p.low, p.high) if p.has_ends else "")
