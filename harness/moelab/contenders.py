"""Who takes part in a workload, and what is known of each through all its processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moelab.backend_loading import described, is_foreign, label_of
from moelab.backends.moelab_backend import Moelab
from moelab.measurement import Role
from moelab.plan import Plan
from moelab.team import Contender


@dataclass
class ContenderState:
    """`missing`: why it cannot run here; `failed`: what went wrong, after which it is out for the whole workload."""

    facts: Contender
    role: Role
    missing: str | None = None
    failed: str | None = None
    version: str = ""
    description: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    packing_seconds: list[float] = field(default_factory=list)
    packing_extra_bytes: list[int] = field(default_factory=list)
    first_call_seconds: list[float] = field(default_factory=list)
    packed_bytes: int = 0
    gemm: float | None = None
    probe_isa: str | None = None

    def copy_facts(self, source: ContenderState) -> None:
        """For a label that shares what another one prepared."""
        self.version, self.description, self.environment = source.version, source.description, source.environment
        self.packing_seconds, self.packed_bytes, self.gemm = source.packing_seconds, source.packed_bytes, source.gemm
        self.packing_extra_bytes, self.first_call_seconds = source.packing_extra_bytes, source.first_call_seconds


def contenders_of(plan: Plan, separate_copy: bool) -> dict[str, ContenderState]:
    """By label: the backends of the plan, then the A/A control."""
    contenders = {}
    environments = {described(name, plan.threads).environment for name in plan.backends}
    for label, name in plan.labels.items():
        again = label == plan.control_label
        role: Role = "control" if again else ("baseline" if name == plan.baseline else "candidate")
        original = label_of(name) if again and not separate_copy else None
        backend = described(name, plan.threads)
        if isinstance(backend, Moelab):
            backend.tile, backend.profile = plan.tile, plan.profile
        if is_foreign(name):
            # Code that nobody has looked at shares no process with the others, nor with its own control.
            backend.environment = f"{backend.environment}@{original or label}"  # type: ignore[misc, assignment]
        elif again and original is None and len(environments) > 1:
            # Where backends are in processes of their own, so is the control: it shows what that alone makes different.
            backend.environment = f"{backend.environment}@{label}"  # type: ignore[misc, assignment]
        contenders[label] = ContenderState(Contender(label, name, backend, original), role)
    return contenders


def core_of(contenders: Mapping[str, ContenderState], control: str) -> set[str]:
    """Labels that are in every round, however little time there is: ours, its A/A control, the baseline.

    Where the control is not of one of the candidates, nobody knows which of them is meant: all are.
    """
    candidates = {label for label, c in contenders.items() if c.role == "candidate"}
    ours = {label for label in candidates if contenders[label].facts.name == control}
    return (set(contenders) - candidates) | (ours or candidates)
