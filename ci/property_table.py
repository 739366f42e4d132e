"""The table of property x instruction set, and property x backend, as Markdown, from the results of test runs.

    python ci/property_table.py [--cpp NAME=FILE.json ...] [--backends FILE.json ...] [--into README.md]

--cpp       what `moelab_tests --json FILE` wrote; NAME says where it ran (`native`, `emulated`)
--backends  what `pytest tests/properties --backend ... --properties-json FILE` wrote
--into      replaces what stands between <!-- properties:begin --> and <!-- properties:end --> there; else: print
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

BEGIN, END = "<!-- properties:begin -->", "<!-- properties:end -->"

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
    "scratch": "the library's own scratch between guard pages, nothing read before it is written",
    "packing": "exact inverse from any type and strides; the same bytes from any number of threads",
    "damage": "damaged, truncated, unfinished or mixed-up weights are refused",
    "partition": "work is covered once, and even within 5 % for 1 to 192 threads",
    "isa": "what the CPU lacks is refused by name and reason",
    "arguments": "wrong arguments give a sentence that names them",
    "large": "offsets beyond 2^31, prefills in chunks, 65,536 tokens",
}


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join([row(head), row(["---"] + [":-:"] * (len(head) - 1)), *map(row, rows)])


def cpp_table(runs: list[str]) -> str:
    """Suites down, instruction sets across; cells count the tests that passed, or name the failures."""
    results: dict[tuple[str, str], list[str]] = defaultdict(list)
    columns: list[str] = []
    for run in runs:
        where, _, path = run.partition("=")
        for test in json.loads(Path(path).read_text(encoding="utf-8")):
            suffix = "" if where == "native" else f" ({where})"
            column = (test["isa"] or "any") + suffix
            if test["isa"] and column not in columns:
                columns.append(column)
            results[test["suite"], column].append(test["result"])
    unknown = sorted({suite for suite, _ in results} - set(SUITES))
    if unknown:
        raise SystemExit(f"suites without a sentence in {Path(__file__).name}: {', '.join(unknown)}")

    def cell(suite: str, column: str) -> str:
        where = column.partition(" ")[2]
        found = results[suite, column] + results[suite, f"any {where}".strip()]
        passed, failed = found.count("ok"), found.count("FAIL")
        if failed:
            return f"**{failed} of {passed + failed} fail**"
        return str(passed) if passed else "–"

    rows = [[sentence, *(cell(suite, column) for column in columns)] for suite, sentence in SUITES.items()]
    return table(["Property (number of tests passed)", *columns], rows)


def backend_table(paths: list[Path]) -> str:
    """Properties down, backends across."""
    results: dict[str, dict[str, str]] = {}
    for path in paths:
        for backend, found in json.loads(path.read_text(encoding="utf-8")).items():
            results.setdefault(backend, {}).update(found)
    words = {"passed": "yes", "failed": "**no**", "skipped": "not for it", "crashed": "**crash**"}
    names = sorted({name for found in results.values() for name in found})
    rows = [
        [name.replace("_", " "), *(words[found[name]] if name in found else "–" for found in results.values())]
        for name in names
    ]
    return table(["Property", *results], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpp", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--backends", action="append", type=Path, default=[], metavar="FILE")
    parser.add_argument("--into", type=Path)
    arguments = parser.parse_args()
    parts = [cpp_table(arguments.cpp)] if arguments.cpp else []
    parts += [backend_table(arguments.backends)] if arguments.backends else []
    text = "\n\n".join(parts)
    if arguments.into is None:
        print(text)
        return 0
    document = arguments.into.read_text(encoding="utf-8")
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{arguments.into}: the lines {BEGIN} and {END} are not there")
    arguments.into.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
