"""The x86 inner loops as compilers make them: every sum stays in a register.

Intrinsics leave registers to the compiler. What it made of them is read from the built object: the loop of each row
tile holds its multiplies, writes no vector to memory and reads none from the stack. Copies between registers cost
issue slots alone, and there is room for a few.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma")
FLAGS = {"avx2": ("-mavx2", "-mfma", "-mf16c"), "avx512": AVX512, "avx512_bf16": (*AVX512, "-mavx512bf16")}
# Name of the multiply, rows of the largest tile, multiplies per row and turn of the loop.
LOOPS = {"avx2": ("vfmadd231ps", 6, 32), "avx512": ("vfmadd231ps", 12, 16), "avx512_bf16": ("vdpbf16ps", 12, 8)}

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not (shutil.which("c++") and shutil.which("objdump")),
    reason="needs x86-64, a C++ compiler and objdump",
)


@dataclass(frozen=True)
class Loop:
    """The instructions from a backward branch's target to the branch."""

    instructions: tuple[str, ...]

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, text)) for text in self.instructions)


def compiled(compiler: str, isa: str, folder: Path) -> str:
    """The disassembly of one instruction set's file, compiled as CMakeLists.txt does."""
    target = folder / f"{isa}.o"
    flags = ["-O3", "-DNDEBUG", "-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-math-errno", *FLAGS[isa]]
    includes = [f"-I{KERNELS / 'include'}", f"-I{KERNELS / 'src'}"]
    source = KERNELS / "src/isa" / f"{isa}.cpp"
    subprocess.run([compiler, *flags, *includes, "-c", str(source), "-o", str(target)], check=True)
    dump = ["objdump", "-d", "--no-show-raw-insn", "-C", str(target)]
    return subprocess.run(dump, check=True, capture_output=True, text=True).stdout


def loops_of(body: str, multiply: str) -> list[Loop]:
    """The loops of one function that multiply. A prefetch loop inside is part of them."""
    lines = [line.split("\t") for line in body.splitlines() if "\t" in line]
    code = [(int(line[0].strip(" :"), 16), line[-1].strip()) for line in lines]
    found = []
    for address, text in code:
        jump = re.match(r"j\w+\s+([0-9a-f]+)", text)
        if jump and int(jump[1], 16) < address:
            inside = tuple(t for a, t in code if int(jump[1], 16) <= a <= address)
            loop = Loop(inside)
            if loop.count(rf"^{multiply}\b") > 1:
                found.append(loop)
    return found


def compilers() -> list[str]:
    return ["c++", *(name for name in ("clang++",) if shutil.which(name))]


@pytest.mark.parametrize("compiler", compilers())
@pytest.mark.parametrize("isa", list(LOOPS))
def test_sums_stay_in_registers(isa: str, compiler: str, tmp_path: Path) -> None:
    multiply, largest, per_row = LOOPS[isa]
    functions = re.findall(r"^[0-9a-f]+ <([^\n]*dot_rows<(\d+)>[^\n]*)>:\n(.*?)(?:\n\n|\Z)",
                           compiled(compiler, isa, tmp_path), re.DOTALL | re.MULTILINE)  # fmt: skip
    assert sorted(int(rows) for _, rows, _ in functions) == list(range(1, largest + 1))
    for name, rows, body in functions:
        loops = loops_of(body, multiply)
        assert loops, f"{name}: no loop of {multiply}"
        for loop in loops:
            multiplies = loop.count(rf"^{multiply}\b")
            assert multiplies == per_row * int(rows), name
            stores = loop.count(r"^vmov\w+\s+%[yz]mm\d+,.*\(")
            assert stores == 0, f"{name}: {stores} vector stores in the loop"
            reloads = loop.count(r"\(%r[sb]p\).*%[xyz]mm")
            assert reloads == 0, f"{name}: {reloads} vector loads from the stack in the loop"
            copies = loop.count(r"^vmova\w+\s+%[yz]mm\d+,%[yz]mm\d+")
            assert 3 * copies <= multiplies, f"{name}: {copies} copies between registers in the loop"
