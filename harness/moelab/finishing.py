"""After the clock: judges the timed outputs of a case and puts together what is known of each backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moelab.checking import RowChecks
from moelab.conditions import drift
from moelab.conduct import misconduct
from moelab.contenders import ContenderState
from moelab.measurement import BackendRun, CaseRun, Missing


def finish(run: CaseRun, contenders: Mapping[str, ContenderState], checks: RowChecks) -> list[Missing]:
    """Completes the case in place; returns the backends whose results do not count, with the reason."""
    _fill_probes(run)
    probed = next((c.probe_isa for c in contenders.values() if c.probe_isa), None)
    failed = []
    for label in list(run.backends):
        contender, backend = contenders[label], run.backends[label]
        if contender.missing is not None:
            del run.backends[label]
            continue
        _describe(backend, contender)
        backend.probe_isa = contender.probe_isa or probed
        backend.after, wrong = checks.verdict(label, run.case.id, contender.facts.backend.rounding)
        if wrong is not None:
            backend.failure = backend.failure or f"a timed output is wrong: {wrong}"
        others = [other for name, other in run.backends.items() if name != label]
        backend.failure = backend.failure or misconduct(backend, others, run.case, run.setting)
        if backend.failure is not None:
            failed.append(Missing(label, run.case.id, run.case.layer.name, "failed", backend.failure))
    samples = [s for b in run.backends.values() for s in b.samples]
    probes = drift([s.probe_bf16 for s in samples], [s.probe_read for s in samples])
    run.conditions = run.disturbance.words() + probes
    return failed


def _describe(backend: BackendRun, contender: ContenderState) -> None:
    facts = contender.description
    backend.version, backend.environment, backend.facts = contender.version, contender.environment, dict(facts)
    backend.isa = None if facts.get("isa") is None else str(facts["isa"])
    backend.packing_seconds, backend.packed_bytes = contender.packing_seconds, contender.packed_bytes
    backend.packing_extra_bytes, backend.first_call_seconds = (
        contender.packing_extra_bytes,
        contender.first_call_seconds,
    )
    backend.uses_amx = {"yes": True, "possible": None}.get(str(facts.get("amx")), False)
    backend.gemm_peak = contender.gemm


def _fill_probes(run: CaseRun) -> None:
    """A process that lacks our probes takes those nearest to its sample in the same round."""
    probed = [s for b in run.backends.values() for s in b.samples if s.probe_read is not None]
    for backend in run.backends.values():
        for i, sample in enumerate(backend.samples):
            near = [s for s in probed if (s.process, s.round) == (sample.process, sample.round)]
            if sample.probe_read is None and near:
                best = min(near, key=lambda s: abs(s.position - sample.position))
                backend.samples[i] = replace(sample, probe_read=best.probe_read, probe_bf16=best.probe_bf16)
