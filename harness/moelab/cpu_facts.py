"""Which CPU this is, on x86-64 and AArch64, read from /proc and /sys under a root that tests can replace."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# MIDR part numbers of cores in servers, phones and boards: Linux arch/arm64/include/asm/cputype.h.
ARM_PARTS: Mapping[tuple[int, int], str] = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD83): "Neoverse-V3AE",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x46, 0x001): "A64FX",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1A",
    (0x6D, 0xD49): "Azure Cobalt 100",
    (0x48, 0xD01): "Kunpeng-920",
    (0x4E, 0x004): "Carmel",
    (0x61, 0x022): "Apple Icestorm (M1)",
    (0x61, 0x023): "Apple Firestorm (M1)",
}
ARM_VENDORS = {0x41: "Arm", 0x42: "Broadcom", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x51: "Qualcomm",
               0x61: "Apple", 0x6D: "Microsoft", 0xC0: "Ampere"}  # fmt: skip
# The part that QEMU's own CPU "max" reports: no silicon has it.
QEMU_MAX_PART = (0x00, 0x051)


@dataclass(frozen=True)
class Cpu:
    """`part` identifies the design: "AuthenticAMD 25/17/1" or "MIDR 0x410fd4f0"; `mixed`: not all CPUs are alike."""

    part: str
    name: str
    vendor: str
    family: int | None
    model: int | None
    stepping: int | None
    midr: str | None
    features: tuple[str, ...]
    mixed: bool


def read_cpu(root: Path = Path("/"), architecture: str | None = None) -> Cpu:
    """The CPU of this machine; unknown fields are None or "unknown", never an error."""
    architecture = architecture or platform.machine()
    blocks = _blocks(root / "proc/cpuinfo")
    if architecture in ("aarch64", "arm64"):
        return _arm(root, blocks)
    return _x86(blocks)


def is_qemu_core(cpu: Cpu) -> bool:
    """Whether the core exists only in an emulator."""
    if cpu.midr is None:
        return "QEMU" in cpu.name or "TCG" in cpu.name
    return _split_midr(int(cpu.midr, 16))[:2] == QEMU_MAX_PART


def _blocks(path: Path) -> list[dict[str, str]]:
    """/proc/cpuinfo: one dict per processor."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    blocks = []
    for chunk in text.split("\n\n"):
        pairs = (line.split(":", 1) for line in chunk.splitlines() if ":" in line)
        block = {key.strip(): value.strip() for key, value in pairs}
        if block:
            blocks.append(block)
    return blocks


def _x86(blocks: list[dict[str, str]]) -> Cpu:
    first = blocks[0] if blocks else {}
    vendor = first.get("vendor_id", "unknown")
    numbers = [_number(first.get(key)) for key in ("cpu family", "model", "stepping")]
    identity = {tuple(b.get(k) for k in ("vendor_id", "cpu family", "model", "stepping")) for b in blocks}
    part = f"{vendor} {'/'.join('?' if n is None else str(n) for n in numbers)}"
    return Cpu(part, first.get("model name", "unknown"), vendor, numbers[0], numbers[1], numbers[2], None,
               tuple(sorted(first.get("flags", "").split())), len(identity) > 1)  # fmt: skip


def _arm(root: Path, blocks: list[dict[str, str]]) -> Cpu:
    midrs = _midrs_of_sysfs(root) or _midrs_of_cpuinfo(blocks)
    features = next((b["Features"] for b in blocks if "Features" in b), "")
    if not midrs:
        return Cpu("unknown", "unknown", "unknown", None, None, None, None, tuple(sorted(features.split())), False)
    implementer, part, variant, revision = _split_midr(midrs[0])
    vendor = ARM_VENDORS.get(implementer, f"implementer {implementer:#x}")
    name = ARM_PARTS.get((implementer, part), f"part {part:#x}")
    kinds = {_split_midr(m)[:2] for m in midrs}
    return Cpu(f"MIDR {midrs[0]:#010x}", f"{vendor} {name} r{variant}p{revision}", vendor, None, part, revision,
               f"{midrs[0]:#010x}", tuple(sorted(features.split())), len(kinds) > 1)  # fmt: skip


def _midrs_of_sysfs(root: Path) -> list[int]:
    files = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/regs/identification/midr_el1"))
    values = []
    for file in files:
        try:
            values.append(int(file.read_text().strip(), 16) & 0xFFFFFFFF)
        except (OSError, ValueError):
            continue
    return values


def _midrs_of_cpuinfo(blocks: list[dict[str, str]]) -> list[int]:
    """Put together from /proc/cpuinfo's fields, where /sys does not show the register (some containers)."""
    values = []
    for block in blocks:
        fields = [_number(block.get(f"CPU {key}")) for key in ("implementer", "variant", "part", "revision")]
        if None in fields:
            continue
        implementer, variant, part, revision = (f or 0 for f in fields)
        values.append(implementer << 24 | variant << 20 | 0xF << 16 | part << 4 | revision)
    return values


def _split_midr(midr: int) -> tuple[int, int, int, int]:
    """implementer, part, variant, revision."""
    return midr >> 24 & 0xFF, midr >> 4 & 0xFFF, midr >> 20 & 0xF, midr & 0xF


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None
