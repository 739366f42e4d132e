"""`--expect cpu=neoverse-n2,features=bf16`: refuses to measure on another machine than the one that was meant."""

from __future__ import annotations

from typing import Any

KEYS = ("cpu", "features", "threads", "arch")


def parse(text: str) -> dict[str, list[str]]:
    """`key=value` separated by commas; several values of one key by "+". ValueError for anything else."""
    wanted: dict[str, list[str]] = {}
    for item in text.split(","):
        key, equals, values = item.partition("=")
        if not equals or not values or key.strip() not in KEYS:
            raise ValueError(f"--expect {item!r}: must be one of {', '.join(k + '=…' for k in KEYS)}")
        wanted.setdefault(key.strip(), []).extend(v.strip() for v in values.split("+"))
    return wanted


def unmet(wanted: dict[str, list[str]], facts: dict[str, Any]) -> list[str]:
    """What of the contract this machine does not keep, in words; empty if it keeps all."""
    cpu = facts["cpu"]
    names, features = _plain(f"{cpu['part']} {cpu['name']} {cpu['vendor']}"), {f.lower() for f in cpu["features"]}
    allowed, architecture = str(facts["cpus"]["allowed"]), facts["architecture"]
    this = f"this is {cpu['name']} ({cpu['part']})"
    return [
        *(f"cpu={v}: {this}" for v in wanted.get("cpu", []) if _plain(v) not in names),
        *(f"features={v}: missing, {this}" for v in wanted.get("features", []) if v.lower() not in features),
        *(f"threads={v}: {allowed} CPUs are allowed here" for v in wanted.get("threads", []) if v != allowed),
        *(f"arch={v}: this is {architecture}" for v in wanted.get("arch", []) if v != architecture),
    ]


def _plain(text: str) -> str:
    """Spelling of names varies: "Neoverse-N2", "neoverse n2", "neoverse_n2"."""
    return "".join(c for c in text.lower() if c.isalnum() or c == "/")
