"""Reads the inner loops of the Arm kernels in a built object: what they consist of, and what must not be there.

A loop is the stretch from the target of a backward branch to the branch, with no other branch inside. A good one
touches no stack, moves no vector register, and multiplies in as many independent accumulators as its tile has.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OBJDUMPS = ("aarch64-linux-gnu-objdump", "objdump")

# Multiplications, accumulators and instructions of one turn of each tile's loop, four steps of k.
BFMMLA_LOOPS = {
    "12x8": (96, 24, 118),
    "10x8": (80, 20, 102),
    "8x12": (96, 24, 118),
    "8x8": (64, 16, 82),
    "6x16": (96, 24, 122),
    "6x8": (48, 12, 66),
    "4x24": (96, 24, 126),
    "4x8": (32, 8, 46),
    "2x24": (48, 12, 76),
    "2x8": (16, 4, 28),
}
FMLA_LOOPS = {
    "12x8": (96, 24, 116),
    "8x8": (64, 16, 80),
    "4x24": (96, 24, 136),
    "4x8": (32, 8, 48),
    "2x24": (48, 12, 87),
    "2x8": (16, 4, 31),
    "1x24": (24, 6, 63),
    "1x8": (8, 2, 23),
}
OBJECTS = {"neon_bf16": ("bfmmla", BFMMLA_LOOPS), "neon": ("fmla", FMLA_LOOPS)}
WIDE = ("12x8", "8x12")
WIDE_LIMIT = 1.25  # instructions per BFMMLA


@dataclass(frozen=True)
class Loop:
    """The instructions of one inner loop, as objdump writes them: "bfmmla", "v23.4s, v0.8h, v6.8h"."""

    function: str
    instructions: tuple[tuple[str, str], ...]

    def multiplications(self, mnemonic: str) -> list[str]:
        return [operands for name, operands in self.instructions if name == mnemonic]

    def accumulators(self, mnemonic: str) -> int:
        return len({operands.split(",")[0] for operands in self.multiplications(mnemonic)})

    def shape(self, mnemonic: str) -> tuple[int, int, int]:
        """Multiplications, accumulators, instructions."""
        return len(self.multiplications(mnemonic)), self.accumulators(mnemonic), len(self.instructions)

    def tile(self, mnemonic: str) -> str:
        """Rows x columns, from how far one turn moves the pointer to A (x9): four steps of k, 2 or 4 bytes a value.

        BFMMLA takes four values of k in a step, FMLA one.
        """
        for _, operands in self.instructions:
            if moved := re.search(r"\[x9\], #(\d+)$", operands):
                rows = int(moved[1]) // (32 if mnemonic == "bfmmla" else 16)
                return f"{rows}x{4 * self.accumulators(mnemonic) // max(rows, 1)}"
        return "unknown"

    def faults(self) -> list[str]:
        """Instructions that a good loop does not have."""
        return [
            f"{name} {operands}"
            for name, operands in self.instructions
            if re.search(r"\bsp\b|\[x29", operands)
            or (name in ("mov", "dup", "ins", "umov", "fmov", "orr") and re.match(r"[vqz]\d", operands))
            or name.startswith(("st1", "stp", "str"))
        ]


def disassemble(object_file: Path) -> str:
    objdump = next((name for name in OBJDUMPS if shutil.which(name)), None)
    if objdump is None:
        raise FileNotFoundError(f"none of {', '.join(OBJDUMPS)}")
    command = [objdump, "-d", "--no-show-raw-insn", str(object_file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def inner_loops(disassembly: str, mnemonic: str, at_least: int = 8) -> list[Loop]:
    """Every inner loop with at least that many of the multiplication."""
    loops = []
    for function, body in _functions(disassembly):
        position = {address: i for i, (address, _, _) in enumerate(body)}
        for i, (_, name, operands) in enumerate(body):
            target = re.match(r"(?:.*, )?([0-9a-f]+) <", operands)
            if not _is_branch(name) or target is None:
                continue
            start = position.get(int(target[1], 16))
            if start is None or start >= i or any(_is_branch(inner) for _, inner, _ in body[start:i]):
                continue
            loop = Loop(function, tuple((inner, text) for _, inner, text in body[start : i + 1]))
            if len(loop.multiplications(mnemonic)) >= at_least:
                loops.append(loop)
    return loops


def problems(disassembly: str, mnemonic: str, expected: Mapping[str, tuple[int, int, int]]) -> list[str]:
    """What is wrong with an object's inner loops: nothing if each is an expected tile's and each tile has one."""
    wrong, seen = [], set()
    for loop in inner_loops(disassembly, mnemonic):
        if "peak_" in loop.function:  # the probe multiplies registers
            continue
        tile = loop.tile(mnemonic)
        seen.add(tile)
        if loop.shape(mnemonic) != expected.get(tile):
            wrong.append(f"{tile}: {loop.shape(mnemonic)} {mnemonic}, accumulators, instructions; {expected.get(tile)}")
        wrong += [f"{tile}: {fault} in the loop" for fault in loop.faults()]
    wrong += [f"{tile}: no such loop" for tile in expected if tile not in seen]
    if mnemonic == "bfmmla":
        wrong += [
            f"{tile}: {expected[tile][2] / expected[tile][0]:.3f} instructions per BFMMLA, limit {WIDE_LIMIT}"
            for tile in WIDE
            if expected[tile][2] > WIDE_LIMIT * expected[tile][0]
        ]
    return wrong


def check_build(build: Path, clangs: Sequence[str]) -> dict[str, list[str]]:
    """{"neon_bf16 by gcc ...": what is wrong}: the objects of a CMake build, and the same files by other compilers."""
    entries = json.loads((build / "compile_commands.json").read_text())
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for isa, (mnemonic, expected) in OBJECTS.items():
            entry = next(entry for entry in entries if entry["file"].endswith(f"/src/isa/{isa}.cpp"))
            words = shlex.split(entry["command"])
            built = build / words[words.index("-o") + 1]
            found[f"{isa} by {Path(words[0]).name}"] = problems(disassemble(built), mnemonic, expected)
            for clang in clangs:
                out = Path(folder) / f"{isa}-{clang}.o"
                complaint = _compile_again(words, clang, entry, out)
                wrong = [complaint] if complaint else problems(disassemble(out), mnemonic, expected)
                found[f"{isa} by {clang}"] = wrong
    return found


def _compile_again(words: Sequence[str], clang: str, entry: Mapping[str, str], out: Path) -> str | None:
    """Compiles one file of a CMake build with clang and the build's own flags; what clang said where it failed."""
    kept = [word for word in words[1:] if not word.endswith((".o", ".cpp")) and word not in ("-o", "-c")]
    target = ["--target=aarch64-linux-gnu"] if "aarch64-linux-gnu" in words[0] else []
    command = [clang, *target, *kept, "-c", entry["file"], "-o", str(out)]
    done = subprocess.run(command, check=False, cwd=entry["directory"], capture_output=True, text=True)
    return f"does not compile: {done.stderr.strip()[-500:]}" if done.returncode else None


Body = list[tuple[int, str, str]]  # address, mnemonic, operands


def _functions(disassembly: str) -> Iterable[tuple[str, Body]]:
    name, body = "", Body()
    for line in disassembly.splitlines():
        if header := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            if body:
                yield name, body
            name, body = header[1], Body()
        elif match := re.match(r"\s+([0-9a-f]+):\s+(\S+)\s*([^/]*)", line):
            body.append((int(match[1], 16), match[2], match[3].strip()))
    if body:
        yield name, body


def _is_branch(mnemonic: str) -> bool:
    return mnemonic.startswith("b.") or mnemonic in ("b", "bl", "br", "blr", "ret", "cbz", "cbnz", "tbz", "tbnz")
