"""Options of a run, the same on the command line and for pytest (there with the prefix --moelab-)."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from moelab import plan as plans
from moelab import tiles
from moelab.cpus import bound_cpus, default_threads
from moelab.plan import Plan


def names(text: str) -> tuple[str, ...]:
    """The names in `a,b`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str) -> tuple[int, ...]:
    """The integers in `1,2`. ArgumentTypeError with a sentence where one is none."""
    try:
        return tuple(int(part) for part in names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers separated by commas") from None


OPTIONS: dict[str, dict[str, Any]] = {
    "workload": {
        "type": names,
        "metavar": "NAME,…",
        "help": f"layers to run, from `moelab workloads`; default {','.join(plans.WORKLOADS)}",
    },
    "tokens": {
        "type": numbers,
        "metavar": "N,…",
        "help": f"numbers of tokens; default {','.join(map(str, plans.TOKENS))}",
    },
    "backend": {
        "type": names,
        "metavar": "NAME,…",
        "help": f"implementations, from `moelab backends`, or FILE.py:Class; default {','.join(plans.BACKENDS)}",
    },
    "baseline": {"metavar": "NAME", "help": f"what speeds are relative to; default {plans.BASELINE}"},
    "threads": {"type": int, "metavar": "N", "help": "default: the cores that this process may use"},
    "routing": {
        "type": names,
        "metavar": "KIND,…",
        "help": "uniform, skewed, one-hot, trace:FILE.npz; default uniform",
    },
    "cache": {
        "choices": ("cold", "warm"),
        "help": "whether weights may be in a cache when a call begins; default cold, as between the layers of a model",
    },
    "quick": {"action": "store_true", "help": "within three minutes: tokens 1, 16, 256, and fewer cells decided"},
    "seed": {"type": int, "metavar": "N", "help": "of weights, inputs, routing and order; default 0"},
    "inputs": {
        "type": int,
        "metavar": "N",
        "help": "number of the first input set, as recorded by an earlier run; default: drawn by chance",
    },
    "processes": {"type": int, "metavar": "N", "help": "how often everything is set up anew"},
    "budget": {
        "type": float,
        "metavar": "SECONDS",
        "help": "time for all measurements; rounds adapt to it, those of slow peers first",
    },
    "profile": {
        "action": "store_true",
        "help": "also split the calls of ours into route, pack, gemm1, gemm2, combine and wait, for the report",
    },
    "tile": {
        "metavar": "NAME",
        "help": f"order of neon_bf16's main loop, for cores short of their peak: {', '.join(tiles.NAMES)}",
    },
    "expect": {
        "metavar": "KEY=VALUE,…",
        "help": "stop before measuring unless the machine keeps this: cpu=neoverse-n2,features=bf16",
    },
    "emulated": {
        "action": "store_true",
        "help": "run under emulation all the same, as a test: the file is marked, its times mean nothing",
    },
}  # fmt: skip

_FIELDS = {
    "workload": "workloads",
    "tokens": "tokens",
    "backend": "backends",
    "baseline": "baseline",
    "threads": "threads",
    "routing": "routings",
    "cache": "cache",
    "seed": "seed",
    "inputs": "first_input",
    "processes": "processes",
    "budget": "budget",
    "profile": "profile",
    "tile": "tile",
    "emulated": "emulated",
}


def add_to(add: Callable[..., object], prefix: str = "--") -> None:
    """Adds the options with `parser.add_argument` or pytest's `group.addoption`."""
    for name, keywords in OPTIONS.items():
        add(f"{prefix}{name}", default=None, **keywords)


def plan_of(value_of: Callable[[str], Any]) -> Plan:
    """The plan that the options ask for; `value_of` gives None where one was not given. ValueError if one is wrong."""
    given = {field: value for name, field in _FIELDS.items() if (value := value_of(name)) is not None}
    given.setdefault("threads", default_threads())
    if value_of("quick"):
        given = {"quick": True, **plans.QUICK, **given}
    if "backends" in given and "baseline" not in given and plans.BASELINE not in given["backends"]:
        given["baseline"] = _other_baseline(given["backends"])
    plan = Plan(**given)
    tiles.check(plan.tile, plan.backends)
    bound_cpus(plan.threads)  # raises where there are too few
    return plan


def _other_baseline(backends: tuple[str, ...]) -> str:
    """Without the usual baseline in the run: the first peer of ours, so that ratios still mean something."""
    peers = [name for name in backends if name.partition(":")[0] != "moelab"]
    return (peers or list(backends))[0]


def arguments_of(value_of: Callable[[str], Any]) -> list[str]:
    """Command-line arguments that give the same options again."""
    arguments: list[str] = []
    for name, keywords in OPTIONS.items():
        value = value_of(name)
        if value is None or value is False:
            continue
        arguments.append(f"--{name}")
        if keywords.get("action") != "store_true":
            arguments.append(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return arguments
