#!/usr/bin/env python3
"""Retired instructions of whole fused calls under emulation, against the committed table reports/counts.json.

    python ci/counts.py              counts and compares; exit status 1 where BFMMLA counts changed, a total by more
                                     than 0.1 %, or a goal is missed
    python ci/counts.py --update     writes the table anew, with its Markdown
    python ci/counts.py --layer yardstick

Deterministic: one thread, a C++ program (kernels/tools/moelab_call.cpp), a plugin of QEMU that classes what retires
(ci/armmix.c). Needs what the Arm suite needs. Counts are no times.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH hides this folder
import counts_table
from arm import FOLDER, ROOT, build, clean_environment
from arm_tools import install, not_run, say, version_line
from counts_cases import LAYERS, CountedLayer, yardstick_case
from counts_table import PHASES, Document

TABLE = ROOT / "reports" / "counts.json"
BUILD = FOLDER / "counts"
PLUGIN = BUILD / "armmix.so"
ISA, CPU = "neon_bf16", "max,sve=off"
# Marks of fused_moe.cpp and the driver: what was retired up to each belongs to that phase. After the last phase the
# call only returns.
MARKS = {"7f": None, "70": "route", "71": "pack", "72": "gemm1", "73": "gemm2", "74": "combine", "7e": "combine"}
V2 = 0x410FD4F0  # Neoverse V2's MIDR


class CountError(RuntimeError):
    """Nothing could be counted."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.update and options.layer:
        sys.exit("--update counts every layer: leave --layer out")
    missing = install()
    if missing:
        return not_run(missing, "instruction counts")
    try:
        build_all()
        counted = count(options.layer)
    except CountError as error:
        return not_run(str(error), "instruction counts")
    print(counts_table.markdown(counted), flush=True)
    missed = counts_table.missed_goals(counted, yardstick_case())
    for text in missed:
        say(f"GOAL MISSED: {text}")
    changed = 0 if options.update else compare(counted)
    if options.update:
        update(counted)
    elif not missed and not changed:
        say(f"{len(counted['cases'])} cases are as in the table")
    return 1 if missed or changed else 0


def update(counted: Document) -> None:
    """Writes the table; counts of peers stay."""
    peers = counts_table.read(TABLE).get("peers", {}) if TABLE.exists() else {}
    counts_table.write(TABLE, {**counted, "peers": peers})
    say(f"wrote {TABLE.relative_to(ROOT)} and its .md; commit them")


def compare(counted: Document) -> int:
    """Says what differs from the table; the number of faults."""
    verdict = counts_table.compare(counted, counts_table.read(TABLE))
    for text in verdict.notes:
        say(f"note: {text}")
    for text in verdict.faults:
        say(f"CHANGED: {text}")
    if verdict.faults:
        say("if that is meant: nox -s counts -- --update, and commit the table")
    return len(verdict.faults)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the table anew")
    names = [counted.layer.name for counted in LAYERS]
    parser.add_argument("--layer", action="append", choices=names, help="only this one; again for more")
    return parser.parse_args(arguments)


def build_all() -> None:
    """The driver, statically linked, and the plugin."""
    static = ["aarch64-linux-gnu-g++", "-print-file-name=libgomp.a"]
    gomp = subprocess.run(static, check=True, capture_output=True, text=True).stdout.strip()
    build(BUILD, "-DMOELAB_TOOLS=ON", f"-DOpenMP_gomp_LIBRARY={gomp}", target="moelab_call")
    build_plugin()


def build_plugin() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    source = ROOT / "ci" / "armmix.c"
    if not PLUGIN.exists() or PLUGIN.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(PLUGIN), str(source)], check=True)


def count(only: Sequence[str] | None = None) -> Document:
    """The counts of every case, or of some layers, as a document of counts_table."""
    chosen = [counted for counted in LAYERS if not only or counted.layer.name in only]
    cases = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for counted, phases in zip(chosen, pool.map(count_layer, chosen), strict=True):
            for tokens in reversed(counted.tokens):
                case = {"minimum_bfmmla": counted.minimum(tokens), "phases": phases[tokens]}
                cases[counted.name(tokens)] = case
    return {"versions": versions(), "cases": cases}


def count_layer(counted: CountedLayer) -> dict[int, dict[str, dict[str, int]]]:
    """{tokens: {phase: {class: instructions}}}."""
    layer = counted.layer
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # The emulator looks for files here first: blocks are a Neoverse V2's on whatever machine this runs.
        midr = folder / "root/sys/devices/system/cpu/cpu0/regs/identification/midr_el1"
        midr.parent.mkdir(parents=True)
        midr.write_text(f"{V2:#018x}\n")
        routings = []
        for tokens in counted.tokens:
            routings.append(folder / f"{tokens}.routing")
            counted.write_routing(tokens, routings[-1])
        shape = (layer.num_experts, layer.hidden, layer.intermediate)
        flags = (int(layer.bias), int(layer.gate_up == "interleaved"))
        program = [str(BUILD / "tools" / "moelab_call"), ISA, layer.activation, *map(str, (*shape, *flags))]
        lines = run_counted([*program, *map(str, routings)], folder / "counts.txt", ("-L", str(folder / "root")))
    return dict(zip(counted.tokens, phases_of(lines), strict=True))


def run_counted(command: list[str], out: Path, options: Sequence[str] = (), plugin_options: str = "") -> list[str]:
    """The plugin's lines for an Arm program."""
    emulator = ["qemu-aarch64", "-cpu", CPU, *options, "-plugin", f"{PLUGIN},out={out}{plugin_options}"]
    done = subprocess.run(
        [*emulator, *command],
        check=False,
        capture_output=True,
        text=True,
        env={**clean_environment(), "OMP_NUM_THREADS": "1"},
    )
    if not out.exists():
        raise CountError(f"this QEMU counts nothing (Debian 12's qemu-user 7.2 does): {done.stderr.strip()[-300:]}")
    if done.returncode != 0:
        sys.exit(f"counts: {' '.join(command)}: exit status {done.returncode}: {done.stderr[-2000:]}")
    return out.read_text().splitlines()


def phases_of(lines: Sequence[str]) -> list[dict[str, dict[str, int]]]:
    """One entry for each marked call: {phase: {class: instructions}}. A call in chunks passes its phases repeatedly."""
    calls: list[dict[str, dict[str, int]]] = []
    for line in lines:
        words = line.split()
        if words[0] != "mark":
            continue
        if words[1] == "7f":
            calls.append({phase: {} for phase in PHASES})
        phase = MARKS[words[1]]
        if phase is None or not calls:
            continue
        for name, value in (word.split("=") for word in words[2:]):
            if name != "total":
                calls[-1][phase][name] = calls[-1][phase].get(name, 0) + int(value)
    return calls


def versions() -> dict[str, str]:
    return {"compiler": version_line("aarch64-linux-gnu-g++"), "emulator": version_line("qemu-aarch64")}


if __name__ == "__main__":
    sys.exit(main())
