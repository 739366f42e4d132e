"""Every backend that can run here gives the right answer; every other says why it cannot.

Peers that need an environment of their own are taken from `.envs` (or MOELAB_ENVS) where somebody has made them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from moelab import backends
from moelab.backends import Backend, amx, environments
from moelab.backends.vllm import rounding_of
from moelab.bounds import reference
from moelab.check import check
from moelab.rounding import Rounding
from moelab.weights import make_weights, materialise, open_weights
from moelab.workloads import LAYERS, Case, Layer, layer_by_name, make_inputs

TINY = LAYERS["tiny"]
SHAPES = ("tiny", "gpt-oss-20b/E8/H512/I256", "gemma-4-26b-a4b/E12/H384/I192", "deepseek-v2-lite/E16/H256/I352")


def ready(name: str, case: Case | None = None) -> Backend:
    """The backend, or the test is skipped with the backend's own reason. In CI ours has to be there."""
    backend = backends.create(name)
    reason = backend.unavailable() or (backend.unsuited(case) if case else None)
    if reason and name == "moelab" and os.environ.get("CI"):
        pytest.fail(f"{name}: {reason}")
    if reason:
        pytest.skip(f"{name}: {reason}")
    return backend


def isas() -> list[str]:
    try:
        import moelab_kernels
    except ImportError:
        return []
    return [f"moelab:{isa}" for isa in moelab_kernels.isas()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*backends.NAMES, *isas()])
def test_the_answer_is_right(name: str, shape: str):
    layer = layer_by_name(shape)
    weights = make_weights(layer, 1)
    for tokens in (1, 5, 70):
        case = Case(layer, tokens, "skewed", threads=2, seed=1)
        backend = ready(name, case)
        inputs = make_inputs(case)
        backend.prepare(weights, layer, case.threads)
        out = backend.result(backend.bind(inputs)())
        result = check(out, reference(weights, layer, inputs, backend.rounding))
        backend.close()
        assert result.ok, result.reason
        assert (out.dtype == np.uint16) == backend.rounding.output


@pytest.mark.parametrize("layout", ["split", "interleaved"])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swigluoai"])
@pytest.mark.parametrize("name", backends.NAMES)
def test_every_activation_in_either_layout(name: str, activation: str, layout: str):
    """Layouts are not tied to activations: a library that expects another order is given another order."""
    layer = Layer("made-up", 6, 2, 64, 96, activation, bias=True, gate_up=layout)  # type: ignore[arg-type]
    case = Case(layer, 20)
    backend = ready(name, case)
    weights, inputs = make_weights(layer, 2), make_inputs(case)
    backend.prepare(weights, layer, 1)
    result = check(backend.result(backend.bind(inputs)()), reference(weights, layer, inputs, backend.rounding))
    backend.close()
    assert result.ok, result.reason


@pytest.mark.parametrize("name", backends.NAMES)
def test_bound_calls_are_independent_and_inputs_stay_as_they_are(name: str, tmp_path: Path):
    backend = ready(name, Case(TINY, 9))
    weights = open_weights(materialise(TINY, 3, tmp_path))
    sets = [make_inputs(Case(TINY, tokens, seed=3), index) for index, tokens in enumerate((9, 9, 31))]
    kept = [(s.x.copy(), s.topk_weights.copy(), s.topk_ids.copy()) for s in sets]
    digest = weights.digest
    backend.prepare(weights, TINY, 2)
    calls = [backend.bind(one) for one in sets]
    first = [call() for call in calls]
    results = [backend.result(out).copy() for out in first]
    again = [backend.result(call()).copy() for call in reversed(calls)][::-1]
    backend.close()
    for one, out, repeated in zip(sets, results, again, strict=True):
        assert check(out, reference(weights, TINY, one, backend.rounding)).ok
        np.testing.assert_array_equal(out, repeated)
    for one, (x, router, ids) in zip(sets, kept, strict=True):
        np.testing.assert_array_equal(one.x, x)
        np.testing.assert_array_equal(one.topk_weights, router)
        np.testing.assert_array_equal(one.topk_ids, ids)
    del weights.__dict__["digest"]
    assert weights.digest == digest


@pytest.mark.parametrize("name", backends.NAMES)
def test_a_result_can_be_traced(name: str):
    backend = ready(name, Case(TINY, 1))
    backend.prepare(make_weights(TINY), TINY, 1)
    facts = backend.describe()
    backend.close()
    assert all(isinstance(v, str | int | float | bool | None) for v in facts.values())
    for field in ("version", "packing"):
        assert isinstance(facts[field], str), field
        assert facts[field]
    assert facts["amx"] in ("absent", "no", "possible", "yes")
    assert (facts["amx"] == "absent") == (not amx.cpu_has_amx())


def test_names_are_those_that_results_use():
    expected = ["moelab", "torch_loop", "torch_grouped_mm", "onednn_prepacked", "vllm", "sglang", "zentorch", "ggml"]
    assert list(backends.NAMES) == expected
    for name in expected:
        backend = backends.create(name)
        assert backend.name == name
        assert isinstance(backend.rounding, Rounding)
        assert backend.environment in ("main", *environments.NAMES)
    assert backends.create("moelab:avx2").name == "moelab:avx2"


@pytest.mark.parametrize("name", ["", "vlm", "vllm:amx", "moelab:", ":avx2"])
def test_an_unknown_name_is_an_error_that_lists_the_known(name: str):
    with pytest.raises(ValueError, match="known: moelab, torch_loop"):
        backends.create(name)


def test_an_isa_that_does_not_exist_is_unavailable():
    ready("moelab")
    reason = backends.create("moelab:avx1024").unavailable()
    assert reason is not None
    assert "avx1024" in reason
    assert "usable" in reason


@pytest.mark.parametrize("name", ["torch_loop", "torch_grouped_mm", "onednn_prepacked", "vllm", "sglang", "ggml"])
def test_a_skipped_slot_is_refused_by_those_that_cannot_skip(name: str):
    backend = ready(name)
    backend.prepare(make_weights(TINY), TINY, 1)
    inputs = make_inputs(Case(TINY, 4))
    inputs.topk_ids[2, 1] = -1
    with pytest.raises(ValueError, match=r"topk_ids\[2, 1\] is -1"):
        backend.bind(inputs)
    backend.close()


def test_ours_skips_slots():
    backend = ready("moelab")
    weights, inputs = make_weights(TINY), make_inputs(Case(TINY, 4))
    inputs.topk_ids[2, 1] = -1
    backend.prepare(weights, TINY, 1)
    assert check(backend.result(backend.bind(inputs)()), reference(weights, TINY, inputs, backend.rounding)).ok


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("sglang", "gemma-4-26b-a4b", "gelu_tanh"),
        ("sglang", "gpt-oss-20b/I40", "multiples of 32"),
        ("vllm", "gpt-oss-20b/H40", "multiples of 32"),
    ],
)
def test_a_case_that_a_library_rejects_is_unsuited(name: str, shape: str, says: str):
    reason = backends.create(name).unsuited(Case(layer_by_name(shape), 1))
    assert reason is not None
    assert says in reason


# ---- without torch ---------------------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # import torch raises ImportError
from moelab import backends, bounds, check, oracle, weights, workloads
for name in backends.NAMES:
    print(name, "|", backends.create(name).unavailable())
backend = backends.create("moelab")
if backend.unavailable() is None:
    layer = workloads.LAYERS["tiny"]
    w, x = weights.make_weights(layer), workloads.make_inputs(workloads.Case(layer, 7))
    backend.prepare(w, layer, 1)
    out = backend.result(backend.bind(x)())
    print(check.check(out, bounds.reference(w, layer, x, backend.rounding)).ok)
"""


def test_everything_but_the_torch_backends_works_without_torch(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MOELAB_ENVS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" | ") for line in done.stdout.splitlines() if " | " in line)
    assert "torch cannot be imported" in said["torch_loop"]
    assert said["ggml"].startswith("llama-cpp-python")
    if said["moelab"] == "None":
        assert done.stdout.splitlines()[-1] == "True"


# ---- environments ----------------------------------------------------------------------------------------


def test_an_environment_that_is_not_there_says_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOELAB_ENVS", str(tmp_path))
    for name in ("vllm", "ggml"):
        reason = environments.missing(name)
        assert reason is not None
        assert f"python -m moelab.backends.environments {name}" in reason
    assert "moelab.backends.environments" in str(backends.create("sglang").unavailable())
    assert environments.python("vllm") == Path(sys.executable)


def test_a_library_without_sglangs_kernels_is_named(monkeypatch: pytest.MonkeyPatch):
    """vLLM's library for CPUs without AVX-512 loads and has its own kernel, not sglang's."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("moelab.backends.environments.missing", lambda _: None)
    monkeypatch.setattr("moelab.backends.vllm.load_vllm", lambda: None)
    monkeypatch.setattr("torch.cpu._is_avx512_supported", lambda: False)
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(prepack_moe_weight=None, cpu_fused_moe=None))
    assert backends.create("vllm").unavailable() is None
    reason = str(backends.create("sglang").unavailable())
    assert reason == "vLLM's library for this CPU, _C_AVX2.abi3.so, is built without sglang's kernels"
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(convert_weight_packed=None, fused_experts_cpu=None))
    assert backends.create("sglang").unavailable() is None
    assert backends.create("vllm").unavailable() == reason.replace("sglang", "vllm")


def test_vllm_rounds_to_zero_where_the_cpu_cannot_round_to_bf16():
    for architecture, features, to in (
        ("x86_64", ("avx2",), "zero"),
        ("x86_64", ("avx2", "avx512f"), "zero"),
        ("x86_64", ("avx2", "avx512f", "avx512_bf16"), "nearest"),
        ("aarch64", ("bf16",), "nearest"),
    ):
        assert rounding_of(architecture, features).to == to


def test_a_machine_without_a_wheel_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert environments.missing("zentorch") == "zentorch==2.13.0.1 exists for x86_64, this machine is aarch64"
    with pytest.raises(RuntimeError, match="exists for x86_64"):
        environments.create("zentorch")


def test_a_failed_download_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOELAB_ENVS", str(tmp_path))
    failed = SimpleNamespace(returncode=1, stderr="ERROR: No matching distribution", stdout="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match="No matching distribution"):
        environments.create("vllm", say=lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_of_another_recipe_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOELAB_ENVS", str(tmp_path))
    place = environments.folder("vllm")
    place.mkdir(parents=True)
    (place / "environment.json").write_text('{"recipe": "an older one"}')
    assert environments.missing("vllm") is not None


def test_peers_can_be_kept_off_amx(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(amx, "cpu_has_amx", lambda: True)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert amx.in_onednn() == "yes"
    assert amx.onednn_settings() == {}
    monkeypatch.setenv("MOELAB_PEER_AMX", "0")
    settings = amx.onednn_settings()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", settings["ONEDNN_MAX_CPU_ISA"])
    assert amx.in_onednn() == "no"
    monkeypatch.setattr(amx, "cpu_has_amx", lambda: False)
    assert amx.in_onednn() == "absent"
    assert amx.onednn_settings() == {}
