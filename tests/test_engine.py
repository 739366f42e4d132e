"""The measurement engine on a small layer: rounds, checks of timed outputs, and everything that goes wrong."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends_for_tests
from moelab import results, worker_process
from moelab.backends.moelab_backend import Moelab
from moelab.cpus import bound_cpus
from moelab.measurement import CaseRun, Missing
from moelab.plan import Plan
from moelab.progress import Progress
from moelab.run import Run
from moelab.worker_process import WorkerDiedError, WorkerError, WorkerProcess
from moelab.workloads import layer_by_name

FILE = Path(__file__).with_name("backends_for_tests.py")
HONEST = f"{FILE}:Honest"


def measure(*names: str, **changes: Any) -> tuple[list[CaseRun], list[Missing]]:
    """A short run on the tiny layer; the first backend is the baseline."""
    backends = tuple(f"{FILE}:{name}" for name in names)
    options: dict[str, Any] = {
        "workloads": ("tiny",), "tokens": (3,), "backends": backends, "baseline": backends[0], "threads": 1,
        "processes": 2, "budget": 0.0, "fewest_rounds": 3, "most_rounds": 3, "probe_seconds": 0.0,
        "warm_up_seconds": 0.0, "cache": "warm", **changes,
    }  # fmt: skip
    with Path(os.devnull).open("w") as quiet:
        return Run(Plan(**options), Progress(quiet)).measure(options["workloads"][0])


@pytest.fixture(scope="module")
def honest() -> CaseRun:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moelab.machine.last_level_bytes", lambda: 32 << 20)  # evicting 300 MiB takes the test's time
        cases, missing = measure("Honest", "Slower", cache="cold")
    assert missing == []
    return cases[0]


def test_every_backend_has_a_sample_in_every_round(honest: CaseRun) -> None:
    assert set(honest.backends) == {"Honest", "Slower", "Honest#2"}
    for backend in honest.backends.values():
        assert [(s.process, s.round) for s in backend.samples] == [(p, r) for p in range(2) for r in range(3)]
        assert all(s.seconds > 0 for s in backend.samples)


def test_order_within_a_round_is_shuffled_and_complete(honest: CaseRun) -> None:
    orders = set()
    for process in range(2):
        for round_ in range(3):
            places = {
                label: s.position
                for label, b in honest.backends.items()
                for s in b.samples
                if (s.process, s.round) == (process, round_)
            }
            assert sorted(places.values()) == [0, 1, 2]
            orders.add(tuple(sorted(places, key=lambda label: places[label])))
    assert len(orders) > 1


def test_no_input_set_is_timed_twice_and_all_backends_get_the_same(honest: CaseRun) -> None:
    used = [[s.input for s in b.samples] for b in honest.backends.values()]
    assert used[0] == used[1] == used[2]
    assert len(set(used[0])) == len(used[0])
    assert 0 not in used[0]


def test_all_timed_outputs_were_checked(honest: CaseRun) -> None:
    for backend in honest.backends.values():
        assert backend.failure is None
        assert backend.samples_checked == len(backend.samples) == 6
        assert backend.after.rows == 6 * 3
        assert backend.after.worst is not None
        assert 0 < backend.after.worst <= 1
        assert backend.before.rows == 3


def test_without_time_peers_are_in_fewer_rounds_beside_everybody_else() -> None:
    """Ours, its control and the baseline are in all three rounds of each process, the peer in one, on their inputs."""
    given: dict[str, Any] = {"backends": ("moelab", HONEST, f"{FILE}:Slower"), "baseline": HONEST, "first_input": 1000}
    (case,), missing = measure("Honest", **given)
    assert missing == []
    assert {label: len(b.samples) for label, b in case.backends.items()} == {
        "moelab": 6, "Honest": 6, "Slower": 2, "moelab#2": 6
    }  # fmt: skip
    of = {label: {(s.process, s.round): s for s in b.samples} for label, b in case.backends.items()}
    for place, sample in of["Slower"].items():
        beside = [samples[place] for samples in of.values()]
        assert {s.input for s in beside} == {sample.input}
        assert sorted(s.position for s in beside) == [0, 1, 2, 3]
    assert min(sample.input for sample in case.backends["moelab"].samples) == 1000, "as a run that is repeated asks for"
    assert case.backends["Slower"].samples_checked == 2
    (cell,) = results.analyse([case])
    assert cell.ratios["Slower"].pairs == 2
    assert cell.ratios["Slower"].processes == 2


def test_packing_and_the_first_call_are_measured_in_every_process(honest: CaseRun) -> None:
    for backend in honest.backends.values():
        for seconds in (backend.packing_seconds, backend.first_call_seconds):
            assert len(seconds) == 2
            assert min(seconds) > 0
        assert len(backend.packing_extra_bytes) == 2
        assert min(backend.packing_extra_bytes) >= 0


def test_twelve_times_the_work_takes_longer(honest: CaseRun) -> None:
    """The least of six samples: other programs on the machine only add time."""
    least = {label: min(s.seconds for s in b.samples) for label, b in honest.backends.items()}
    assert least["Slower"] > 1.5 * least["Honest"]


def test_short_warm_calls_share_a_sample() -> None:
    cases, _ = measure("Honest", tokens=(1,), warm_up_seconds=0.5)
    samples = cases[0].backends["Honest"].samples
    assert all(s.calls > 1 for s in samples)
    starts = sorted(s.input for s in samples)
    assert all(b - a >= samples[0].calls for a, b in itertools.pairwise(starts))


@pytest.mark.parametrize("cheat", [c.name for c in backends_for_tests.CHEATS])
def test_cheats_are_caught(cheat: str) -> None:
    cases, missing = measure("Honest", cheat)
    assert cases[0].backends[cheat].failure, f"{cheat} passed"
    assert (cheat, "failed") in [(m.backend, m.kind) for m in missing]
    cells = results.analyse(cases)
    assert cheat not in cells[0].ratios


def test_honest_backends_survive_beside_cheats() -> None:
    """Those in a process of their own mistakes stay right; the run goes on."""
    cases, _ = measure("Honest", "SkipsExperts")
    assert cases[0].backends["Honest"].failure is None
    assert len(cases[0].backends["Honest"].samples) == 6


def test_a_cache_on_contents_never_gets_a_hit_while_the_clock_runs() -> None:
    """Nothing to catch: no timed input comes twice, so it has to do the work. Only the control shares its cache."""
    cases, missing = measure("Honest", "CacheOnContents")
    assert missing == []
    own, honest = (cases[0].backends[name] for name in ("CacheOnContents", "Honest"))
    ratio = np.median([s.seconds for s in own.samples]) / np.median([s.seconds for s in honest.samples])
    assert ratio > 0.5


def test_replacing_the_clock_has_no_effect() -> None:
    cases, _ = measure("Honest", "StopsTheClock")
    samples = cases[0].backends["StopsTheClock"].samples
    assert samples
    assert min(s.seconds for s in samples) > 1e-6


def test_a_profiled_call_is_split_into_its_phases() -> None:
    """Only of backends that can tell, and only when asked for; the phases never exceed the sample they are part of."""
    given: dict[str, Any] = {"backends": ("moelab", HONEST), "baseline": HONEST, "processes": 1}
    (plain,), _ = measure("Honest", **given)
    (case,), _ = measure("Honest", **given, profile=True)
    assert all(sample.phases is None for b in plain.backends.values() for sample in b.samples)
    assert all(sample.phases is None for sample in case.backends["Honest"].samples)
    for sample in case.backends["moelab"].samples:
        assert sample.phases is not None
        assert list(sample.phases) == ["route", "pack", "gemm1", "gemm2", "combine", "wait"]
        assert 0 < sum(sample.phases.values()) < sample.seconds * sample.calls
    (cell,) = results.analyse([case])
    assert results.entry_info(cell, "Honest")["phases"] is None
    phases = results.entry_info(cell, "moelab")["phases"]
    assert isinstance(phases, dict)
    assert phases["gemm1"] == np.median([s.phases["gemm1"] for s in case.backends["moelab"].samples if s.phases])


def test_kernels_from_before_the_profile_can_still_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ab` builds a base of any age, and only the kernels are the old ones."""
    monkeypatch.delattr("moelab_kernels.last_profile")
    assert Moelab().phases() is None


def test_an_exception_is_reported_in_its_own_words() -> None:
    cases, missing = measure("Honest", "Raises")
    assert [(m.backend, m.kind) for m in missing] == [("Raises", "failed")]
    assert "out of luck" in missing[0].reason
    assert cases[0].backends["Honest"].failure is None


def test_a_crash_costs_only_the_backend_that_crashed() -> None:
    cases, missing = measure("Honest", "Crashes")
    assert [(m.backend, m.kind) for m in missing] == [("Crashes", "failed")]
    assert "SIGSEGV" in missing[0].reason
    rounds = [(s.process, s.round) for s in cases[0].backends["Honest"].samples]
    assert len(set(rounds)) == len(rounds) == 6


def test_what_cannot_run_says_why() -> None:
    cases, missing = measure("Honest", "NotHere", "NotThis", tokens=(3, 9))
    said = {(m.backend, m.case, m.kind, m.reason) for m in missing}
    assert ("NotHere", None, "unavailable", "its library is not installed") in said
    assert ("NotThis", "tiny/t9/uniform/1T", "unsuited", "too many tokens") in said
    assert "NotHere" not in cases[0].backends
    assert "NotThis" in cases[0].backends
    assert "NotThis" not in cases[1].backends


def test_an_output_of_the_wrong_shape_fails() -> None:
    _, missing = measure("Honest", "WrongShape")
    assert "must have 3 x 128" in missing[0].reason


def test_a_workload_that_does_not_fit_is_skipped_with_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moelab.run.available", lambda: 1 << 28)
    cases, missing = measure("Honest")
    assert cases == []
    assert missing[0].kind == "skipped"
    assert missing[0].bytes_needed is not None
    assert "GiB" in missing[0].reason


def test_where_memory_is_short_one_process_probes_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the control shares a copy; what is left out is what the times need least."""
    backends = (f"{FILE}:Honest", f"{FILE}:Slower")
    plan = Plan(workloads=("gpt-oss-20b",), backends=backends, baseline=backends[0], threads=1)
    layer = layer_by_name("gpt-oss-20b")
    copies, gib = 4 * layer.weight_bytes, 1 << 30  # the weights themselves, two backends, the control
    evict, others = 2 * (32 << 20), 3 * (gib >> 1) + gib

    def fit(free: int) -> tuple[bool, str] | None:
        monkeypatch.setattr("moelab.run.available", lambda: free)
        return Run(plan, Progress(sys.stderr))._fit(layer, 32 << 20)[0]

    assert fit(copies + evict + others + 3 * gib) == (True, "all")
    assert fit(copies + evict + others + 3 * gib - 1) == (True, "one")
    assert fit(copies + evict + others + gib - 1) == (False, "one")
    assert fit(3 * layer.weight_bytes) is None


def test_probes_of_one_process_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moelab.machine.last_level_bytes", lambda: 32 << 20)
    monkeypatch.setattr(Run, "_fit", lambda *_: ((False, "one"), 0))
    (case,), missing = measure("Honest", "Slower", cache="cold", probe_seconds=1e-3)
    assert missing == []
    assert "in one process a round" in case.setting.eviction
    assert all(backend.probe_isa not in (None, "unknown") for backend in case.backends.values())
    rates = {label: [s.probe_read for s in backend.samples] for label, backend in case.backends.items()}
    assert len({*rates["Honest"], *rates["Honest#2"]}) == 12, "the control lives in the process that probes"
    for found, *taken in zip(rates["Slower"], rates["Honest"], rates["Honest#2"], strict=True):
        assert found in taken


def test_nothing_is_timed_under_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOELAB_EMULATED", "1")
    with pytest.raises(RuntimeError, match="emulated"):
        measure("Honest")


def test_an_idle_peer_is_stopped_while_others_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spins lives in a process of its own whose threads never rest; Watches looks at it while it is timed itself."""
    monkeypatch.setattr("moelab.team.python_of", lambda environment: [sys.executable])
    monkeypatch.setenv("MOELAB_TEST_FOLDER", str(tmp_path))
    cases, missing = measure("Honest", "Watches", "Spins", tokens=(1,))
    assert missing == []
    seen = (tmp_path / "states").read_text().split()
    assert len(seen) >= 6
    assert set(seen) == {"T"}, "the peer was running while another backend was timed"
    assert len(cases[0].backends["Spins"].samples) == 6


def test_an_idle_peer_that_spins_moves_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread wants the only CPU all the time. Stopped, it leaves the A/A control at 1 and no trace in the times;
    left running, it takes a good part of every call, which is longer than a time slice. Where others load the machine
    both drown in noise, so there are three tries."""
    monkeypatch.setattr("moelab.team.python_of", lambda environment: [sys.executable])
    monkeypatch.setenv("MOELAB_TEST_FOLDER", str(tmp_path))
    # A peer that runs also gets between the two clocks that tell cheats (tests/test_cheats.py); here times count.
    monkeypatch.setattr("moelab.finishing.misconduct", lambda *_: None)

    def run() -> tuple[float, float]:
        """Median seconds of the first backend; its A/A ratio."""
        (case,), missing = measure("Honest", "Spins", tokens=(1024,), processes=1, fewest_rounds=6, most_rounds=6)
        assert missing == []
        (cell,) = results.analyse([case])
        assert cell.control is not None
        return float(np.median([s.seconds for s in case.backends["Honest"].samples])), cell.control.value

    tries = []
    for _ in range(3):
        stopped, control = run()
        with monkeypatch.context() as changed:
            changed.setattr(WorkerProcess, "pause", lambda self: None)
            running, _ = run()
        tries.append((running / stopped, control))
        if running > 1.3 * stopped and 0.75 < control < 1.33:
            return
    pytest.fail(f"time with the peer running over stopped, A/A ratio: {tries}")


def test_another_program_on_the_same_cpu_is_written_into_the_result() -> None:
    cpu = bound_cpus(1)[0]
    program = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as neighbour:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        try:
            (case,), _ = measure("Honest", tokens=(256,), processes=1, fewest_rounds=15, most_rounds=15)
        finally:
            neighbour.kill()
    assert any("other programs used" in text for text in case.conditions), case.conditions
    (cell,) = results.analyse([case])
    assert results.cell_json(cell)["conditions"] == case.conditions


# ---- worker processes -----------------------------------------------------------------------------------------------


@pytest.fixture
def worker(tmp_path: Path) -> Any:
    process = WorkerProcess(
        [sys.executable], threads=1, cpus=sorted(os.sched_getaffinity(0))[:1], settings={}, log=tmp_path / "log"
    )
    yield process
    process.close()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_paused_worker_is_stopped_and_answers_again(worker: WorkerProcess) -> None:
    worker.ask("hello", evict=None)
    worker.pause()
    deadline = time.monotonic() + 5
    while state_of(worker.pid) != "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state_of(worker.pid) == "T"
    assert "environment" in worker.ask("hello", evict=None)


def test_a_worker_that_dies_or_hangs_is_noticed(worker: WorkerProcess) -> None:
    worker.ask("hello", evict=None)
    with pytest.raises(WorkerError, match="AttributeError"):
        worker.ask("dance")
    worker.timeout = 0.2
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerDiedError, match="no answer"):
        worker.ask("hello", evict=None)
    with pytest.raises(WorkerDiedError):
        worker.ask("hello", evict=None)


def test_where_memory_runs_out_the_worker_that_runs_is_ended_and_named(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = Path(f"/proc/{worker.pid}/oom_score_adj")
    assert score.read_text().strip() == "1000"
    worker.pause()
    assert score.read_text() == Path("/proc/self/oom_score_adj").read_text()
    worker.resume()
    assert score.read_text().strip() == "1000"
    ended = worker_process._kills_for_memory()
    monkeypatch.setattr("moelab.worker_process._kills_for_memory", lambda: ended + 1)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="memory ran out"):
        worker.ask("close")


def test_a_worker_keeps_to_its_cpus(worker: WorkerProcess) -> None:
    allowed = sorted(os.sched_getaffinity(0))[:1]
    assert worker.ask("hello", evict=None)["environment"]["affinity"] == allowed
