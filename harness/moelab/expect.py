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
    found = []
    for value in wanted.get("cpu", []):
        if _plain(value) not in _plain(f"{cpu['part']} {cpu['name']} {cpu['vendor']}"):
            found.append(f"cpu={value}: this is {cpu['name']} ({cpu['part']})")
    for value in wanted.get("features", []):
        if value.lower() not in (f.lower() for f in cpu["features"]):
            found.append(f"features={value}: this CPU lacks it ({cpu['name']})")
    for value in wanted.get("threads", []):
        if value != str(facts["cpus"]["allowed"]):
            found.append(f"threads={value}: {facts['cpus']['allowed']} CPUs are allowed here")
    for value in wanted.get("arch", []):
        if value != facts["architecture"]:
            found.append(f"arch={value}: this is {facts['architecture']}")
    return found


def _plain(text: str) -> str:
    """Spelling of names varies: "Neoverse-N2", "neoverse n2", "neoverse_n2"."""
    return "".join(c for c in text.lower() if c.isalnum() or c == "/")
