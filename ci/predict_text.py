"""reports/predictions.md from reports/predictions.json."""

from __future__ import annotations

from typing import Any

from moelab.text_table import markdown as table

LOOPS = (
    "Cycles per step of k (four k for BFMMLA, one for FMLA), percent of the core's multiply peak, instructions per "
    "multiplication. A tile is rows x columns; `v` counts SVE vectors of two columns per 128 bits."
)


def markdown(document: dict[str, Any]) -> str:
    """The whole file."""
    cores = document["cores"]
    loops = [
        [
            loop["core"],
            loop["kernel"],
            loop["tile"],
            f"{loop['cycles'] / loop['steps']:.2f}",
            f"{loop['percent']:.1f}",
            f"{loop['instructions'] / loop['multiplications']:.2f}",
            loop["bottleneck"],
        ]
        for loop in document["loops"]
    ]
    header = [c if isinstance(c, str) else f"{c['name']} [{c['unit']}]" for c in document["columns"]]
    parts = [
        "# Predictions",
        "**Predicted, not measured.** Made by `nox -s predict -- --update`; do not edit. " + document["about"],
        f"Tools: {document['tool']}.",
        "## Inner loops",
        LOOPS,
        table(
            ["core", "kernel", "tile", "cycles/step", "% of peak", "instr./mult.", "held back by (% of cycles)"], loops
        ),
        "What is known of the model's errors:",
        "\n".join(
            f"- {name}: {core['error']}. Peak: {core['pipes']} of 128 bits a cycle; dispatch {core['dispatch']}."
            for name, core in cores.items()
        ),
        "## Layers",
        table(header, [[f"{v:,}" if isinstance(v, int | float) else str(v) for v in row] for row in document["rows"]]),
        "Machines as assumed:",
        "\n".join(
            f"- {name}: {m['cores']} cores at {m['ghz']} GHz; GB/s: {m['bandwidth']}."
            for name, m in document["machines"].items()
        ),
    ]
    return "\n\n".join(parts) + "\n"
