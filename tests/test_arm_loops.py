"""The reader of the Arm kernels' inner loops (ci/arm_loops.py) finds what a good loop must not have.

The objects themselves are read by the Arm suite, as built by gcc and by the oldest and newest clang.
"""

from __future__ import annotations

import re

import ci_scripts

loops = ci_scripts.load("arm_loops.py", "arm_loops")

# Two rows by eight columns, four steps of k: one load of A serves two steps.
STEP = """\
 {0:x}:\tldp\tq4, q5, [x10], #256
 {1:x}:\tldp\tq6, q7, [x10, #-224]
 {2:x}:\tbfmmla\tv16.4s, v0.8h, v4.8h
 {3:x}:\tbfmmla\tv17.4s, v0.8h, v5.8h
 {4:x}:\tbfmmla\tv18.4s, v0.8h, v6.8h
 {5:x}:\tbfmmla\tv19.4s, v0.8h, v7.8h
"""
EXPECTED = {"2x8": (16, 4, 28)}


def listing(*extra: str, branch: str = "b.ne") -> str:
    """What objdump prints of a function with one such loop, and `extra` instructions in it."""
    lines = ["0000000000000000 <gemm>:", "   0:\tmov\tx9, x0"]
    lines += ["   4:\tldp\tq0, q1, [x9], #64", "   8:\tldp\tq0, q1, [x9, #-32]"]
    address = 12
    for _ in range(4):
        lines += STEP.format(*range(address, address + 24, 4)).splitlines()
        address += 24
    for text in extra:
        lines.append(f" {address:x}:\t{text}")
        address += 4
    lines += [f" {address:x}:\tcmp\tx9, x13", f" {address + 4:x}:\t{branch}\t4 <gemm+0x4>", f" {address + 8:x}:\tret"]
    return "\n".join(lines)


def problems(text: str) -> list[str]:
    found: list[str] = loops.problems(
        text, "bfmmla", EXPECTED | {tile: loops.BFMMLA_LOOPS[tile] for tile in loops.WIDE}
    )
    return [problem for problem in found if not re.match("(12x8|8x12): no such loop", problem)]


def test_a_good_loop_passes() -> None:
    assert problems(listing()) == []


def test_a_spill_a_move_and_a_store_are_found() -> None:
    for bad in ("ldr\tq20, [sp, #16]", "mov\tv16.16b, v20.16b", "str\tq16, [x2]", "orr\tv3.16b, v4.16b, v4.16b"):
        found = problems(listing(bad))
        assert any(bad.replace("\t", " ") in problem for problem in found), bad
        assert any("(16, 4, 29)" in problem for problem in found), bad


def test_a_missing_multiplication_and_a_missing_loop_are_found() -> None:
    without = listing().replace("bfmmla\tv19.4s, v0.8h, v7.8h", "nop", 1)
    assert any("2x8: (15, 4, 28)" in problem for problem in problems(without))
    assert problems(listing(branch="b.al").replace("4 <gemm+0x4>", "")) == ["2x8: no such loop"]


def test_fewer_accumulators_are_found() -> None:
    assert any("(16, 3, 28)" in problem for problem in problems(listing().replace("v19.4s", "v18.4s")))


def test_wide_loops_have_at_most_their_share_of_other_instructions() -> None:
    for tile in loops.WIDE:
        multiplications, accumulators, instructions = loops.BFMMLA_LOOPS[tile]
        assert accumulators == 24
        assert instructions <= 1.25 * multiplications
    worse = dict(loops.BFMMLA_LOOPS) | {"12x8": (96, 24, 121)}
    assert any("limit 1.25" in problem for problem in loops.problems("", "bfmmla", worse))
