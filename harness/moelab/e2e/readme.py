"""The README's words on what to expect end to end, from committed results and from nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from moelab.report.blocks import Table
from moelab.report.load import ReportError
from moelab.report.markdown import code, escape, table

Json = dict[str, Any]

BEGIN, END = "<!-- e2e:begin -->", "<!-- e2e:end -->"
NOTHING = "No end-to-end result is committed yet, so there is no number here. `./ci/lab e2e` measures on your machine."


def block(results: Sequence[tuple[str, Json]]) -> str:
    """Markdown from (file name, document) of each committed result. ReportError for one that was not measured."""
    if not results:
        return NOTHING
    lines = ["<!-- Written by ci/readme_results.py from reports/evidence. -->", ""]
    for name, document in results:
        if document.get("synthetic") or document["machine"]["emulated"]:
            raise ReportError(f"not to be published: {name}: synthetic or emulated, not measured")
        lines += _one(name, document)
    return "\n".join(lines).strip()


def _one(name: str, document: Json) -> list[str]:
    run, machine = document["run"], document["machine"]
    lines = []
    engines = {e["name"]: e for e in document["engines"]}
    place = f"{machine['cpu']['name']}, {run['threads']} threads"
    for engine in engines.values():
        for baseline in engine["baselines"]:
            rows = _rows(document, engine["name"], baseline)
            if not rows:
                continue
            ids = list(dict.fromkeys(cell["id"] for cell in document["cells"]))
            title = f"{engine['framework']} {engine['version']}, speed of {engine['name']} over {baseline}"
            lines += [
                f"**{escape(place)}**: {escape(title)}",
                "",
                table(Table("", ("model", *ids), rows, frozenset(range(1, len(ids) + 1)))),
                "",
            ]
    explained = [r["amdahl"]["explained"] for c in document["cells"] for r in c["ratios"] if r["amdahl"]]
    words = (
        "Real layer shapes with random BF16 weights; the rows with few layers are measured, those of the full depth "
        "extrapolated from them (time = fixed + layers × per layer); intervals are 95 %. "
    )
    if explained:
        words += (
            f"The experts' share of the time and their own gain explain {sum(explained)} of {len(explained)} measured "
            "ratios (intervals overlap). "
        )
    missing = [m for m in document["missing"] if m["kind"] == "failed"]
    if missing:
        words += f"Failed: {'; '.join(escape(m['reason']) for m in missing)}. "
    command = code(shlex.join(run["command"]))
    return [*lines, f"{words}[{name}](reports/evidence/{name}), by {command}.", ""]


def _rows(document: Json, engine: str, baseline: str) -> list[list[str]]:
    ids = list(dict.fromkeys(cell["id"] for cell in document["cells"]))
    rows = []
    for model in document["models"]:
        own = [v for v in document["variants"] if v["model"] == model["name"]]
        deepest = max(own, key=lambda v: v["layers"])["name"]
        cells = {c["id"]: c for c in document["cells"] if c["variant"] == deepest}
        deep = {d["id"]: d for d in document["full_depth"] if d["model"] == model["name"]}
        for label, entries in ((deepest, cells), (f"{model['name']}, {model['layers']} layers (extrapolated)", deep)):
            found = [_ratio(entries.get(i), engine, baseline) for i in ids]
            if any(found):
                rows.append([label, *(value or "–" for value in found)])
    return rows


def _ratio(entry: Json | None, engine: str, baseline: str) -> str | None:
    ratios = entry["ratios"] if entry else []
    found = next((r for r in ratios if (r["engine"], r["baseline"]) == (engine, baseline)), None)
    if found is None:
        return None
    low, high = (f"{found[end]:.2f}" if found[end] is not None else "∞" for end in ("low", "high"))
    return f"{found['value']:.2f}x ({low}–{high})"
