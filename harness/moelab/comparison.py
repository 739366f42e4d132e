"""Compares runs with each other: a change of the code, or of the machine and the day.

Two runs were not interleaved. What is compared is therefore, where both have one, the speed relative to the baseline
that ran beside it: the machine's mood of the day is in both halves of that ratio. Times themselves come second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy import stats

from moelab import statistics
from moelab.statistics import Pairs, Ratio, Verdict

Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One backend in one case of one result file. `speed` is relative to the baseline of its run."""

    case: str
    label: str
    seconds: list[float]
    process: list[int]
    speed: Ratio | None
    control: Ratio | None
    context: tuple[tuple[str, str], ...]
    """What has to be equal for a difference to be the code's."""


@dataclass(frozen=True)
class Change:
    """new against old: `ratio` above 1 is faster. `basis` says what was compared."""

    case: str
    label: str
    old_seconds: float
    new_seconds: float
    ratio: Ratio
    basis: str
    verdict: Verdict


def entries(document: Json) -> dict[tuple[str, str], Entry]:
    """By case and label; measurements that broke and wrong ones are not there."""
    found: dict[tuple[str, str], Json] = {}
    for entry in document["benchmarks"]:
        info = entry["extra_info"]
        if info["correctness"]["passed"] and not info["roofline"]["broken"]:
            found[info["case"]["id"], info["backend"]["label"]] = entry
    baseline = document["moelab"]["run"]["baseline"]
    speeds, controls = {}, {}
    for label in dict.fromkeys(label for _, label in found):
        cells = {case: entry for (case, own), entry in found.items() if own == label}
        if any(_role(entry) == "control" for entry in cells.values()):
            names = {case: entry["extra_info"]["backend"]["name"] for case, entry in cells.items()}
            controls.update(_paired({case: (found.get((case, names[case])), e) for case, e in cells.items()}))
        elif label != baseline:
            paired = _paired({case: (found.get((case, baseline)), entry) for case, entry in cells.items()})
            speeds.update({(case, label): ratio for case, ratio in paired.items()})
    return {
        key: Entry(
            case=key[0],
            label=key[1],
            seconds=list(entry["stats"]["data"]),
            process=list(entry["extra_info"]["samples"]["process"]),
            speed=speeds.get(key),
            control=controls.get(key[0]),
            context=_context(entry["extra_info"], document),
        )
        for key, entry in found.items()
        if _role(entry) != "control"
    }


def by_layer(found: dict[tuple[str, str], Entry]) -> dict[tuple[str, str], Entry]:
    """The same by case without its threads: files from other numbers of threads meet, and are told apart by name."""
    return {(case.rpartition("/")[0] or case, label): entry for (case, label), entry in found.items()}


def _role(entry: Json) -> str:
    return str(entry["extra_info"]["backend"]["role"])


def _paired(cells: dict[str, tuple[Json | None, Json]]) -> dict[str, Ratio]:
    """Time of the first over time of the second entry of each cell, over the rounds that both have, if any."""
    kept = {}
    for case, (first, second) in cells.items():
        if first is None:
            continue
        left, right = _by_round(first), _by_round(second)
        common = [key for key in left if key in right]
        if common:
            kept[case] = Pairs(
                [left[key] for key in common], [right[key] for key in common], [key[0] for key in common]
            )
    return dict(zip(kept, statistics.paired_ratios(list(kept.values())), strict=True))


def _by_round(entry: Json) -> dict[tuple[int, int], float]:
    samples = entry["extra_info"]["samples"]
    return dict(zip(zip(samples["process"], samples["round"], strict=True), entry["stats"]["data"], strict=True))


def _context(info: Json, document: Json) -> tuple[tuple[str, str], ...]:
    cpu = document["machine_info"]["moelab"]["cpu"]
    case, setting = info["case"], info["setting"]
    shape = "/".join(
        str(case[k]) for k in ("experts", "topk", "hidden", "intermediate", "activation", "bias", "gate_up")
    )
    return (
        ("CPU part", str(cpu["part"])),
        ("threads", str(setting["threads"])),
        ("weights", str(setting["cache"])),
        ("layer", shape),
        ("routing and seed", f"{case['routing']}, {case['seed']}"),
    )


def differences(old: Entry, new: Entry) -> list[str]:
    """Why a difference between the two is not a change of the code; empty if it can be."""
    return [
        f"{name}: {before} and {after}"
        for (name, before), (_, after) in zip(old.context, new.context, strict=True)
        if before != after
    ]


def change(old: Entry, new: Entry, *, margin: float = statistics.MARGIN) -> Change:
    """The change of one backend in one case from run to run."""
    if old.speed is not None and new.speed is not None:
        ratio, basis = quotient(old.speed, new.speed), "speed relative to the baseline of its run"
    else:
        before, after = (statistics.paired_ratio([1.0] * len(e.seconds), e.seconds, e.process) for e in (old, new))
        ratio, basis = quotient(before, after), "time"
    control = _noisier(old.control, new.control)
    return Change(
        case=new.case,
        label=new.label,
        old_seconds=statistics.interval(old.seconds, old.process).median,
        new_seconds=statistics.interval(new.seconds, new.process).median,
        ratio=ratio,
        basis=basis,
        verdict=statistics.judge(ratio, control, margin=margin),
    )


def quotient(old: Ratio, new: Ratio) -> Ratio:
    """new / old of two independent ratios: half widths add as squares, degrees of freedom as Welch's."""
    level, tail = old.level, (1 - old.level) / 2
    log = {name: [math.log(getattr(r, name)) for r in (old, new)] for name in ("value", "low", "high")}
    middle = log["value"][1] - log["value"][0]
    critical = [float(stats.t.isf(tail, r.freedom)) for r in (old, new)]
    down = [log["value"][0] - log["high"][0], log["value"][1] - log["low"][1]]
    up = [log["value"][0] - log["low"][0], log["high"][1] - log["value"][1]]
    errors = [(log["high"][i] - log["low"][i]) / 2 / critical[i] for i in (0, 1)]
    freedom = _welch(errors, [old.freedom, new.freedom])
    wide = float(stats.t.isf(tail, freedom))
    below, above = (wide * math.hypot(side[0] / critical[0], side[1] / critical[1]) for side in (down, up))
    detectable = math.expm1(min(50.0, (wide + float(stats.t.ppf(statistics.POWER, freedom))) * math.hypot(*errors)))
    return Ratio(
        value=math.exp(middle),
        low=math.exp(middle - below),
        high=math.exp(middle + above),
        level=level,
        pairs=min(old.pairs, new.pairs),
        processes=min(old.processes, new.processes),
        freedom=freedom,
        minimum_detectable=detectable,
    )


def _welch(errors: list[float], freedom: list[float]) -> float:
    squares = [e * e for e in errors]
    total = sum(squares)
    if total == 0.0:
        return min(freedom)
    return float(total**2 / sum(s * s / f for s, f in zip(squares, freedom, strict=True) if s))


def _noisier(first: Ratio | None, second: Ratio | None) -> Ratio | None:
    """The A/A control that showed more; None unless both runs had one."""
    if first is None or second is None:
        return None
    return max(first, second, key=lambda r: max(-math.log(r.low), math.log(r.high)))
