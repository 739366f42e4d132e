"""The inner loops of a built object through llvm-mca."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import arm
import arm_loops
from predict_cores import Core

VERSIONS = range(19, 13, -1)  # newest first: what Debian 12 packages
TURNS = (100, 300)  # the difference leaves out how the pipeline fills


@dataclass(frozen=True)
class Tool:
    """An llvm-mca."""

    program: str
    version: str


@dataclass(frozen=True)
class Prediction:
    """One loop on one core. `cycles` for one turn; `percent` of the multiply peak; `steps` of k per turn."""

    core: str
    kernel: str
    tile: str
    multiplications: int
    instructions: int
    steps: int
    cycles: float
    percent: float
    bottleneck: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def packages() -> dict[str, str]:
    """Programs that must be here and their Debian packages: the newest llvm-mca, and the cross compiler."""
    newest = VERSIONS[0]
    return {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", f"llvm-mca-{newest}": f"llvm-{newest}"}


def find() -> Tool:
    """The newest llvm-mca here. Raises RuntimeError where there is none."""
    for version in VERSIONS:
        if program := shutil.which(f"llvm-mca-{version}"):
            text = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
            match = re.search(r"LLVM version (\S+)", text)
            return Tool(program, f"llvm-mca {match[1] if match else version}")
    raise RuntimeError("no llvm-mca")


def built_objects() -> dict[str, Path]:
    """The kernels' objects in the Arm suite's build, brought up to date."""
    build = arm.FOLDER / "build"
    arm.build(build, "-DMOELAB_TESTS=ON")  # as the suite has it
    folder = build / "CMakeFiles/moelab_objects.dir/src/isa"
    return {name: folder / f"{name}.cpp.o" for name in ("neon", "neon_bf16", "sve_bf16")}


def loops_of(built: Path, kernel: str) -> dict[str, arm_loops.Loop]:
    """The loop of each tile; that of the first function where several hold the same one."""
    mnemonic = "fmla" if kernel == "neon" else "bfmmla"
    disassembly = arm_loops.disassemble(built).replace("/z", "@z")  # the reader takes a slash for a comment
    found: dict[str, arm_loops.Loop] = {}
    for loop in arm_loops.inner_loops(disassembly, mnemonic, at_least=4):
        if "peak_" not in loop.function:
            found.setdefault(sve_tile(loop) if kernel == "sve_bf16" else loop.tile(mnemonic), loop)
    # By name among equals: in which order functions lie in an object is nobody's promise.
    return dict(sorted(found.items(), key=lambda item: (-len(item[1].multiplications(mnemonic)), item[0])))


def sve_tile(loop: arm_loops.Loop) -> str:
    """Rows x vectors: each load of A by LD1RQH brings a pair of rows, and a sum holds one pair and one vector."""
    rows = 2 * len({operands.split(",")[0] for name, operands in loop.instructions if name == "ld1rqh"})
    return f"{rows}x{2 * loop.accumulators('bfmmla') // max(rows, 1)}v"


def assembly(loop: arm_loops.Loop) -> str:
    """The loop as text that an assembler takes."""
    lines = [f"{name} {operands}".replace("@z", "/z") for name, operands in loop.instructions[:-1]]
    return "\n".join([".Lturn:", *lines, f"{loop.instructions[-1][0]} .Lturn", ""])


def predict(tool: Tool, core: Core, kernel: str, tile: str, loop: arm_loops.Loop) -> Prediction:
    multiplications = len(loop.multiplications(core.multiply))
    few, many = (simulate(tool, core, assembly(loop), turns) for turns in TURNS)
    cycles = (cycles_of(many) - cycles_of(few)) / (TURNS[1] - TURNS[0])
    steps = multiplications // loop.accumulators(core.multiply)
    width = core.vector_bits // 128 if kernel == "sve_bf16" else 1
    return Prediction(
        core=core.name,
        kernel=kernel,
        tile=tile,
        multiplications=multiplications,
        instructions=len(loop.instructions),
        steps=steps,
        cycles=round(cycles, 3),
        percent=round(100 * multiplications * width / (cycles * core.pipes), 1),
        bottleneck=bottleneck_of(many),
    )


def simulate(tool: Tool, core: Core, text: str, turns: int) -> str:
    """What llvm-mca prints. Raises RuntimeError with its words where it cannot read the loop or the core's name."""
    with tempfile.NamedTemporaryFile("w", suffix=".s") as file:
        file.write(text)
        file.flush()
        command = [tool.program, "-mtriple=aarch64-linux-gnu", f"-mcpu={core.name}", f"-iterations={turns}"]
        command += [f"-dispatch={core.dispatch}", "-bottleneck-analysis", "-instruction-info=0", "-resource-pressure=0"]
        done = subprocess.run([*command, file.name], check=False, capture_output=True, text=True)
    if done.returncode != 0 or "not a recognized processor" in done.stderr:
        raise RuntimeError(f"{tool.version}, {core.name}: {done.stderr.strip()[:500]}")
    return done.stdout


def cycles_of(output: str) -> int:
    """Raises ValueError where the summary is not there."""
    match = re.search(r"^Total Cycles:\s+(\d+)$", output, re.MULTILINE)
    if match is None:
        raise ValueError(f"no cycles in what llvm-mca printed: {output[:200]!r}")
    return int(match[1])


def bottleneck_of(output: str) -> str:
    """What held instructions back, pipes by LLVM's names (v0, l01), and in what share of cycles."""
    if "No resource or data dependency bottlenecks discovered" in output:
        return "none"
    found = re.findall(r"^\s+- (.+?)\s+\[ ([\d.]+)% \]$", output, re.MULTILINE)
    if not found:
        raise ValueError("no bottleneck analysis in what llvm-mca printed")
    by_share: dict[str, list[str]] = {}  # the units of a kind are all as full
    for name, share in found:
        if float(share) >= 1:
            by_share.setdefault(share, []).append(re.sub(r"^[NV]\dUnit", "", name.strip()).lower())
    named = [f"{' '.join(names)} {float(share):.0f} %" for share, names in by_share.items()]
    return ", ".join(named) or "none in 1 % of cycles"
