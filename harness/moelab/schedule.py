"""How many rounds fit: from a deadline and from what one round of each case was seen to cost."""

from __future__ import annotations

import time
from collections.abc import Sequence

from moelab.plan import Plan
from moelab.workloads import Case


class Schedule:
    """Rounds of each case of one workload, the same in every process.

    Half of the time is dealt out evenly by rounds and half evenly by cases, so that cheap cases get more rounds than
    dear ones but not all of them.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._deadline = 0.0
        self._oracle_seconds = 0.0
        self._wall: dict[str, dict[str, float]] = {}
        self._seconds: dict[str, float] = {}
        self._rounds: dict[str, int] = {}
        self._ends: dict[str, float] = {}
        self._overhead = 0.0

    def begin(self, deadline: float, oracle_seconds: float) -> None:
        """The oracle runs a second time at the end, on more rows."""
        self._deadline, self._oracle_seconds = deadline, oracle_seconds

    def estimate(self, case: Case, label: str, wall: float, seconds: float) -> None:
        """One sample of a backend: `wall` with everything around it, `seconds` the call alone."""
        self._wall.setdefault(case.id, {})[label] = wall
        self._seconds[case.id] = min(seconds, self._seconds.get(case.id, seconds))

    def fastest(self, case: Case) -> float:
        """Seconds of the fastest backend's call."""
        return self._seconds.get(case.id, 1.0)

    def verified(self, process: int, overhead: float, cases: Sequence[Case]) -> None:
        """Called when a process is set up, which took `overhead` seconds: deals out the time that is left."""
        self._overhead = max(overhead, self._overhead)
        now = time.monotonic()
        later = self._plan.processes - process - 1
        left = self._deadline - now - 1.3 * self._oracle_seconds - later * self._overhead
        share = max(0.0, left / (later + 1))
        if process == 0:
            self._deal(share)
        total = sum(self._cost(case.id) * self._rounds.get(case.id, 0) for case in cases)
        end = now
        for case in cases:
            end += share * self._cost(case.id) * self._rounds.get(case.id, 0) / max(total, 1e-9)
            self._ends[case.id] = end

    def _cost(self, case_id: str) -> float:
        return sum(self._wall.get(case_id, {}).values())

    def _deal(self, share: float) -> None:
        costs = {case_id: self._cost(case_id) for case_id in self._wall}
        everything = sum(costs.values())
        for case_id, cost in costs.items():
            by_rounds = share / everything
            by_cases = share / len(costs) / cost
            rounds = int(0.5 * by_rounds + 0.5 * by_cases)
            self._rounds[case_id] = max(self._plan.fewest_rounds, min(self._plan.most_rounds, rounds))

    def rounds(self, case: Case) -> int:
        return self._rounds.get(case.id, self._plan.fewest_rounds)

    def deadline_of(self, case: Case) -> float:
        """When the case should end in this process; the fewest rounds are done even after that."""
        return self._ends.get(case.id, self._deadline)
