"""How many rounds fit: from a deadline and from what one sample of each backend was seen to cost."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import numpy as np

from moelab.plan import Plan
from moelab.workloads import Case

Seat = tuple[str, str]
"""Case and label."""


class Schedule:
    """Rounds of each case of one workload, and in how many of them each backend takes part.

    With time enough everybody is in every round: half of the time is dealt out evenly by rounds and half evenly by
    cases, so that cheap cases get more rounds than dear ones but not all of them. With too little for the plan's fewest
    rounds, the `core` (ours, its A/A control, the baseline) still gets those, and what is left is dealt to the others,
    the cheapest first: each is in one round at least, with all of the core beside it, so that its ratios stay paired.
    """

    def __init__(self, plan: Plan, core: Collection[str]) -> None:
        self._plan, self._core = plan, set(core)
        self._deadline = 0.0
        self._oracle_seconds = 0.0
        self._wall: dict[Seat, float] = {}
        self._seconds: dict[str, float] = {}
        self._rounds: dict[str, int] = {}
        self._turns: dict[Seat, int] = {}
        self._ends: dict[str, float] = {}
        self._overhead = 0.0

    def begin(self, deadline: float, oracle_seconds: float) -> None:
        """The oracle runs a second time at the end, on more rows."""
        self._deadline, self._oracle_seconds = deadline, oracle_seconds

    def estimate(self, case: Case, label: str, wall: float, seconds: float) -> None:
        """One sample of a backend: `wall` with everything around it, `seconds` the call alone."""
        self._wall[case.id, label] = wall
        self._seconds[case.id] = min(seconds, self._seconds.get(case.id, seconds))

    def forget(self, label: str) -> None:
        """The label is out: the others may have its time."""
        self._wall = {seat: wall for seat, wall in self._wall.items() if seat[1] != label}

    def fastest(self, case: Case) -> float:
        """Seconds of the fastest backend's call."""
        return self._seconds.get(case.id, 1.0)

    def verified(self, process: int, overhead: float, cases: Sequence[Case]) -> float:
        """Called when a process is set up, which took `overhead` seconds: deals out the time that is left.

        Returns the seconds by which the workload will miss its deadline all the same; 0 where it keeps it.
        """
        self._overhead = max(overhead, self._overhead)
        now = time.monotonic()
        later = self._plan.processes - process - 1
        left = self._deadline - now - 1.3 * self._oracle_seconds - later * self._overhead
        share = left / (later + 1)
        if process == 0:
            self._deal(max(0.0, share))
        need = {case.id: self._cost(case.id) for case in cases}
        total = sum(need.values())
        end = now
        for case in cases:
            end += max(0.0, share) * need[case.id] / max(total, 1e-9)
            self._ends[case.id] = end
        return max(0.0, total - share) * (later + 1)

    def _cost(self, case_id: str) -> float:
        """Seconds of all samples of the case in one process, as dealt."""
        return sum(wall * self._turns.get(seat, 0) for seat, wall in self._wall.items() if seat[0] == case_id)

    def _deal(self, share: float) -> None:
        round_of: dict[str, float] = {}
        for (case_id, _), wall in self._wall.items():
            round_of[case_id] = round_of.get(case_id, 0.0) + wall
        everything, fewest = sum(round_of.values()), self._plan.fewest_rounds
        for case_id, cost in round_of.items():
            rounds = int(0.5 * share / everything + 0.5 * share / len(round_of) / cost)
            self._rounds[case_id] = max(fewest, min(self._plan.most_rounds, rounds))
        self._turns = {seat: self._rounds[seat[0]] for seat in self._wall}
        if fewest * everything > share:
            self._rounds = dict.fromkeys(self._rounds, fewest)
            self._deal_short(share)

    def _deal_short(self, share: float) -> None:
        """The core takes part in the fewest rounds, the others in one, and in more while time is left."""
        fewest = self._plan.fewest_rounds
        self._turns = {seat: fewest if seat[1] in self._core else 1 for seat in self._wall}
        left = share - sum(self._wall[seat] * turns for seat, turns in self._turns.items())
        for turns in range(2, fewest + 1):
            for seat in sorted((s for s in self._wall if s[1] not in self._core), key=lambda s: self._wall[s]):
                left -= self._wall[seat]
                if left < 0:
                    return
                self._turns[seat] = turns

    def rounds(self, case: Case) -> int:
        return self._rounds.get(case.id, self._plan.fewest_rounds)

    def turns(self, case: Case, labels: Sequence[str], rng: np.random.Generator) -> dict[str, set[int]]:
        """The rounds of one process that each label takes part in, drawn at random where they are not all."""
        rounds = self.rounds(case)
        return {
            label: set(rng.permutation(rounds)[: self._turns.get((case.id, label), rounds)].tolist())
            for label in labels
        }

    def deadline_of(self, case: Case) -> float:
        """When the case should end in this process; the fewest rounds are done even after that."""
        return self._ends.get(case.id, self._deadline)

    def thinned(self) -> dict[str, tuple[int, int]]:
        """Labels that are not in every round of every case: their samples in one process, and those of the core."""
        found: dict[str, tuple[int, int]] = {}
        for (case_id, label), turns in self._turns.items():
            own, full = found.get(label, (0, 0))
            found[label] = own + turns, full + self._rounds[case_id]
        return {label: counts for label, counts in found.items() if counts[0] < counts[1]}
