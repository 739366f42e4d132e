"""Machine facts from made-up /proc and /sys trees of an x86 server, Arm servers, containers and an emulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from moelab import cpus, expect, machine, machine_command
from moelab.advice import advice
from moelab.conditions import Disturbance, Monitor, drift
from moelab.cpu_facts import is_qemu_core, read_cpu

SCHEMA = json.loads((Path(__file__).parents[1] / "reports/schema/result-1.json").read_text())

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9554
stepping\t: 1
flags\t\t: fpu avx2 avx512f avx512_bf16 hypervisor
"""
ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd bf16 i8mm sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd49
CPU revision\t: 0
"""


def put(root: Path, **files: str) -> Path:
    """Writes files named with "__" for "/"."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def write(root: Path, files: dict[str, str]) -> Path:
    return put(root, **{name.replace("/", "__"): text for name, text in files.items()})


def test_facts_of_this_machine_follow_the_schema() -> None:
    facts = machine.gather()
    jsonschema.validate(facts, {**SCHEMA["$defs"]["machine"], "$defs": SCHEMA["$defs"]})
    assert facts["architecture"] == os.uname().machine


def test_facts_hold_no_environment_host_or_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-value")
    text = json.dumps(machine.gather())
    assert "very-secret-value" not in text
    assert len(os.uname().nodename) < 4 or f'"{os.uname().nodename}"' not in text


def test_x86_identity(tmp_path: Path) -> None:
    cpu = read_cpu(write(tmp_path, {"proc/cpuinfo": X86 + "\n" + X86}), "x86_64")
    assert (cpu.part, cpu.family, cpu.model, cpu.stepping) == ("AuthenticAMD 25/17/1", 25, 17, 1)
    assert "avx512_bf16" in cpu.features
    assert not cpu.mixed
    assert cpu.midr is None


def test_arm_identity_from_cpuinfo_and_from_sysfs(tmp_path: Path) -> None:
    cpu = read_cpu(write(tmp_path, {"proc/cpuinfo": ARM}), "aarch64")
    assert cpu.part == "MIDR 0x410fd490"
    assert cpu.name == "Arm Neoverse-N2 r0p0"
    midr = "sys/devices/system/cpu/cpu0/regs/identification/midr_el1"
    cpu = read_cpu(write(tmp_path, {midr: "0x00000000414fd0c1\n"}), "aarch64")
    assert cpu.name == "Arm Neoverse-N1 r4p1"


def test_mixed_cores_are_noticed(tmp_path: Path) -> None:
    midr = "sys/devices/system/cpu/cpu{}/regs/identification/midr_el1"
    write(tmp_path, {midr.format(0): "0x410fd050", midr.format(1): "0x414fd0b0", "proc/cpuinfo": ARM})
    cpu = read_cpu(tmp_path, "aarch64")
    assert cpu.mixed
    facts: Any = machine.gather()
    facts["cpu"]["mixed"] = True
    assert any("different kinds" in text for text in advice(facts))


def test_an_unknown_core_keeps_its_number(tmp_path: Path) -> None:
    cpu = read_cpu(write(tmp_path, {"proc/cpuinfo": ARM.replace("0xd49", "0xfff")}), "aarch64")
    assert cpu.midr == "0x410ffff0"
    assert "0xfff" in cpu.name


def test_a_core_that_only_an_emulator_has(tmp_path: Path) -> None:
    text = ARM.replace("implementer\t: 0x41", "implementer\t: 0x00").replace("0xd49", "0x051")
    assert is_qemu_core(read_cpu(write(tmp_path, {"proc/cpuinfo": text}), "aarch64"))
    assert not is_qemu_core(read_cpu(write(tmp_path, {"proc/cpuinfo": ARM}), "aarch64"))


def test_cpuinfo_of_another_architecture_means_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User-mode emulation shows the host's file."""
    monkeypatch.delenv("MOELAB_EMULATED", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert machine.emulated(write(tmp_path, {"proc/cpuinfo": X86}))
    assert not machine.emulated(write(tmp_path, {"proc/cpuinfo": ARM}))


def test_nothing_to_read_is_no_error(tmp_path: Path) -> None:
    facts: Any = machine.gather(tmp_path)
    assert facts["caches"] == []
    assert facts["last_level_bytes"] == 0
    assert facts["memory"]["total"] == 0
    assert facts["steal_fraction"] is None
    jsonschema.validate(facts, {**SCHEMA["$defs"]["machine"], "$defs": SCHEMA["$defs"]})


def test_limits_of_control_groups_version_2_and_1(tmp_path: Path) -> None:
    two = write(
        tmp_path / "v2",
        {
            "proc/self/cgroup": "0::/job/task\n",
            "sys/fs/cgroup/job/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/job/task/cpu.max": "max 100000\n",
            "sys/fs/cgroup/job/memory.max": "4294967296\n",
            "sys/fs/cgroup/job/task/memory.max": "max\n",
        },
    )
    assert machine.cgroup_cpu_limit(two) == 1.5
    assert machine.cgroup_memory_limit(two) == 4 << 30
    one = write(
        tmp_path / "v1",
        {
            "proc/self/cgroup": "4:memory:/a\n1:cpu,cpuacct:/a\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert machine.cgroup_cpu_limit(one) == 2.0
    assert machine.cgroup_memory_limit(one) is None


def test_memory_that_a_container_grants_is_what_is_available(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(2 << 30),
            "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        },
    )
    found = machine.memory(root)
    assert found["available"] == 2 << 30
    assert found["total"] == 16 << 30
    assert found["thp"] == "madvise"


def test_caches_and_the_last_level_of_several_complexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    base = "sys/devices/system/cpu/cpu{}/cache/index3/{}"
    files = {}
    for cpu in (0, 1):
        for name, text in {"size": "32M", "level": "3", "type": "Unified", "shared_cpu_list": str(cpu)}.items():
            files[base.format(cpu, name)] = text
    root = write(tmp_path, files)
    assert machine.last_level_bytes(root) == 64 << 20
    assert machine.caches(root) == [{"level": 3, "kind": "Unified", "bytes": 32 << 20, "shared_by": 1}]


def test_one_thread_per_core_no_more_than_the_container_grants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    sibling = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    root = write(tmp_path, {sibling.format(c): f"{c % 2},{c % 2 + 2}" for c in range(4)})
    assert cpus.default_threads(root) == 2
    assert cpus.bound_cpus(2, root) == [0, 1]
    assert cpus.bound_cpus(3, root) == [0, 1, 2]
    with pytest.raises(ValueError, match="may use 4 CPUs"):
        cpus.bound_cpus(5, root)
    write(root, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000"})
    assert cpus.default_threads(root) == 1


def arm_container(root: Path) -> Path:
    """A Neoverse-N2 virtual machine, and in it a container that is granted 1.5 of its 4 CPUs and 8 of its 16 GiB."""
    cpu = "sys/devices/system/cpu"
    files = {
        "proc/cpuinfo": "\n".join(ARM.replace("processor\t: 0", f"processor\t: {n}") for n in range(4)),
        "proc/stat": "cpu  1000 0 0 8000 0 0 0 1000 0 0\n",
        "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\nSwapTotal: 0 kB\n",
        "proc/self/cgroup": "0::/\n",
        "proc/1/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/memory.max": str(8 << 30),
        ".dockerenv": "",
        "sys/class/dmi/id/sys_vendor": "Amazon EC2\n",
        "sys/class/dmi/id/product_name": "m8g.xlarge\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
        f"{cpu}/smt/active": "0\n",
        f"{cpu}/vulnerabilities/spectre_v2": "Mitigation: CSV2, BHB\n",
        "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
    }
    for n in range(4):
        files[f"{cpu}/cpu{n}/regs/identification/midr_el1"] = "0x00000000410fd490\n"
        files[f"{cpu}/cpu{n}/topology/physical_package_id"] = "0\n"
        files[f"{cpu}/cpu{n}/topology/thread_siblings_list"] = f"{n}\n"
        for index, (level, kind, size) in enumerate(
            [(1, "Data", "64K"), (2, "Unified", "1024K"), (3, "Unified", "32M")]
        ):
            cache = f"{cpu}/cpu{n}/cache/index{index}"
            shared = "0-3" if level == 3 else str(n)
            files |= {f"{cache}/level": str(level), f"{cache}/type": kind, f"{cache}/size": size,
                      f"{cache}/shared_cpu_list": shared}  # fmt: skip
    return write(root, files)


def test_an_arm_machine_in_a_container_is_described_with_what_to_improve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOELAB_EMULATED", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    facts: Any = machine.gather(arm_container(tmp_path))
    jsonschema.validate(facts, {**SCHEMA["$defs"]["machine"], "$defs": SCHEMA["$defs"]})
    text = machine_command.describe(facts, ["the hypervisor took 10.0% of the CPU time"])
    rows = {line.partition(" ")[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line[:1].isalpha()}
    assert rows["CPU"] == "Arm Neoverse-N2 r0p0 (MIDR 0x410fd490)"
    assert rows["features"] == "asimd, bf16, i8mm, sve"
    assert rows["CPUs"] == "4 allowed on 4 cores, 1 sockets, 1 NUMA nodes, SMT no"
    assert rows["caches"] == "L1 data 64 KiB, L2 unified 1 MiB, L3 unified 32 MiB"
    assert rows["memory"] == "8 GiB of 16 GiB free, huge pages never"
    assert rows["limits"] == "CPUs 1.5, memory 8 GiB"
    assert rows["runs"] == "in Amazon EC2 m8g.xlarge, docker"
    assert rows["stolen"] == "time 10.00% since boot"
    assert rows["emulated"] == "no"
    assert rows["now"] == "the hypervisor took 10.0% of the CPU time"
    advised = [line[3:30] for line in text.splitlines() if line[:1].isdigit()]
    assert advised == ["The control group grants 1.", "The hypervisor takes 10.0% ", "Transparent huge pages are "]


def test_a_moment_of_watching_sees_a_program_that_runs_beside() -> None:
    """And nothing of itself. The neighbour shares one CPU with the watcher, so each has about half."""
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nprint(flush=True)\nwhile True: pass"
    allowed = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as neighbour:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        os.sched_setaffinity(0, {min(allowed)})
        try:
            found = machine_command.watch(1.0)
        finally:
            os.sched_setaffinity(0, allowed)
            neighbour.kill()
    assert any("other programs used" in text for text in found), found


def test_watching_does_not_fill_the_memory_of_a_small_container(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(machine_command, "_peak", lambda: lambda kind, **_: asked.append(kind) or 1.0)
    monkeypatch.setattr(machine, "memory", lambda: {"available": 1 << 30})
    assert any("bandwidth was not watched" in text for text in machine_command.watch(0.05))
    assert set(asked) == {"bf16"}
    monkeypatch.setattr(machine, "memory", lambda: {"available": 8 << 30})
    assert not any("bandwidth was not watched" in text for text in machine_command.watch(0.05))
    assert set(asked) == {"bf16", "read"}


# ---- contract -------------------------------------------------------------------------------------------------------


def test_expect_compares_names_loosely_and_features_exactly(tmp_path: Path) -> None:
    facts: Any = machine.gather()
    facts["cpu"].update(name="Arm Neoverse-N2 r0p0", part="MIDR 0x410fd490", vendor="Arm", features=["asimd", "bf16"])
    assert expect.unmet(expect.parse("cpu=neoverse-n2,features=bf16+asimd"), facts) == []
    assert expect.unmet(expect.parse("cpu=neoverse-n1"), facts) == [
        "cpu=neoverse-n1: this is Arm Neoverse-N2 r0p0 (MIDR 0x410fd490)"
    ]
    assert len(expect.unmet(expect.parse("features=bf16+sve,arch=riscv64"), facts)) == 2
    assert expect.unmet(expect.parse("features=bf1"), facts) != []


@pytest.mark.parametrize("text", ["cpu", "cpu=", "colour=red", ""])
def test_a_contract_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        expect.parse(text)


# ---- conditions -----------------------------------------------------------------------------------------------------


def stat(user: int, idle: int, steal: int) -> str:
    return f"cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\n"


def test_other_programs_and_stolen_time_are_seen(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/stat": stat(1000, 1000, 0)})
    monitor = Monitor(root)
    monitor.start()
    write(root, {"proc/stat": stat(1050, 1030, 20)})
    words = monitor.stop().words()
    assert words == ["the hypervisor took 20.0% of the CPU time", "other programs used 50% of the CPU time"]


def test_the_time_of_workers_is_no_disturbance(tmp_path: Path) -> None:
    own = "7 (python (x)) S " + " ".join(["0"] * 10) + " {} 0 0 0 " + " ".join(["0"] * 20)
    root = write(tmp_path, {"proc/stat": stat(1000, 1000, 0), "proc/7/stat": own.format(100)})
    monitor = Monitor(root, pids={7})
    monitor.start()
    write(root, {"proc/stat": stat(1050, 1050, 0), "proc/7/stat": own.format(148)})
    assert monitor.stop().words() == []


def test_only_the_cpus_of_the_run_count(tmp_path: Path) -> None:
    """64 CPUs, two of them ours, and on those another program all the time: 3 % of the machine, 100 % of ours."""

    def busy(ticks: int) -> str:
        lines = [stat(ticks, 6400 - ticks, 0)] + [
            f"cpu{n} {ticks // 2 if n < 2 else 0} 0 0 {50 if n < 2 else 100} 0 0 0 0 0 0\n" for n in range(64)
        ]
        return "".join(lines)

    root = write(tmp_path, {"proc/stat": busy(0)})
    ours, whole = Monitor(root, [0, 1]), Monitor(root)
    ours.start()
    whole.start()
    write(root, {"proc/stat": busy(200)})
    assert ours.stop().words() == ["other programs used 100% of the CPU time"]
    assert whole.stop().words() == []


@pytest.mark.parametrize(
    ("group", "folder"), [("0::/job\n", "sys/fs/cgroup/job"), ("4:cpu,cpuacct:/job\n", "sys/fs/cgroup/cpu/job")]
)
def test_pauses_by_the_limit_of_a_container_are_seen(tmp_path: Path, group: str, folder: str) -> None:
    def counted(times: int) -> str:
        return f"nr_periods 100\nnr_throttled {times}\nthrottled_usec 5\n"

    root = write(tmp_path, {"proc/stat": stat(0, 0, 0), "proc/self/cgroup": group, f"{folder}/cpu.stat": counted(3)})
    monitor = Monitor(root)
    monitor.start()
    write(root, {"proc/stat": stat(0, 100, 0), f"{folder}/cpu.stat": counted(10)})
    assert monitor.stop().words() == ["the control group's CPU limit stopped the run 7 times"]


def test_disturbances_add_up() -> None:
    quiet, loud = Disturbance(total=900, stolen=0, others=0), Disturbance(total=100, stolen=50, others=0, throttles=2)
    assert quiet.words() == []
    assert (quiet + loud).words() == [
        "the hypervisor took 5.0% of the CPU time",
        "the CPU throttled 2 times because of heat",
    ]


def test_drift_of_the_probes() -> None:
    assert drift([100.0] * 20, [50.0, 51.0] * 10) == []
    assert any("compute rate" in text for text in drift([100.0] * 10 + [80.0] * 10, [50.0] * 20))
    assert any("bandwidth" in text for text in drift([100.0] * 20, [55.0] * 10 + [30.0] * 10))
    assert drift([None] * 10, [1.0, 2.0]) == []


def test_advice_puts_what_matters_most_first() -> None:
    facts: Any = machine.gather()
    facts["cgroup"]["cpu_limit"], facts["load"], facts["memory"]["thp"] = 0.5, [9.0, 9.0, 9.0], "never"
    facts["emulated"] = True
    found = advice(facts)
    order = [
        next(i for i, t in enumerate(found) if word in t)
        for word in ("emulated", "control group", "load 9.0", "huge pages")
    ]
    assert order == sorted(order)
