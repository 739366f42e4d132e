"""No instruction above the baseline in code that runs before CPU detection, read from the built objects.

    python ci/baseline.py BUILD     a CMake build folder of kernels/, native or cross-built

Three rules make an illegal instruction impossible: objects outside src/isa/ (and scalar) hold baseline instructions
only; objects of an instruction set define no function that the linker could choose for baseline code (a weak symbol:
an inline function that another object needs as well); and they run nothing at start-up.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# x86-64-v1 is what CMake's default targets: SSE2. VEX and EVEX mnemonics start with v; tile and mask ones are listed.
ABOVE_X86 = re.compile(
    r"^(v(?!err|erw|mcall|mlaunch)\w+|k(add|and|andn|mov|not|or|ortest|shiftl|shiftr|test|unpck|xnor|xor)[bwdq]{1,2}"
    r"|t(dp|ile)\w+|ldtilecfg|sttilecfg|(p|)(shufb|maddubsw|absd|hadd)\w*|(round|blend|dp)[ps][sd]|popcnt|[bp]ext[rq]?|pdep"
    r"|sh[lr]x|sarx|rorx|mulx|andn|bls[ir]|blsmsk|lzcnt|tzcnt|movbe|cvtph2ps)\b"
)
# Armv8.0 plus the LSE-free atomics that GCC calls out of line: no BF16, dot product, I8MM, SVE registers, FP16 lanes.
ABOVE_ARM = re.compile(
    r"^(bf(mmla|dot|mlal[bt]|cvt\w*)|[su]mmla|usmmla|[su]dot|fmlal\w*|ptrue|whilel\w+|cnt[bhwd]|rdvl|addvl|st1[bhwd]|ld1(r|)[bhwd])\b"
)
SVE_REGISTER = re.compile(r"\b[zp]\d+\.[bhsdq]\b|\{z\d+")


def tools(build: Path) -> tuple[str, re.Pattern[str], bool]:
    """The prefix of the binutils, the pattern of instructions above the baseline, and whether this is Arm."""
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)
    arm = "aarch64" in (compiler.group(1) if compiler else "") or "aarch64-linux-gnu.cmake" in cache
    native = subprocess.run(["uname", "-m"], check=True, capture_output=True, text=True).stdout.strip()
    if native == "aarch64":
        return "", ABOVE_ARM, True
    return ("aarch64-linux-gnu-" if arm else ""), (ABOVE_ARM if arm else ABOVE_X86), arm


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def above_baseline(objdump: str, pattern: re.Pattern[str], arm: bool, path: Path) -> list[str]:
    """Instructions of one object that the baseline lacks, with their function."""
    found, function = [], ""
    for line in run(objdump, "-d", "--no-show-raw-insn", str(path)).splitlines():
        if line.endswith(">:"):
            function = line.split("<", 1)[1][:-2]
            continue
        parts = line.split("\t")
        if len(parts) < 2:
            continue
        text = "\t".join(parts[1:]).strip()
        if pattern.match(text) or (arm and SVE_REGISTER.search(text)):
            found.append(f"{function}: {text}")
    return found


def start_up_sections(objdump: str, path: Path) -> list[str]:
    return re.findall(r"\.(?:init_array|ctors)\S*", run(objdump, "-h", str(path)))


def check(build: Path) -> list[str]:
    """Every violation, as a sentence."""
    prefix, pattern, arm = tools(build)
    objects = sorted((build / "CMakeFiles" / "moelab_objects.dir" / "src").rglob("*.o"))
    if not objects:
        raise SystemExit(f"{build}: no objects of moelab here; build it first")
    problems, seen_above = [], False
    for path in objects:
        name = path.relative_to(build / "CMakeFiles" / "moelab_objects.dir" / "src")
        above = above_baseline(f"{prefix}objdump", pattern, arm, path)
        if name.parts[0] != "isa" or name.name.startswith(("scalar", "neon.")):
            problems += [f"{name}: above the baseline: {line}" for line in above[:3]]
            continue
        seen_above = seen_above or bool(above)
        symbols = [line.split() for line in run(f"{prefix}nm", "-C", "--defined-only", str(path)).splitlines()]
        problems += [f"{name}: weak function {' '.join(s[2:])}" for s in symbols if len(s) > 2 and s[1] in "Ww"]
        problems += [
            f"{name}: {section} runs before detection" for section in start_up_sections(f"{prefix}objdump", path)
        ]
    if not seen_above:
        problems.append("no object holds an instruction above the baseline: the patterns of this check have gone blind")
    return problems


def main() -> int:
    problems = [problem for folder in sys.argv[1:] for problem in check(Path(folder))]
    print("\n".join(problems) or "baseline: nothing above it runs before detection")
    return bool(problems)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    sys.exit(main())
