"""The README's table of properties x instruction sets, and x backends, from the results of test runs.

    python ci/property_table.py                 writes README.md from reports/properties.json
    python ci/property_table.py --check         writes nothing, fails where README.md is not current
    python ci/property_table.py collect [--cpp NAME=FILE.json ...] [--backends FILE.json ...] --out PROPERTIES.json

collect makes the committed file: `nox -s properties` runs everything and calls it.
--cpp       what `moelab_tests --json FILE` wrote; NAME says where it ran (`native`, `emulated`)
--backends  what `pytest tests/properties --backend ... --properties-json FILE` wrote
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- properties:begin -->", "<!-- properties:end -->"
DATA = "reports/properties.json"

Json = dict[str, Any]

# What a suite of the C++ tests states. A suite that is not here is an error: the table must stay whole.
SUITES = {
    "grid": "8 experts, sizes 128 and 2880, 1 to 256 tokens, every activation, with and without bias",
    "sizes": "any hidden and intermediate size, any number of experts, slots and tokens, from 0 or 1 up",
    "ids": "-1 skips, others outside are refused; both widths, any strides and alignment, repeated experts",
    "router_weight": "zero, negative, huge, tiny; on the input; fp32 combine in slot order",
    "activation": "within 1 BF16 ulp of the fp64 value over the whole finite range, tails included",
    "nonfinite": "NaN and infinity reach their row and no other; padding does not leak",
    "chain": "bit for bit one chain of the instruction set's own multiply over ascending k",
    "invariance": "a token's bits do not depend on batch, position, threads or run",
    "vector_length": "vectors of any length give the same bits; weights packed for another length are refused",
    "scratch": "the library's own scratch between guard pages, nothing read before it is written",
    "packing": "exact inverse from any type and strides; the same bytes from any number of threads",
    "damage": "damaged, truncated, unfinished or mixed-up weights are refused",
    "partition": "work is covered once, and even within 5 % for 1 to 192 threads",
    "isa": "what the CPU lacks is refused by name and reason",
    "arguments": "wrong arguments give a sentence that names them",
    "large": "offsets beyond 2^31, prefills in chunks, 65,536 tokens",
}


# What a property of the backends' suite states, in the order of the table.
PROPERTIES = {
    "aligned_layers_are_right": "every activation, with and without bias, gate and up split or interleaved",
    "any_layer_is_right": "any sizes from 1 up, searched at random",
    "odd_hidden_sizes": "hidden sizes 1, 7, 31, 33, 127, 176",
    "odd_intermediate_sizes": "intermediate sizes 1, 7, 31, 33, 127, 176",
    "activations_saturate_as_defined": "gates far out: clamps, tails, overflow of the exponential",
    "no_tokens": "no tokens",
    "all_tokens_to_one_expert": "all tokens to one expert",
    "same_expert_twice_counts_twice": "the same expert twice in a token",
    "id_minus_one_skips_the_slot": "id -1 skips the slot",
    "ids_out_of_range_are_refused": "ids out of range are refused, with the value",
    "router_weights_of_any_size": "router weights 0, negative, huge, tiny",
    "nan_and_infinity_stay_in_their_row": "NaN and infinity stay in their row",
    "inputs_stay_as_they_are": "inputs are not written to",
    "run_to_run_the_same_bits": "same bits from run to run",
    "any_number_of_threads_gives_the_same_bits": "same bits with 1 to 8 threads",
    "a_token_has_the_same_bits_in_any_batch": "a token's bits do not depend on its batch",
    "a_token_has_the_same_bits_at_any_position": "nor on its position there",
    "any_layer_is_batch_invariant": "both, for any layer, searched at random",
}
WORDS = {"passed": "yes", "failed": "**no**", "skipped": "not for it", "crashed": "**crash**"}


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join([row(head), row(["---"] + [":-:"] * (len(head) - 1)), *map(row, rows)])


def counted(runs: list[str]) -> list[Json]:
    """Tests of C++ runs (NAME=FILE), counted per suite, instruction set ("": none) and where they ran.

    A test that ran on several emulated CPUs counts once, by the worst that became of it.
    """
    rank = ("skip", "ok", "FAIL")
    tests: dict[tuple[str, str, str, str], str] = {}
    for run in runs:
        where, _, path = run.partition("=")
        for test in json.loads(Path(path).read_text(encoding="utf-8")):
            key = where, test["suite"], test["isa"], test["name"]
            tests[key] = max(tests.get(key, "skip"), test["result"], key=rank.index)
    found: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for (where, suite, isa, _), result in tests.items():
        found[where, suite, isa][result] += 1
    return [
        {"where": where, "suite": suite, "isa": isa, "passed": n["ok"], "failed": n["FAIL"], "skipped": n["skip"]}
        for (where, suite, isa), n in found.items()
    ]


def collect(arguments: argparse.Namespace) -> None:
    backends: Json = {}
    for path in arguments.backends:
        for backend, found in json.loads(path.read_text(encoding="utf-8")).items():
            backends.setdefault(backend, {}).update(found)
    data = {
        "kernels": state_of_kernels(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "cpu": cpu(),
        "versions": versions(list(backends)),
        "cpp": counted(arguments.cpp),
        "backends": backends,
    }
    arguments.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def state_of_kernels() -> str:
    """Git's name for the contents of kernels/, which outlives a rebase; what is not committed is said."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, cwd=ROOT)
        return done.stdout.strip()

    return git("rev-parse", "HEAD:kernels")[:12] + (" and changes" if git("status", "--porcelain", "kernels") else "")


def cpu() -> str:
    """The model name of the processor that ran this."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown CPU"


def versions(backends: list[str]) -> Json:
    from moelab.backend_loading import load  # only where results are collected

    found = {}
    for name in backends:
        backend = load(name)
        environment = backend.environment
        if environment != "main":
            from moelab.backends import environments

            found[name] = environments.facts(environment).get("requirement", "unknown")
        elif name.startswith("torch"):
            from importlib.metadata import version

            found[name] = f"torch {version('torch')}"
    return found


def cpp_table(results: list[Json]) -> str:
    """Suites down, instruction sets across; cells count the tests that passed, or name the failures."""
    if unknown := sorted({entry["suite"] for entry in results} - set(SUITES)):
        raise SystemExit(f"suites without a sentence in {Path(__file__).name}: {', '.join(unknown)}")
    columns = list(dict.fromkeys((entry["isa"], entry["where"]) for entry in results if entry["isa"]))

    def cell(suite: str, isa: str, where: str) -> str:
        # What belongs to no instruction set counts for all that ran in the same place.
        mine = [e for e in results if e["suite"] == suite and e["where"] == where and e["isa"] in (isa, "")]
        passed, failed = sum(e["passed"] for e in mine), sum(e["failed"] for e in mine)
        if failed:
            return f"**{failed} of {passed + failed} fail**"
        return str(passed) if passed else "–"

    head = [isa if where == "native" else f"{isa} ({where})" for isa, where in columns]
    rows = [[sentence, *(cell(suite, *column) for column in columns)] for suite, sentence in SUITES.items()]
    return table(["tests that passed", *head], rows)


def backend_table(backends: Json) -> str:
    """Properties down, backends across."""
    if unknown := sorted({name for found in backends.values() for name in found} - set(PROPERTIES)):
        raise SystemExit(f"properties without a sentence in {Path(__file__).name}: {', '.join(unknown)}")
    rows = [
        [sentence, *(WORDS[found[name]] if name in found else "–" for found in backends.values())]
        for name, sentence in PROPERTIES.items()
    ]
    return table(["property", *backends], rows)


def rendered(data: Json) -> str:
    """What stands between the marks."""
    amx = any(entry["isa"] == "amx_bf16" for entry in data["cpp"])
    missing = "" if amx else ", and no CPU with amx_bf16 was there"
    peers = "; ".join(f"{name} is {version}" for name, version in data["versions"].items())
    return f"""<!-- Written by ci/property_table.py from {DATA}. -->

{cpp_table(data["cpp"])}

The C++ tests of {data["date"]} (git tree {data["kernels"]} of `kernels`) on {data["cpu"]}; emulated columns ran the
quick set{missing}.
Layers are compared with an fp64 reference, or bit for bit with the same call done otherwise; inputs are read-only
and lie between guard pages, as do packed weights, output and scratch.

{backend_table(data["backends"])}

The same questions to any backend: `pytest tests/properties --backend NAME`. *yes*: no case of the suite broke the
property, and its layers are small. *crash*: the process ended. *not for it*: the backend does not take such layers.
Ids below 0 are stopped by this lab's adapters before they reach a peer that has no notion of them.
{peers}.
"""


def with_table(document: str, data: Json) -> str:
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"README.md: the lines {BEGIN} and {END} are not there")
    return f"{before}{BEGIN}\n{rendered(data)}{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where README.md is not current")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    what = parser.add_subparsers(dest="what").add_parser("collect", help="make the file from the results of runs")
    what.add_argument("--cpp", action="append", default=[], metavar="NAME=FILE")
    what.add_argument("--backends", action="append", type=Path, default=[], metavar="FILE")
    what.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.what == "collect":
        collect(arguments)
        return 0
    readme = arguments.root / "README.md"
    present = readme.read_text(encoding="utf-8")
    wanted = with_table(present, json.loads((arguments.root / DATA).read_text(encoding="utf-8")))
    if arguments.check:
        if present != wanted:
            print("README.md is not current; run ci/property_table.py and commit", file=sys.stderr)
        return int(present != wanted)
    readme.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
