#!/usr/bin/env python3
"""Static predictions for Arm cores that are not here: `nox -s predict`.

    python ci/predict.py            predict again; exit status 1 where reports/predictions.json says otherwise
    python ci/predict.py --update   write reports/predictions.json and reports/predictions.md

llvm-mca simulates the inner loops as the cross compiler built them, on LLVM's model of each core: cycles per turn, and
percent of the core's multiply peak. From those, the routing and the bytes that must be moved, a range of time per layer
follows (predict_layers.py). Nothing here is measured, and nothing here is ever put among measurements.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH hides this folder
import arm_tools
import predict_cores as cores
import predict_layers as layers
import predict_mca as mca
import predict_text

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "reports" / "predictions.json"
TEXT = RESULT.with_suffix(".md")
WIDE = ("12x8", "8x12")
GOAL = 97.0  # percent of the BFMMLA peak, for the wide tiles on N2 and V2
GOAL_CORES = ("neoverse-n2", "neoverse-v2")
TOLERANCE = 0.005  # relative: what may differ before the committed file has to be renewed

ABOUT = (
    "Predicted, not measured: llvm-mca on the inner loops as built, plus bytes moved at the machine's bandwidth. One "
    "call of the layer, uniform routing, all cores of a socket. The model knows no caches, DRAM latency, TLBs or "
    "ordering hazards. Fast: loops at the predicted rate, overlapping all traffic at the best bandwidth. Slow: loops "
    "at the model's known error, and no overlap with traffic at the low bandwidth."
)


def predict() -> dict[str, Any]:
    """The document, as reports/predictions.json holds it."""
    tool = mca.find()
    objects = mca.built_objects()
    loops = [
        mca.predict(tool, core, kernel, tile, loop)
        for core in cores.CORES
        for kernel in core.kernels
        for tile, loop in mca.loops_of(objects[kernel], kernel).items()
    ]
    return {
        "moelab_table": 1,
        "kind": "prediction",
        "title": "Predicted time per layer on Arm servers",
        "about": ABOUT,
        **layers.table(loops),
        "loops": [loop.as_dict() for loop in loops],
        "cores": {core.name: core.as_dict() for core in cores.CORES},
        "machines": {machine.name: machine.as_dict() for machine in cores.MACHINES},
        "tool": f"{tool.version}, {arm_tools.version_line('aarch64-linux-gnu-g++')}",
        "command": ["nox", "-s", "predict"],
    }


def unmet_goals(document: dict[str, Any]) -> list[str]:
    """Wide tiles below the goal, and wide tiles that no prediction is there for."""
    found = {
        (loop["core"], loop["tile"]): loop["percent"] for loop in document["loops"] if loop["kernel"] == "neon_bf16"
    }
    return [
        f"{tile} on {core}: {'no prediction' if percent is None else f'{percent:.1f} % of the peak'}, goal {GOAL} %"
        for core in GOAL_CORES
        for tile in WIDE
        if (percent := found.get((core, tile))) is None or percent < GOAL
    ]


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Where two documents differ by more than the tolerance."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [text for key in keys for text in differences(old.get(key), new.get(key), f"{where}.{key}".strip("."))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            text for i, pair in enumerate(zip(old, new, strict=True)) for text in differences(*pair, f"{where}[{i}]")
        ]
    if isinstance(old, float) and isinstance(new, float | int) and abs(old - new) <= TOLERANCE * abs(old):
        return []
    return [] if old == new else [f"{where}: {old!r}, now {new!r}"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write what is predicted now")
    options = parser.parse_args(arguments)
    missing = arm_tools.install(mca.packages())
    if missing:
        return arm_tools.not_run(missing, "predictions")
    document = json.loads(json.dumps(predict()))
    for goal in unmet_goals(document):
        print(f"predict: {goal}", file=sys.stderr)
    if options.update:
        RESULT.write_text(json.dumps(document, indent=1) + "\n")
        TEXT.write_text(predict_text.markdown(document))
        print(f"predict: wrote {RESULT.relative_to(ROOT)} and {TEXT.relative_to(ROOT)}")
        return 1 if unmet_goals(document) else 0
    committed = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    # Another version of the tools is said, not failed for by itself.
    changed = [text for text in differences(committed, document) if not text.startswith("tool: ")]
    for text in changed[:20]:
        print(f"predict: {text}", file=sys.stderr)
    if changed:
        print(f"predict: {len(changed)} differences; if they are meant: nox -s predict -- --update", file=sys.stderr)
    if not changed and not unmet_goals(document):
        print(f"predict: as committed ({document['tool']})")
    return 1 if changed or unmet_goals(document) else 0


if __name__ == "__main__":
    sys.exit(main())
