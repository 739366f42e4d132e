"""Samples of a run to intervals, ratios and their explanation by the experts' share (Amdahl)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from moelab import statistics
from moelab.e2e import fit
from moelab.e2e.cells import Cell
from moelab.e2e.engines import ENGINES
from moelab.e2e.run import Outcome, Sample, VariantRun
from moelab.statistics import Interval

Json = dict[str, Any]


def cell_entries(outcome: Outcome, cells: Sequence[Cell], seed: int) -> list[Json]:
    """One entry per variant and cell that was measured."""
    entries = []
    for run in outcome.runs:
        for cell in cells:
            engines = {
                name: _engine_entry(cell, e.samples[cell.id], e.profiles.get(cell.id, []), seed)
                for name, e in sorted(run.engines.items())
                if cell.id in e.samples
            }
            if engines:
                entries.append(_cell_entry(run, cell, engines, seed))
    return entries


def _cell_entry(run: VariantRun, cell: Cell, engines: dict[str, Json], seed: int) -> Json:
    ratios = [
        _ratio(run, cell, engine, baseline, seed)
        for engine in engines
        for baseline in ENGINES[engine].baselines
        if baseline in engines
    ]
    return {
        "variant": run.variant.name,
        "model": run.variant.model,
        "layers": run.facts["layers"],
        "id": cell.id,
        "phase": cell.phase,
        "batch": cell.batch,
        "prompt_tokens": sum(cell.prompts),
        "output_tokens": sum(cell.outputs),
        "unit": cell.unit,
        "note": _note(cell),
        "engines": engines,
        "ratios": [r for r in ratios if r is not None],
    }


def _note(cell: Cell) -> str | None:
    if cell.phase == "decode":
        return f"one step of the whole batch, behind {cell.prompts[0]} tokens of context each"
    if cell.phase == "mixed":
        return (
            f"{cell.batch} requests at once, prompts of {min(cell.prompts)} to {max(cell.prompts)} tokens, outputs of "
            f"{min(cell.outputs)} to {max(cell.outputs)}; with static batching padding and waiting for the longest "
            "output are part of the time, and only tokens asked for are counted"
        )
    return None


def _engine_entry(cell: Cell, samples: Sequence[Sample], profiles: Sequence[Sample], seed: int) -> Json:
    process = [s.process for s in samples]
    seconds = statistics.interval([s.seconds for s in samples], process, seed=seed)
    names = ("process", "round", "position", "seconds", "first_token", "per_token")
    return {
        "samples": {name: [getattr(s, name) for s in samples] for name in names},
        "seconds": asdict(seconds),
        "tokens_per_second": asdict(_rate(cell.tokens, seconds)),
        "time_to_first_token": _optional([s.first_token for s in samples], process, seed),
        "time_per_token": _optional([s.per_token for s in samples], process, seed),
        "experts": _experts(profiles, seconds, seed) if profiles else None,
    }


def _rate(tokens: int, seconds: Interval) -> Interval:
    if seconds.low <= 0:  # of a fit through noise
        return Interval(tokens / seconds.median, tokens / seconds.high, float("inf"), seconds.level)
    return Interval(tokens / seconds.median, tokens / seconds.high, tokens / seconds.low, seconds.level)


def _optional(values: Sequence[float | None], process: Sequence[int], seed: int) -> Json | None:
    known = [(v, p) for v, p in zip(values, process, strict=True) if v is not None and v > 0]
    if not known:
        return None
    return asdict(statistics.interval([v for v, _ in known], [p for _, p in known], seed=seed))


def _experts(profiles: Sequence[Sample], plain: Interval, seed: int) -> Json:
    process = [s.process for s in profiles]
    inside = [s.experts_seconds or 0.0 for s in profiles]
    shares = [e / s.seconds for e, s in zip(inside, profiles, strict=True)]
    return {
        "samples": {
            "process": process,
            "round": [s.round for s in profiles],
            "position": [s.position for s in profiles],
            "seconds": [s.seconds for s in profiles],
            "experts_seconds": inside,
        },
        "share": asdict(statistics.interval(shares, process, seed=seed)),
        "seconds": asdict(statistics.interval(inside, process, seed=seed)),
        "overhead": float(np.median([s.seconds for s in profiles])) / plain.median - 1,
    }


def _ratio(run: VariantRun, cell: Cell, engine: str, baseline: str, seed: int) -> Json | None:
    left, right = _paired(run.engines[baseline].samples[cell.id], run.engines[engine].samples[cell.id])
    if not left:
        return None
    ratio = statistics.paired_ratio(
        [s.seconds for s in left], [s.seconds for s in right], [s.process for s in left], seed=seed
    )
    names = ("value", "low", "high", "level", "pairs", "processes", "minimum_detectable")
    return {
        "engine": engine,
        "baseline": baseline,
        **{name: getattr(ratio, name) for name in names},
        "amdahl": amdahl(
            *_paired(run.engines[baseline].profiles.get(cell.id, []), run.engines[engine].profiles.get(cell.id, [])),
            Interval(ratio.value, ratio.low, ratio.high, ratio.level),
            names=(baseline, engine),
            seed=seed,
        ),
    }


def _paired(left: Sequence[Sample], right: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Those that both have of the same process and round."""
    others = {(s.process, s.round): s for s in right}
    both = [s for s in left if (s.process, s.round) in others]
    return both, [others[s.process, s.round] for s in both]


def amdahl(
    baseline: Sequence[Sample], engine: Sequence[Sample], measured: Interval, *, names: tuple[str, str], seed: int = 0
) -> Json | None:
    """Whether what the experts gain explains the whole: 1 / ((1 - share) + share / layer ratio) beside the measured.

    From runs with timers around the experts, paired. None without such runs. The prediction supposes that everything
    else takes the same time with both engines; where it does not, `reason` says by how much.
    """
    if not baseline or any(not s.experts_seconds for s in (*baseline, *engine)):
        return None
    inside = np.array([s.experts_seconds for s in baseline], dtype=np.float64)
    whole = np.array([s.seconds for s in baseline])
    own_inside = np.array([s.experts_seconds for s in engine], dtype=np.float64)
    own_rest = np.array([s.seconds for s in engine]) - own_inside
    share, layer = inside / whole, inside / own_inside
    predicted = statistics.interval(list(1 / ((1 - share) + share / layer)), [s.process for s in baseline], seed=seed)
    rest = float(np.median((whole - inside) / np.maximum(own_rest, 1e-12)))
    explained = predicted.low <= measured.high and measured.low <= predicted.high
    return {
        "baseline_share": float(np.median(share)),
        "layer_ratio": float(np.median(layer)),
        "predicted": asdict(predicted),
        "rest_ratio": rest,
        "explained": bool(explained),
        "reason": _reason(explained=explained, rest=rest, predicted=predicted, measured=measured, names=names),
    }


def _reason(*, explained: bool, rest: float, predicted: Interval, measured: Interval, names: tuple[str, str]) -> str:
    baseline, engine = names
    if explained:
        return "the experts' share and their gain explain the ratio: the intervals overlap"
    much = f"{abs(1 / rest - 1):.0%} {'less' if rest > 1 else 'more'}"
    return (
        f"predicted {predicted.median:.2f} [{predicted.low:.2f}, {predicted.high:.2f}], measured {measured.median:.2f} "
        f"[{measured.low:.2f}, {measured.high:.2f}]: outside the experts {engine} takes {much} time than {baseline}"
    )


def full_depth(entries: Sequence[Json], runs: Sequence[VariantRun], cells: Sequence[Cell]) -> list[Json]:
    """Figures at the models' full depth, extrapolated from cut ones; nothing for a checkpoint or a single depth."""
    found = []
    for model in dict.fromkeys(r.variant.model for r in runs if r.variant.path is None):
        known = next(r.facts for r in runs if r.variant.model == model)
        for cell in cells:
            chosen = [e for e in entries if e["model"] == model and e["id"] == cell.id]
            entry = _at_full_depth(model, known["full_layers"], cell, chosen)
            if entry is not None:
                entry["note"] = _kinds_note([r for r in runs if r.variant.model == model])
                found.append(entry)
    return found


def _at_full_depth(model: str, layers: int, cell: Cell, entries: Sequence[Json]) -> Json | None:
    names = [n for n in ENGINES if entries and all(n in e["engines"] for e in entries)]
    depths = [e["layers"] for e in entries]
    if len(set(depths)) < 2 or not names:
        return None
    lines = {n: fit.line(depths, [_interval(e["engines"][n]["seconds"]) for e in entries], layers) for n in names}
    engines = {}
    for name in names:
        at = lines[name].at
        engines[name] = {
            "fixed": asdict(lines[name].fixed),
            "per_layer": asdict(lines[name].per_layer),
            "seconds": asdict(at),
            "tokens_per_second": _finite(_rate(cell.tokens, at)) if at.median > 0 else None,
            "experts_share": _experts_share(name, depths, entries, lines[name]),
        }
    ratios = []
    for name in names:
        for baseline in ENGINES[name].baselines:
            ratio = fit.quotient(lines[baseline].at, lines[name].at) if baseline in lines else None
            if ratio is not None:
                found = _finite(ratio)
                ratios.append({"engine": name, "baseline": baseline, "value": found.pop("median"), **found})
    return {
        "model": model,
        "id": cell.id,
        "layers": layers,
        "extrapolated": True,
        "from_layers": sorted(set(depths)),
        "unit": cell.unit,
        "engines": engines,
        "ratios": ratios,
    }


def _experts_share(name: str, depths: Sequence[int], entries: Sequence[Json], line: fit.Line) -> float | None:
    """Layers x the experts' seconds per layer over the whole; None where they were not timed or a fit went below 0."""
    experts = [e["engines"][name]["experts"] for e in entries]
    if not all(experts) or line.at.median <= 0:
        return None
    per_layer = float(np.mean([x["seconds"]["median"] / n for x, n in zip(experts, depths, strict=True)]))
    return min(1.0, line.layers * per_layer / line.at.median)


def _finite(interval: Interval) -> Json:
    """JSON has no infinity: None is an end that does not exist."""
    return {k: (v if np.isfinite(v) else None) for k, v in asdict(interval).items()}


def _kinds_note(runs: Sequence[VariantRun]) -> str | None:
    """Says so where the layers by which the depths differ are not mixed as those of the whole model are."""
    by_depth = sorted(runs, key=lambda r: r.facts["layers"])
    shallow: Counter[str] = Counter(by_depth[0].facts["layer_kinds"])
    added: Counter[str] = Counter(by_depth[-1].facts["layer_kinds"])
    added -= shallow
    whole: Counter[str] = Counter(by_depth[0].facts["full_kinds"])
    if all(added[kind] * whole.total() == whole[kind] * added.total() for kind in whole):
        return None
    kinds, mixed = (", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in c.items()) for c in (added, whole))
    return f"the layers per which time is fitted are {kinds}; those of the whole model are {mixed}"


def _interval(entry: Mapping[str, float]) -> Interval:
    return Interval(entry["median"], entry["low"], entry["high"], entry["level"])
