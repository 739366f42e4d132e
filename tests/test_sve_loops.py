"""The SVE loops as compilers build them: every tile has its loop, no register moves or goes to the stack in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci_scripts import CI, load

sys.path.insert(0, str(CI))
arm_loops = load("arm_loops.py", "arm_loops")
tools = load("arm_tools.py", "arm_tools")
mca = load("predict_mca.py", "predict_mca")

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
GCC = "aarch64-linux-gnu-g++"
# Multiplications, accumulators and instructions of one turn, two steps of k.
LOOPS = {
    "12x4v": (48, 24, 72),
    "10x4v": (40, 20, 62),
    "8x4v": (32, 16, 52),
    "6x4v": (24, 12, 42),
    "4x8v": (32, 16, 57),
    "2x8v": (16, 8, 39),
    "4x4v": (16, 8, 32),
    "2x4v": (8, 4, 22),
}


def compilers() -> list[str]:
    """gcc, and the oldest and the newest clang here, which takes the cross compiler's headers."""
    clangs = tools.oldest_and_newest([name for name in tools.CLANGS if shutil.which(name)])
    return [GCC, *clangs] if shutil.which(GCC) else []


pytestmark = pytest.mark.skipif(not compilers(), reason=f"needs {GCC}")


def compiled(compiler: str, folder: Path) -> Path:
    target = folder / "sve_bf16.o"
    flags = ["-O3", "-DNDEBUG", "-std=c++17", "-fPIC", "-ffp-contract=off", "-march=armv8.2-a+sve+bf16"]
    flags += [f"-I{KERNELS / 'include'}", f"-I{KERNELS / 'src'}"]
    if compiler != GCC:
        flags.append("--target=aarch64-linux-gnu")
    command = [compiler, *flags, "-c", str(KERNELS / "src/isa/sve_bf16.cpp"), "-o", str(target)]
    subprocess.run(command, check=True)
    return target


@pytest.mark.parametrize("compiler", compilers())
def test_every_tile_has_its_loop_and_nothing_else_in_it(compiler: str, tmp_path: Path) -> None:
    loops = mca.loops_of(compiled(compiler, tmp_path), "sve_bf16")
    assert {tile: loop.shape("bfmmla") for tile, loop in loops.items()} == LOOPS
    assert [fault for loop in loops.values() for fault in loop.faults()] == []


def test_a_spill_is_a_fault() -> None:
    loop = arm_loops.Loop("f", (("bfmmla", "z8.s, z0.h, z6.h"), ("str", "z8, [sp, #1, mul vl]"), ("b.ne", "0 <f>")))
    assert loop.faults() == ["str z8, [sp, #1, mul vl]"]
