"""What kind of instrument this machine is: facts that decide how fast code runs, and no others.

No environment variables, host names, user names or addresses: result files are published.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from moelab.cpu_facts import is_qemu_core, read_cpu

Json = dict[str, object]
PACKAGES = ("moelab", "numpy", "scipy", "torch", "pytest", "pytest-benchmark", "ml_dtypes")


def gather(root: Path = Path("/")) -> Json:
    """All facts, in the shape of reports/schema (machine)."""
    cpu = read_cpu(root)
    facts = asdict(cpu)
    facts["features"] = list(cpu.features)
    all_caches = caches(root)
    return {
        "machine_id": machine_id(root, cpu.part),
        "architecture": platform.machine(),
        "cpu": facts,
        "cpus": topology(root),
        "caches": all_caches,
        "last_level_bytes": last_level_bytes(root),
        "memory": memory(root),
        "frequency": frequency(root),
        "cgroup": {
            "cpu_limit": cgroup_cpu_limit(root),
            "memory_limit": cgroup_memory_limit(root),
            "container": container(root),
        },
        "hypervisor": hypervisor(root, cpu.features),
        "emulated": emulated(root),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "os": _os_name(root),
        "aslr": _int(root / "proc/sys/kernel/randomize_va_space"),
        "steal_fraction": steal_fraction(root),
        "load": list(os.getloadavg()),
        "python": platform.python_version(),
        "packages": _packages(),
        "mitigations": {p.name: _text(p) or "" for p in sorted(_cpu(root).glob("vulnerabilities/*"))},
    }


def machine_id(root: Path, part: str) -> str:
    """Tells two results of one machine without naming it: a salted hash of /etc/machine-id and the CPU part."""
    own = _text(root / "etc/machine-id") or _text(root / "var/lib/dbus/machine-id") or platform.node()
    return hashlib.sha256(f"moelab/{own}/{part}".encode()).hexdigest()[:12]


def topology(root: Path = Path("/")) -> Json:
    """CPUs that this process may use and what they belong to."""
    allowed = sorted(os.sched_getaffinity(0))
    cores, sockets = set(), set()
    for cpu in allowed:
        folder = _cpu(root) / f"cpu{cpu}/topology"
        socket = _text(folder / "physical_package_id") or "0"
        sockets.add(socket)
        cores.add((socket, _text(folder / "thread_siblings_list") or str(cpu)))
    smt = _text(_cpu(root) / "smt/active")
    nodes = list((root / "sys/devices/system/node").glob("node[0-9]*"))
    return {
        "allowed": len(allowed),
        "cores": len(cores),
        "sockets": len(sockets),
        "smt": None if smt is None else smt == "1",
        "numa_nodes": max(1, len(nodes)),
    }


def caches(root: Path = Path("/")) -> list[Json]:
    """Caches of CPU 0; empty where the kernel does not say (some VMs and containers)."""
    found: list[Json] = []
    for folder in sorted((_cpu(root) / "cpu0/cache").glob("index[0-9]*")):
        size, level = _text(folder / "size"), _int(folder / "level")
        if size is None or level is None:
            continue
        found.append(
            {
                "level": level,
                "kind": _text(folder / "type") or "unknown",
                "bytes": _size(size),
                "shared_by": len(_cpu_list(_text(folder / "shared_cpu_list") or "0")),
            }
        )
    return found


def last_level_bytes(root: Path = Path("/")) -> int:
    """Size of the largest cache, all of them that the allowed CPUs reach; 0 where unknown.

    Several sockets (or core complexes) have a last-level cache each, and all of them hold weights.
    """
    instances: dict[tuple[int, str], int] = {}
    for cpu in os.sched_getaffinity(0):
        for folder in (_cpu(root) / f"cpu{cpu}/cache").glob("index[0-9]*"):
            size, level = _text(folder / "size"), _int(folder / "level")
            if size is not None and level is not None and _text(folder / "type") != "Instruction":
                instances[level, _text(folder / "shared_cpu_list") or str(cpu)] = _size(size)
    if not instances:
        return 0
    top = max(level for level, _ in instances)
    return sum(size for (level, _), size in instances.items() if level == top)


def memory(root: Path = Path("/")) -> Json:
    """Bytes of memory; `available` already respects a container's limit."""
    info: dict[str, int] = {}
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        if value.split():
            info[key] = int(value.split()[0]) * 1024
    limit = cgroup_memory_limit(root)
    available = info.get("MemAvailable", info.get("MemFree", 0))
    if limit is not None:
        available = min(available, limit)
    thp = _text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = thp[thp.index("[") + 1 : thp.index("]")] if thp and "[" in thp else thp
    return {
        "total": info.get("MemTotal", 0),
        "available": available,
        "limit": limit,
        "thp": chosen,
        "swap": info.get("SwapTotal", 0),
    }


def frequency(root: Path = Path("/")) -> Json:
    """Governor and limits of CPU 0; None in most VMs, which do not say."""
    folder = _cpu(root) / "cpu0/cpufreq"
    boost = _text(_cpu(root) / "cpufreq/boost")
    no_turbo = _text(_cpu(root) / "intel_pstate/no_turbo")
    return {
        "governor": _text(folder / "scaling_governor"),
        "driver": _text(folder / "scaling_driver"),
        "boost": boost == "1" if boost is not None else (no_turbo == "0" if no_turbo is not None else None),
        "min_khz": _int(folder / "scaling_min_freq"),
        "max_khz": _int(folder / "scaling_max_freq"),
    }


def cgroup_cpu_limit(root: Path = Path("/")) -> float | None:
    """CPUs that the control group grants (version 2, then 1); None without a limit."""
    for folder in own_cgroups(root, "cpu"):
        text = _text(folder / "cpu.max")
        if text and not text.startswith("max"):
            quota, period = text.split()
            return int(quota) / int(period)
        quota_us, period_us = _int(folder / "cpu.cfs_quota_us"), _int(folder / "cpu.cfs_period_us")
        if quota_us is not None and period_us and quota_us > 0:
            return quota_us / period_us
    return None


def cgroup_memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the control group grants; None without a limit."""
    limits = []
    for folder in own_cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _int(folder / name)
            if value is not None and 0 < value < 1 << 60:  # version 1 writes a huge number for "none"
                limits.append(value)
    return min(limits, default=None)


def own_cgroups(root: Path, controller: str) -> list[Path]:
    """Folders of this process's group and its parents for a controller, innermost first."""
    folders = []
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [root / "sys/fs/cgroup"] if not controllers else [root / "sys/fs/cgroup" / controller]
        if not controllers:
            mounts.append(root / "sys/fs/cgroup/unified")
        for mount in mounts:
            inner = mount / path.strip("/")
            folders += [f for f in (inner, *inner.parents) if f.is_relative_to(mount)]
    return folders


def container(root: Path = Path("/")) -> str | None:
    """What kind of container this is; None outside of one."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    text = _text(root / "proc/1/cgroup") or ""
    return next((kind for kind in ("kubepods", "docker", "lxc") if kind in text), None)


def hypervisor(root: Path, features: tuple[str, ...]) -> str | None:
    """Who runs this virtual machine; None on bare metal as far as one can see."""
    vendor = _text(root / "sys/class/dmi/id/sys_vendor")
    product = _text(root / "sys/class/dmi/id/product_name")
    known = ("QEMU", "KVM", "Amazon", "Microsoft", "VMware", "Google", "Xen", "Firecracker", "OpenStack", "Alibaba")
    named = " ".join(text for text in (vendor, product) if text)
    kind = _text(root / "sys/hypervisor/type")
    if kind:
        return kind
    metal = "metal" in named.lower()
    if "hypervisor" in features or (not metal and any(word in named for word in known)):
        return named or "unnamed"
    return None


def emulated(root: Path = Path("/")) -> bool:
    """Whether instructions are emulated: times would mean nothing.

    User-mode QEMU shows the host's /proc/cpuinfo or a core of its own; our scripts set MOELAB_EMULATED besides.
    """
    if os.environ.get("MOELAB_EMULATED", "") not in ("", "0"):
        return True
    cpu = read_cpu(root)
    if is_qemu_core(cpu):
        return True
    text = _text(root / "proc/cpuinfo") or ""
    arm = platform.machine() in ("aarch64", "arm64")
    return bool(text) and arm != ("CPU implementer" in text) and ("vendor_id" in text or "CPU implementer" in text)


def steal_fraction(root: Path = Path("/")) -> float | None:
    """Share of time since boot that the hypervisor took away from this machine's CPUs."""
    first = (_text(root / "proc/stat") or "").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu":
        return None
    ticks = [int(value) for value in first[1:9]]
    return ticks[7] / max(1, sum(ticks))


def _packages() -> Json:
    versions: Json = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _os_name(root: Path) -> str:
    for line in (_text(root / "etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()


def _cpu(root: Path) -> Path:
    return root / "sys/devices/system/cpu"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _int(path: Path) -> int | None:
    try:
        return int(_text(path) or "")
    except ValueError:
        return None


def _size(text: str) -> int:
    """Bytes of a size as /sys writes it: 32K, 1024K, 300M."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * factors[text[-1]] if text[-1] in factors else int(text)


def _cpu_list(text: str) -> list[int]:
    """Numbers of a list as /sys writes it: 0-3,8."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
