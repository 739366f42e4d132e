"""What a run prints at its end."""

from __future__ import annotations

from typing import Any

from moelab.text_table import table

Json = dict[str, Any]


def summary(found: Json) -> str:
    """Every cell's speeds and ratios, what explains them, the figures at full depth, and memory."""
    lines = []
    rows = [row for cell in found["cells"] for row in _rows(cell)]
    if rows:
        header = ["model", "cell", "engine", "tokens/s", "experts", "against", "ratio", "predicted"]
        lines.append(table(header, rows))
    deep = [row for entry in found["full_depth"] for row in _deep_rows(entry)]
    if deep:
        lines += ["", "Extrapolated to full depth:", table(["model", "cell", "engine", "tokens/s", "ratio"], deep)]
    memory = [row for variant in found["variants"] for row in _memory_rows(variant)]
    if memory:
        lines += [
            "",
            "Memory of the process while it was timed:",
            table(["model", "engine", "weights", "peak"], memory),
        ]
    ratios = [r["amdahl"] for cell in found["cells"] for r in cell["ratios"] if r["amdahl"]]
    if ratios:
        explained = sum(a["explained"] for a in ratios)
        lines.append(f"The experts' share and gain explain {explained} of {len(ratios)} ratios.")
        lines += [
            f"{cell['variant']} {cell['id']}: {r['amdahl']['reason']}"
            for cell in found["cells"]
            for r in cell["ratios"]
            if r["amdahl"] and not r["amdahl"]["explained"]
        ]
    lines += [
        f"{m['engine'] or 'all engines'} {m['variant'] or ''}: {m['kind']}: {m['reason']}" for m in found["missing"]
    ]
    lines += [f"unsteady: {text}" for text in found["conditions"]]
    return "\n".join(lines)


def _rows(cell: Json) -> list[list[str]]:
    rows = []
    for name, entry in cell["engines"].items():
        share = f"{entry['experts']['share']['median']:.0%}" if entry["experts"] else ""
        start = [cell["variant"], cell["id"], name, f"{entry['tokens_per_second']['median']:.4g}", share]
        ratios = [r for r in cell["ratios"] if r["engine"] == name]
        if not ratios:
            rows.append([*start, "", "", ""])
        for ratio in ratios:
            predicted = f"{ratio['amdahl']['predicted']['median']:.2f}" if ratio["amdahl"] else ""
            rows.append([*start, ratio["baseline"], _interval(ratio, "value"), predicted])
    return rows


def _deep_rows(entry: Json) -> list[list[str]]:
    rows = []
    for name, engine in entry["engines"].items():
        speed = engine["tokens_per_second"]
        ratios = [f"{_interval(r, 'value')} of {r['baseline']}" for r in entry["ratios"] if r["engine"] == name]
        model = f"{entry['model']}, {entry['layers']} layers"
        rows.append([model, entry["id"], name, _interval(speed, "median") if speed else "no fit", ", ".join(ratios)])
    return rows


def _memory_rows(variant: Json) -> list[list[str]]:
    return [
        [variant["name"], name, f"{variant['bytes'] / 1e9:.3g} GB", f"{engine['peak_bytes'] / 1e9:.3g} GB"]
        for name, engine in variant["engines"].items()
        if engine["peak_bytes"]
    ]


def _interval(entry: Json, middle: str) -> str:
    low, high = (f"{entry[end]:.3g}" if entry[end] is not None else "no end" for end in ("low", "high"))
    return f"{entry[middle]:.3g} [{low}, {high}]"
