"""Dealing out a budget: everybody in every round where it lasts, and slow peers in fewer where it does not."""

from __future__ import annotations

import numpy as np
import pytest

from moelab.plan import Plan
from moelab.schedule import Schedule
from moelab.workloads import LAYERS, Case

CORE = ("moelab", "moelab#2", "torch_loop")
PEERS = {"quick_peer": 0.2, "slow_peer": 2.0}
CASES = [Case(LAYERS["tiny"], tokens) for tokens in (1, 16, 256)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def dealt(clock: list[float], seconds: float, *, processes: int = 3, fewest: int = 3) -> tuple[Schedule, float]:
    """A schedule with so many seconds for all processes after the first set-up, each set-up taking 10 s."""
    plan = Plan(processes=processes, fewest_rounds=fewest)
    schedule = Schedule(plan, CORE)
    schedule.begin(clock[0] + seconds + 10 * (processes - 1), oracle_seconds=0.0)
    for case in CASES:
        for label, wall in {**dict.fromkeys(CORE, 0.5), **PEERS}.items():
            schedule.estimate(case, label, wall * case.tokens / 16, 0.9 * wall)
    return schedule, schedule.verified(0, 10.0, CASES)


def spent(schedule: Schedule) -> float:
    """Seconds of one process as dealt."""
    rng = np.random.default_rng(0)
    total = 0.0
    for case in CASES:
        for label, rounds in schedule.turns(case, [*CORE, *PEERS], rng).items():
            total += len(rounds) * ({**dict.fromkeys(CORE, 0.5), **PEERS}[label]) * case.tokens / 16
    return total


def test_with_time_enough_everybody_is_in_every_round(clock: list[float]) -> None:
    schedule, late = dealt(clock, 3000.0)
    assert late == 0.0
    assert schedule.thinned() == {}
    for case in CASES:
        turns = schedule.turns(case, [*CORE, *PEERS], np.random.default_rng(0))
        assert schedule.rounds(case) > 3
        assert all(rounds == set(range(schedule.rounds(case))) for rounds in turns.values())
    assert schedule.rounds(CASES[0]) > schedule.rounds(CASES[2])


@pytest.mark.parametrize("seconds", [350.0, 400.0, 500.0])
def test_slow_peers_are_thinned_so_that_the_budget_is_kept(clock: list[float], seconds: float) -> None:
    """All in three rounds would take 3 * 3 * (3 * 0.5 + 2.2) * 17.06 s = 568 s, one of each peer 343 s."""
    schedule, late = dealt(clock, seconds)
    assert late == 0.0
    assert spent(schedule) * 3 <= seconds
    core, quick, slow = (
        sum(len(schedule.turns(case, [label], np.random.default_rng(0))[label]) for case in CASES)
        for label in ("moelab", "quick_peer", "slow_peer")
    )
    assert core == 9
    assert slow <= quick <= core
    assert slow < core


def test_time_that_is_left_is_used(clock: list[float]) -> None:
    """What is thinned comes within one sample of the dearest seat of the budget."""
    schedule, _ = dealt(clock, 450.0)
    assert 450.0 / 3 - spent(schedule) < 2.0 * 256 / 16


def test_the_core_and_one_round_of_each_peer_are_done_and_announced_however_short_the_time(clock: list[float]) -> None:
    schedule, late = dealt(clock, 60.0)
    for case in CASES:
        turns = schedule.turns(case, [*CORE, *PEERS], np.random.default_rng(0))
        assert {label: len(rounds) for label, rounds in turns.items()} == {
            **dict.fromkeys(CORE, 3),
            **dict.fromkeys(PEERS, 1),
        }
    assert late == pytest.approx(3 * spent(schedule) - 60.0)
    assert schedule.thinned() == dict.fromkeys(PEERS, (3, 9))


def test_which_round_a_peer_is_in_is_drawn_anew_in_each_process(clock: list[float]) -> None:
    """Always the first would always be the one right after packing."""
    schedule, _ = dealt(clock, 60.0)
    rng = np.random.default_rng(0)
    drawn = {min(schedule.turns(CASES[0], ["slow_peer"], rng)["slow_peer"]) for _ in range(20)}
    assert drawn == {0, 1, 2}


def test_who_is_out_leaves_its_time_to_the_others(clock: list[float]) -> None:
    plan = Plan(processes=1)
    schedule = Schedule(plan, CORE)
    schedule.begin(clock[0] + 100.0, oracle_seconds=0.0)
    for label, wall in {**dict.fromkeys(CORE, 0.5), **PEERS}.items():
        schedule.estimate(CASES[0], label, wall, wall)
    schedule.forget("slow_peer")
    schedule.verified(0, 0.0, CASES[:1])
    assert schedule.rounds(CASES[0]) == plan.most_rounds
