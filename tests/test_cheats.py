"""No backend of tests/cheats.py looks faster than it is, or right where it is wrong (see harness/README.md).

The cheats run together where they can, as in one run of a user: the engine gives each a process of its own. They are
never imported here: that is part of what is tested.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moelab import bf16, conduct, guard, inputs_on_file, results
from moelab.backend_loading import described
from moelab.cpus import bound_cpus
from moelab.disagreement import disputed_row
from moelab.measurement import BackendRun, CaseRun, Missing, Sample, Setting, Spent
from moelab.plan import Plan
from moelab.progress import Progress
from moelab.run import Run
from moelab.weights import materialise
from moelab.worker import Worker
from moelab.workloads import Case, Inputs, layer_by_name, make_inputs

TESTS = Path(__file__).parent
HONEST = f"{TESTS / 'backends_for_tests.py'}:Honest"
# Some ten milliseconds a call in numpy: what is hidden of it can be told from noise.
WORKLOAD, TOKENS = "qwen3-30b-a3b/E8/H512/I256", 128

CAUGHT = {
    "WorksInBind": "before the clock ran",
    "WorksInPhases": "after the clock had stopped",
    "WorksWhenRead": "after the clock had stopped",
    "WorksPartlyInResult": "after the clock had stopped",
    "SkipsRows": "output is wrong|before timing: output",
    "EveryThirdTime": "output is wrong",
    "AnswersNaN": "is nan",
    "DropsSmallWeights": "output",
    "EightBits": "output",
    "EightBitsAndLoose": "output",
    "SlowsTheClock": "the clock of the engine",
    "ReportsATenth": "the clock of the engine",
    "JudgesItself": "output",
    "LeavesAProcess": "a process that it started is alive",
    "TakesAllCpus": "which was not granted",
}
HARMLESS = ("PredictsInputs", "TakesTheOthersAnswer", "RemembersRouting", "SlowsNeighbours", "SetsTheEnvironment")


def measure(*cheats: str, **changes: Any) -> tuple[dict[str, BackendRun], list[Missing], list[CaseRun]]:
    """A short run of cheats beside an honest baseline."""
    options: dict[str, Any] = {
        "workloads": (WORKLOAD,), "tokens": (TOKENS,), "threads": 1, "processes": 1, "budget": 0.0,
        "backends": (HONEST, *(f"{TESTS / 'cheats.py'}:{name}" for name in cheats)), "baseline": HONEST,
        "fewest_rounds": 3, "most_rounds": 3, "probe_seconds": 0.0, "warm_up_seconds": 0.0, "cache": "cold", **changes,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open("w") as quiet:
        patch.setattr("moelab.machine.last_level_bytes", lambda: 32 << 20)
        cases, missing = Run(Plan(**options), Progress(quiet)).measure(options["workloads"][0])
    return cases[0].backends, missing, cases


@pytest.fixture(scope="module", autouse=True)
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the cheats write down; their file needs its neighbour."""
    folder = tmp_path_factory.mktemp("cheats")
    (folder / "notes").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOELAB_TEST_FOLDER", str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]))
        yield folder / "notes"


@pytest.fixture(scope="module")
def together(notes: Path) -> tuple[dict[str, BackendRun], list[Missing], list[CaseRun]]:
    names = [name for name in CAUGHT if name != "TakesAllCpus" or (os.cpu_count() or 1) > 1]
    return measure("MindsTheEnvironment", *names, *HARMLESS)


@pytest.mark.parametrize("name", CAUGHT)
def test_a_cheat_is_caught(name: str, together: tuple[dict[str, BackendRun], list[Missing], list[CaseRun]]) -> None:
    backends, missing, cases = together
    if name == "TakesAllCpus" and name not in backends:
        pytest.skip("this machine has one CPU")
    assert re.search(CAUGHT[name], backends[name].failure or ""), f"{name}: {backends[name].failure}"
    assert (name, "failed") in [(m.backend, m.kind) for m in missing]
    assert name not in results.analyse(cases)[0].ratios


@pytest.mark.parametrize("name", HARMLESS)
def test_a_cheat_gains_nothing(
    name: str, together: tuple[dict[str, BackendRun], list[Missing], list[CaseRun]], notes: Path
) -> None:
    """It may run, since there is nothing to find fault with: what it hopes for never happens."""
    hoped = name if name != "SetsTheEnvironment" else "MindsTheEnvironment"
    assert hoped not in notes.read_text()
    assert len(together[0][name].samples) == 3


def test_the_honest_come_through_it(together: tuple[dict[str, BackendRun], list[Missing], list[CaseRun]]) -> None:
    for name in ("Honest", "Honest#2", "MindsTheEnvironment"):
        assert together[0][name].failure is None, name
        assert len(together[0][name].samples) == 3


def test_code_from_a_file_is_not_loaded_where_it_is_judged(together: object) -> None:
    assert not [name for name in sys.modules if name == "cheats" or name.startswith("moelab_backend_cheats")]


def test_one_buffer_for_all_calls_is_caught() -> None:
    backends, _, _ = measure("OneBuffer", workloads=("tiny",), tokens=(1,), cache="warm", warm_up_seconds=0.3)
    assert "output is wrong" in (backends["OneBuffer"].failure or "")


def test_what_is_remembered_of_the_untimed_call_is_of_no_use(notes: Path) -> None:
    """It uses the same experts, so that they are as warm; not the same ids.

    Six tokens: one token of this layer has 56 ways to choose two of eight experts, and meets one again by chance.
    """
    measure("RemembersRouting", "CacheOnSomeContents", workloads=("tiny",), tokens=(6,), cache="warm")
    assert "RemembersRouting" not in notes.read_text()
    assert "CacheOnSomeContents" not in notes.read_text()


def test_an_answer_that_is_not_the_workers_is_caught() -> None:
    backends, _, _ = measure("AnswersForTheWorker", workloads=("tiny",), tokens=(3,))
    assert "pipe of its answers" in (backends["AnswersForTheWorker"].failure or "")
    assert backends["Honest"].failure is None


def test_weights_changed_in_their_file_leave_no_result() -> None:
    backends, _, cases = measure("EmptiesTheWeights", workloads=("tiny",), tokens=(3,))
    assert "file of the weights was changed" in (backends["Honest"].failure or "")
    assert backends["EmptiesTheWeights"].failure is not None
    assert results.analyse(cases)[0].ratios == {}


def test_a_neighbour_whose_priority_was_lowered_has_no_result() -> None:
    backends, _, cases = measure("LowersPriorities", workloads=("tiny",), tokens=(3,))
    assert "priority of its process was changed" in (backends["Honest"].failure or "")
    assert results.analyse(cases)[0].ratios == {}


# ---- the parts ------------------------------------------------------------------------------------------------------


class Recorder:
    """A backend that writes down the order of events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        self.events.append("bind")

        def call() -> object:
            self.events.append("call")
            return inputs.x

        return call

    def result(self, out: object) -> object:
        self.events.append("result")
        return out

    def phases(self) -> None:
        return None

    def evict(self) -> None:
        self.events.append("evict")

    def peak(self, kind: str, **_: object) -> float:
        self.events.append(kind)
        return 1.0


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
def test_a_backend_gets_its_inputs_last_of_all(cold: bool, tmp_path: Path) -> None:
    layer = layer_by_name("tiny")
    case = Case(layer, 3)
    worker, recorder = Worker(1), Recorder()
    worker.open(str(materialise(layer, 0, tmp_path)), "tiny")
    worker.backends["it"] = recorder  # type: ignore[assignment]
    worker.evictor, worker.peak = recorder, recorder.peak  # type: ignore[assignment]
    files = inputs_on_file.write(case, 5, 1, tmp_path, untimed=True)
    worker.sample("it", 3, list(files.paths), str(tmp_path / "output"), files.untimed, cold, 0.01)
    before = ["call", "evict", "bf16", "read"] if cold else ["bf16", "read", "call"]
    assert recorder.events == ["bind", *before, "bind", "call", "result"]


def test_the_untimed_set_has_the_same_experts_in_another_order(tmp_path: Path) -> None:
    case = Case(layer_by_name("tiny"), 5)
    files = inputs_on_file.write(case, 9, 1, tmp_path, untimed=True)
    assert files.untimed is not None
    from moelab.exchange import read_inputs

    timed, untimed = (read_inputs(Path(p), 5, 128, 2) for p in (files.paths[0], files.untimed))
    assert not np.array_equal(timed.topk_ids, untimed.topk_ids)
    assert np.array_equal(np.bincount(timed.topk_ids.ravel()), np.bincount(untimed.topk_ids.ravel()))
    assert not np.array_equal(timed.x, untimed.x)


def test_runs_with_the_same_seed_use_other_inputs_and_say_which() -> None:
    firsts = []
    for _ in range(2):
        backends, _, cases = measure(workloads=("tiny",), tokens=(1,), fewest_rounds=2)
        firsts.append(backends["Honest"].samples[0].input)
    assert firsts[0] != firsts[1]
    assert len(make_inputs(cases[0].case, firsts[0]).x) == 1


def test_the_row_on_which_outputs_differ_is_found() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((200, 64))
    first, other = bf16.to_bits(exact), (exact * (1 + 2e-3 * rng.standard_normal(exact.shape))).astype(np.float32)
    assert disputed_row([first]) is None
    assert disputed_row([first, other]) is None
    for wrong in (0.0, np.nan, exact[3]):
        changed = other.copy()
        changed[171] = wrong
        assert disputed_row([first, other, changed]) == 171
    nothing = np.zeros((4, 8), np.uint16)
    assert disputed_row([nothing, nothing]) is None


def a_run(seconds: float, **spent: float) -> BackendRun:
    usual = {"bind": 1e-5, "result": 1e-5, "cpu": seconds, "unexplained": 2e-4, **spent}
    sample = Sample(0, 0, 0, 1, 1, seconds, 1.0, 1.0, 1.0, None, None)
    return BackendRun("it", "it", "candidate", samples=[sample] * 8, spent=[Spent(**usual)] * 8)


def judged(run: BackendRun, others: float = 2e-4, threads: int = 1, emulated: bool = False) -> str | None:
    setting = Setting(threads, [0], "", "cold", "", emulated, 0)
    case = Case(layer_by_name(WORKLOAD), 16)
    neighbour = a_run(0.01, bind=others, result=others, unexplained=others)
    return conduct.misconduct(run, [neighbour], case, setting)


def test_more_cpus_than_granted_are_noticed() -> None:
    assert judged(a_run(0.02, cpu=0.02)) is None
    assert "used 1.60 CPUs on average, 1 was granted" in (judged(a_run(0.02, cpu=0.032)) or "")
    assert judged(a_run(0.02, cpu=0.038), threads=2) is None
    assert "2 were granted" in (judged(a_run(0.05, cpu=0.2), threads=2) or "")


def test_what_the_clock_missed_is_judged_by_what_it_saw() -> None:
    for name in ("bind", "result"):
        assert judged(a_run(0.01, **{name: 1e-4})) is None
        assert judged(a_run(0.01, **{name: 3e-3})) is not None
        assert judged(a_run(1.0, **{name: 3e-3})) is None, "less than the margin of a verdict"
        assert judged(a_run(0.01, **{name: 3e-3}), emulated=True) is None


def test_what_takes_all_of_them_long_is_no_fault() -> None:
    for name in ("bind", "result", "unexplained"):
        assert judged(a_run(0.01, **{name: 6e-3})) is not None
        assert judged(a_run(0.01, **{name: 6e-3}), others=8e-3) is None
        assert judged(a_run(0.01, **{name: 5e-2}), others=4e-2) is not None


@pytest.mark.parametrize(("many", "few"), [(4, 0), (8, 0), (40, 10)])
def test_half_of_the_samples_disturbed_is_no_misconduct(many: int, few: int) -> None:
    """Nor is hiding the work in most of them enough."""
    for share, caught in ((many - many // 2, False), (many - few, True)):
        run = a_run(0.01)
        long = replace(run.spent[0], bind=5e-3)
        run.samples, run.spent = run.samples[:1] * many, [long] * share + run.spent[:1] * (many - share)
        assert (judged(run) is not None) == caught, share


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """Starts another one when asked to."""
    code = (
        "import subprocess, sys\n"
        "sys.stdin.readline()\n"
        "started = subprocess.Popen(['sleep', '60'])\n"
        "print(started.pid, flush=True)\n"
        "started.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_a_process_is_seen_to_leave_its_bounds(child: subprocess.Popen[str]) -> None:
    cpus = os.sched_getaffinity(0)
    assert guard.trespass(child.pid, cpus) is None
    assert "not granted" in (guard.trespass(child.pid, []) or "")
    assert child.stdin is not None
    assert child.stdout is not None
    print("go", file=child.stdin, flush=True)
    grandchild = int(child.stdout.readline())
    assert "is alive: sleep" in (guard.trespass(child.pid, cpus) or "")
    guard.end_descendants(child.pid)
    child.wait(10)
    with pytest.raises(ProcessLookupError):
        os.kill(grandchild, 0)


def test_a_lowered_priority_is_seen(child: subprocess.Popen[str]) -> None:
    os.setpriority(os.PRIO_PROCESS, child.pid, 19)
    assert "nice 19" in (guard.trespass(child.pid, os.sched_getaffinity(0)) or "")
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert guard.trespass(child.pid, []) is None, "gone"


def test_waiting_for_a_cpu_is_told_from_work_and_from_rest() -> None:
    """Two programs that never rest share a CPU, and a third one sleeps."""
    cpu = bound_cpus(1)[0]
    busy = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    codes = [busy, busy, "import time; print(flush=True); time.sleep(60)"]
    with ExitStack() as stack:
        commands = [[sys.executable, "-c", code] for code in codes]
        programs = [stack.enter_context(subprocess.Popen(c, stdout=subprocess.PIPE)) for c in commands]
        for program in programs:
            stack.callback(program.kill)
            assert program.stdout is not None
            program.stdout.readline()
        before = [guard.waited(program.pid) for program in programs]
        time.sleep(1)
        first, second, resting = (guard.waited(p.pid) - b for p, b in zip(programs, before, strict=True))
        assert first + second > 0.8, "at any time one of the two waits for the other"
        assert resting < 0.1
    assert guard.waited(programs[0].pid) == 0, "gone"


def test_a_file_that_ends_the_process_that_loads_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    with pytest.raises(ValueError, match="ended the process"):
        described(f"{tmp_path / 'bad.py'}:Any", 1)
    (tmp_path / "worse.py").write_text("1 / 0")
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        described(f"{tmp_path / 'worse.py'}:Any", 1)
