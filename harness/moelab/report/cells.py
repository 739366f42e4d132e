"""The entries of a result file grouped into cells, ours compared with every backend of the same cell."""

from __future__ import annotations

import math

from moelab.report.model import (
    OURS,
    Case,
    Cell,
    Comparison,
    Control,
    Correctness,
    Interval,
    Measurement,
    Packing,
    Result,
    Roofline,
    Samples,
    Setting,
)
from moelab.report.pairing import paired_ratios
from moelab.report.reading import Node
from moelab.report.text import clean
from moelab.workloads import Layer

VERDICTS = ("faster", "slower", "same", "undecided", "broken")
PHASES = ("route", "pack", "gemm1", "gemm2", "combine", "wait")


def read_cells(document: Node, result: Result) -> list[Cell]:
    """Every cell of one file. Entries without a layer, tokens, a backend or a time are left out."""
    groups: dict[tuple[Case, Setting], list[Node]] = {}
    for entry in document["benchmarks"].items():
        extra = entry["extra_info"]
        about = extra["case"]
        if not (about["workload"].text() and about["tokens"].integer() and extra["backend"]["name"].text()):
            continue
        groups.setdefault((_case(about), _setting(extra)), []).append(entry)
    described = {cell["case"].text(): cell for cell in document["moelab"]["cells"].items()}
    cells = []
    for (case, setting), entries in groups.items():
        key = entries[0]["extra_info"]["case"]["id"].text() or entries[0]["group"].text()
        cells.append(_cell(case, setting, entries, described.get(key, Node(None)), result))
    return [cell for cell in cells if cell.measurements]


def _case(case: Node) -> Case:
    sizes = ", ".join(
        f"{letter} {case[name].integer()}"
        for letter, name in (("E", "experts"), ("K", "topk"), ("H", "hidden"), ("I", "intermediate"))
        if case[name]
    )
    kind = [case["activation"].text(limit=30), "biases" if case["bias"].flag() else ""]
    return Case(
        workload=case["workload"].text(limit=100),
        tokens=case["tokens"].integer(),
        routing=case["routing"].text("unknown", limit=60),
        shape=", ".join(part for part in (sizes, *kind) if part),
        note=case["note"].text(),
        seed=case["seed"].integer(),
    )


def _setting(extra: Node) -> Setting:
    setting = extra["setting"]
    return Setting(
        routing=extra["case"]["routing"].text("unknown", limit=60),
        threads=setting["threads"].integer(),
        cache=setting["cache"].text(limit=20),
    )


def _cell(case: Case, setting: Setting, entries: list[Node], about: Node, result: Result) -> Cell:
    measured: dict[str, Measurement] = {}
    control_samples: Samples | None = None
    for entry in entries:
        backend = entry["extra_info"]["backend"]
        if backend["role"].text() == "control":
            control_samples = _samples(entry)
        elif measurement := _measurement(entry):
            measured[measurement.backend] = measurement
    control = _control(about["control"])
    ratios: tuple[float, ...] = ()
    if control and control_samples and control.of in measured:
        ratios = paired_ratios(measured[control.of].samples, control_samples)
    rounds = about["rounds"].integer() or max((len(m.samples.seconds) for m in measured.values()), default=0)
    return Cell(
        case=case,
        setting=setting,
        baseline=about["baseline"].text(limit=100),
        measurements=measured,
        control=control,
        control_ratios=ratios,
        rounds=rounds,
        processes=about["processes"].integer(1),
        conditions=about["conditions"].texts(),
        result=result,
    )


def _control(node: Node) -> Control | None:
    value = node["value"].positive()
    if not math.isfinite(value):
        return None
    ratio = Interval(value, node["low"].positive(), node["high"].positive())
    return Control(node["of"].text(OURS, limit=100), ratio, node["inside_margin"].flag())


def _measurement(entry: Node) -> Measurement | None:
    extra, stats = entry["extra_info"], entry["stats"]
    backend, time = extra["backend"], extra["time"]
    median = time["median"].positive(stats["median"].positive())
    if not math.isfinite(median):
        return None
    name = backend["name"].text(limit=100)
    return Measurement(
        backend=name,
        version=backend["version"].text(limit=120),
        isa=backend["isa"].text(limit=40),
        rounding=_rounding(backend["rounding"]),
        uses_amx=backend["uses_amx"].flag(),
        time=Interval(median, time["low"].positive(), time["high"].positive()),
        samples=_samples(entry),
        comparisons=_judged(extra),
        roofline=_roofline(extra["roofline"]),
        correctness=_correctness(extra["correctness"]),
        packing=_packing(backend, extra["case"]),
        phases=_phases(extra["phases"]),
    )


def _judged(extra: Node) -> dict[str, Comparison]:
    ratio, verdict = extra["ratio"], extra["verdict"]
    value, against = ratio["value"].positive(), ratio["baseline"].text(limit=100)
    if not (math.isfinite(value) and against):
        return {}
    word = verdict["table"].text() or verdict["alone"].text()
    return {
        against: Comparison(
            against=against,
            ratio=Interval(value, ratio["low"].positive(), ratio["high"].positive()),
            verdict=word if word in VERDICTS else "undecided",
            pairs=ratio["pairs"].integer(),
            source="file",
            minimum_detectable=ratio["minimum_detectable"].number(),
        )
    }


def _samples(entry: Node) -> Samples:
    data = entry["stats"]["data"]
    seconds = tuple(node.positive() for node in data.items())
    placed = entry["extra_info"]["samples"]
    process, turn = placed["process"].integers(), placed["round"].integers()
    if not (len(process) == len(turn) == len(seconds)):
        process, turn = (), ()
    return Samples(seconds, process, turn)


def _packing(backend: Node, case: Node) -> Packing:
    def known(key: str) -> tuple[float, ...]:
        return tuple(value for node in backend[key].items() if (value := node.number()) >= 0)

    return Packing(
        seconds=known("packing_seconds"),
        first_call=known("first_call_seconds"),
        extra_bytes=known("packing_extra_bytes"),
        weight_bytes=_weight_bytes(case),
        packed_bytes=backend["packed_bytes"].positive(),
        method=backend["notes"]["packing"].text(limit=120),
    )


def _weight_bytes(case: Node) -> float:
    """Of the layer as it is given to every backend; NaN where the file does not tell its sizes."""
    sizes = [case[name].integer() for name in ("experts", "hidden", "intermediate")]
    if 0 in sizes:
        return math.nan
    experts, hidden, intermediate = sizes
    layer = Layer("", experts, 1, hidden, intermediate, "silu", bias=case["bias"].flag() is True)
    return float(layer.weight_bytes)


def _roofline(node: Node) -> Roofline:
    return Roofline(
        limit=node["limit"].text("unknown", limit=20),
        bound_seconds=node["bound_seconds"].positive(),
        fraction=Interval(node["fraction"].positive(), node["low"].positive(), node["high"].positive()),
        bytes=node["bytes"].positive(),
        flops=node["flops"].positive(),
        bandwidth=node["bandwidth"].positive(),
        peak=node["peak"].positive(),
        peak_source=node["peak_source"].text(limit=200),
        broken=node["broken"].flag() is True,
        reason=node["reason"].text(),
    )


def _correctness(node: Node) -> Correctness:
    checks = [node["before"], node["after"]]
    worst = max(checks, key=lambda check: check["worst"].number(-1.0))
    return Correctness(
        passed=node["passed"].flag(),
        max_error=worst["max_error"].number(),
        bound=worst["bound"].number(),
        worst=worst["worst"].number(),
        flips=worst["flips"].number(),
        flip_limit=worst["flip_limit"].number(),
        samples_checked=node["samples_checked"].integer(),
        failure=node["failure"].text(),
    )


# The points of moelab.rounding.Rounding in words; what is not here is not a rounding to BF16.
_ROUNDINGS: dict[tuple[str, str | bool], str] = {
    ("gemm1", True): "gate and up",
    ("bias", "bf16"): "biases",
    ("activation", "once"): "activation",
    ("activation", "steps"): "each step of the activation",
    ("expert", "unweighted"): "each expert's output",
    ("expert", "weighted"): "each expert's weighted output",
    ("combine", "bf16"): "each addition of experts",
    ("output", True): "output",
    ("to", "zero"): "all of them to zero, not to nearest",
    ("gelu_tanh", "fp16-table"): "gelu from a table of FP16",
}


def _rounding(node: Node) -> str:
    """The points at which a backend rounds to BF16, in words; older files hold a list of them."""
    if listed := node.texts(20, 80):
        return ", ".join(listed)
    found = {(name, value.value) for name, value in node.pairs() if isinstance(value.value, str | bool)}
    return ", ".join(words for point, words in _ROUNDINGS.items() if point in found)


def _phases(node: Node) -> dict[str, float]:
    found = {clean(name, 20): value.number() for name, value in node.pairs()}
    return {name: found[name] for name in PHASES if math.isfinite(found.get(name, math.nan)) and found[name] >= 0}
