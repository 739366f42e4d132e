#!/usr/bin/env python3
"""Draws the pictures of kernels/README.md: python ci/kernel_pictures.py [--check].

What is drawn comes from where the kernels have it: the tiles from the reader of their loops, the cut of rows from
bfmmla_blocks.h. With --check nothing is written, and the exit status is 1 where a picture is not what it should be.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH hides this folder
from arm_loops import BFMMLA_LOOPS
from svg import Drawing

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "kernels" / "pictures"

ROW, OTHER_ROW = "#7fa7d1", "#b9dcf2"  # rows of A
GATE, UP = "#f28e2b", "#76b7b2"  # columns of the weights
SUM, PALE = "#cfcfcf", "#e9e9e9"
BLOCKS = r"kFirst\[[^]]*\] = \{([\d, ]+)\};"


def bfmmla() -> str:
    """One instruction: two rows of A by two columns of the weights, four k deep, added to 2 x 2 sums."""
    d = Drawing(760, 250, "BFMMLA: 2 x 4 BF16 times 4 x 2 BF16, added to 2 x 2 fp32")
    cell = 44
    d.text(20, 28, "A: rows r, r+1; k 0-3")
    for row, colour in enumerate((ROW, OTHER_ROW)):
        for k in range(4):
            d.box(20 + k * cell, 44 + row * cell, cell, cell, colour, f"a{row}{k}")
    d.text(236, 28, "B: columns c, c+1; k 0-3")
    for column, colour in enumerate((GATE, UP)):
        for k in range(4):
            d.box(236 + k * cell, 44 + column * cell, cell, cell, colour, f"b{k}{column}")
    d.text(452, 28, "Sums: fp32")
    for row in range(2):
        for column in range(2):
            d.box(452 + column * 140, 44 + row * cell, 140, cell, SUM, f"c{row}{column} += Σk a{row}k bk{column}")
    d.text(20, 166, "As it lies in the 128-bit registers:")
    for i in range(8):
        d.box(20 + i * 26, 178, 26, 30, (ROW, OTHER_ROW)[i // 4], f"a{i // 4}{i % 4}", size=10)
        d.box(236 + i * 26, 178, 26, 30, (GATE, UP)[i // 4], f"b{i % 4}{i // 4}", size=10)
    for i in range(4):
        d.box(452 + i * 70, 178, 70, 30, SUM, f"c{i // 2}{i % 2}", size=11)
    d.text(20, 236, "16 products: 32 FLOP an instruction, four times an fp32 FMLA of the same width.")
    return d.svg()


def layouts() -> str:
    """Packed weights and packed A, one step of k (k 0-3) after the other."""
    d = Drawing(760, 400, "Packed weights and packed A of the BFMMLA kernels")
    d.text(20, 28, "Weights: a panel of 8 columns, 4 channels. A step of four k is one cache line, 64 bytes.")
    names = ("gate 0", "gate 1", "up 0", "up 1", "gate 2", "gate 3", "up 2", "up 3")
    for step in range(2):
        y = 44 + step * 58
        d.text(20, y + 24, f"k {4 * step}-{4 * step + 3}")
        for i, name in enumerate(names):
            d.box(80 + i * 80, y, 80, 38, GATE if name.startswith("gate") else UP, name, size=12)
            if i % 2 == 0:
                d.frame(80 + i * 80, y, 160, 38)
    d.text(80, 170, "A frame is one operand of BFMMLA: two columns, 16 bytes. The next step follows in memory.", 12)
    d.text(20, 208, "Packed A: a block of up to 12 rows, pair by pair. Of 12 rows, a step is 96 bytes.")
    for step in range(2):
        y = 222 + step * 58
        d.text(20, y + 24, f"k {4 * step}-{4 * step + 3}")
        for pair in range(6):
            for row in range(2):
                x = 80 + pair * 106 + row * 53
                d.box(x, y, 53, 38, (ROW, OTHER_ROW)[row], f"row {2 * pair + row}", size=11)
            d.frame(80 + pair * 106, y, 106, 38)
    d.text(
        80,
        348,
        "Gate and up of a channel end in the same lanes of two sums: the activation is lane by lane.",
        12,
    )
    d.text(80, 366, "Its result in BF16 is a pair of rows by four channels already: packed A of the second GEMM.", 12)
    return d.svg()


def tiles() -> str:
    """Every tile to scale: a square is one accumulator, two rows by two columns."""
    shapes = [(name, *map(int, name.split("x"))) for name in BFMMLA_LOOPS]
    d = Drawing(760, 270, "Tiles of neon_bf16: a square is one accumulator of 2 x 2 sums")
    d.text(20, 28, "A square is one accumulator, 2 x 2 sums. 24 of them and 8 operands fill the 32 registers.")
    x, y, side = 20, 60, 15
    for name, rows, columns in shapes:
        width = columns // 2 * side
        if x + max(width, 64) > 745:
            x, y = 20, y + 140
        multiplications, sums, instructions = BFMMLA_LOOPS[name]
        d.text(x, y, f"{rows} x {columns}", 13)
        for row in range(rows // 2):
            for column in range(columns // 2):
                d.box(x + column * side, y + 8 + row * side, side, side, SUM if sums == 24 else PALE)
        d.text(x, y + 24 + rows // 2 * side, f"{instructions / multiplications:.2f} instr.", 11)
        x += max(width, 64) + 22
    return d.svg()


def rows() -> str:
    """How the rows of an expert are cut into blocks: the table of bfmmla_blocks.h."""
    first = first_blocks()
    shown = (1, 3, 6, 9, 12, 13, 14, 16, 18, 20, 22, 24)
    d = Drawing(760, 60 + 24 * len(shown), "Rows of an expert, cut into blocks")
    d.text(20, 28, "The last rows of an expert: one block up to 12 rows, else two, neither of them small.")
    for i, count in enumerate(shown):
        y, pairs = 44 + 24 * i, (count + 1) // 2
        d.text(20, y + 15, f"{count} row{'s' * (count > 1)}", 12)
        x = 100
        for part, colour in ((first[pairs], ROW), (pairs - first[pairs], OTHER_ROW)):
            if part:
                d.box(x, y, part * 48, 20, colour, f"{2 * part}", size=11)
                x += part * 48
        if count % 2:
            d.text(x + 8, y + 15, "one row of zeros beside the last", 11)
    return d.svg()


def partition() -> str:
    """The line of cells of a GEMM, cut into equal cost."""
    experts = (("expert 3: 40 rows", 40), ("expert 7: 2 rows", 2), ("expert 9: 17 rows", 17))
    d = Drawing(760, 190, "One GEMM as a line of cells, cut among four threads")
    d.text(20, 28, "Cells (expert, panel, 24 rows) in the order in which weights lie in memory; length is cost.")
    tiles_of = [(count + 23) // 24 for _, count in experts]
    costs = [max(count, 16) for _, count in experts]  # partition.cpp: reading a panel is worth 16 rows
    total, x = sum(costs), 20.0
    for (name, _), cost, cut in zip(experts, costs, tiles_of, strict=True):
        width = 720 * cost / total
        for panel in range(12):
            for tile in range(cut):
                step = width / 12 / cut
                d.box(x + panel * width / 12 + tile * step, 50, step, 44, PALE if panel % 2 else SUM)
        d.text(x, 112, name, 11)
        x += width
    for thread in range(4):
        d.box(20 + 180 * thread, 124, 180, 26, (ROW, OTHER_ROW)[thread % 2], f"thread {thread}", size=12)
    d.text(20, 174, "Nothing is summed across threads: the cut decides who computes an output, never how.", 12)
    return d.svg()


def first_blocks() -> list[int]:
    """kFirst of bfmmla_blocks.h: pairs of the first block for each number of pairs."""
    match = re.search(BLOCKS, (ROOT / "kernels/src/isa/bfmmla_blocks.h").read_text())
    if match is None:
        raise ValueError("bfmmla_blocks.h: no table kFirst")
    return [int(part) for part in match[1].split(",")]


PICTURES = {"bfmmla": bfmmla, "layouts": layouts, "tiles": tiles, "rows": rows, "partition": partition}


def stale() -> list[str]:
    """Names of pictures that are not what they should be, or should not be."""
    wrong = [name for name, draw in PICTURES.items() if _text(FOLDER / f"{name}.svg") != draw()]
    return wrong + [path.stem for path in FOLDER.glob("*") if path.stem not in PICTURES]


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def main(arguments: Sequence[str]) -> int:
    if "--check" in arguments:
        wrong = stale()
        if wrong:
            print(f"kernels/pictures: {', '.join(wrong)} out of date; run ci/kernel_pictures.py", file=sys.stderr)
        return 1 if wrong else 0
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
