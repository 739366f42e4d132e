"""Experts whose weights exist only packed: everybody else still gets them."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import moelab_kernels.transformers
from moelab_kernels.transformers import _experts
from moelab_models import GPT_OSS, QWEN, TOKENS, logits, on_moelab, registered
from tiny_models import experts_of


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture(params=[QWEN, GPT_OSS], ids=["qwen3_moe", "gpt_oss"])
def model(request: pytest.FixtureRequest) -> Any:
    return on_moelab(request.param)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_one_weight_replaced_after_release(model: Any):
    """The other one exists only packed."""
    moelab_kernels.transformers.register(release=True)
    kept = copy.deepcopy(model)
    logits(model)
    for one in (model, kept):
        experts = experts_of(one)[0]
        shape = experts._parameters["down_proj"].shape
        experts.down_proj = torch.nn.Parameter(torch.full(shape, 0.125, dtype=torch.bfloat16))
    assert torch.equal(logits(model), logits(kept))


def test_a_view_that_somebody_holds_keeps_its_values(model: Any):
    held = [weight.data for experts in experts_of(model) for weight in experts._parameters.values()]
    copies = [weight.clone() for weight in held]
    moelab_kernels.transformers.register(release=True)
    logits(model)
    assert is_empty(experts_of(model)[0]._parameters["down_proj"])
    assert all(torch.equal(weight, copied) for weight, copied in zip(held, copies, strict=True))


def test_threads_that_come_first_together(model: Any):
    expected = logits(copy.deepcopy(model))
    moelab_kernels.transformers.register(release=True)
    start = threading.Barrier(4)

    def run(_: int) -> torch.Tensor:
        start.wait()
        with torch.no_grad():
            return logits(model)

    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(result, expected) for result in pool.map(run, range(4)))


class TestRelease:
    @pytest.fixture(autouse=True)
    def released(self, model: Any) -> None:
        self.before = weights(model)
        self.expected = logits(model)
        moelab_kernels.transformers.register(release=True)
        assert torch.equal(logits(model), self.expected)
        assert all(is_empty(p) for m in experts_of(model) for p in m._parameters.values() if p.dim() == 3)

    def test_training_after_release(self, model: Any):
        with torch.enable_grad(), pytest.warns(UserWarning, match="gradients are on"):
            model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        assert all(m.down_proj.grad.abs().sum() > 0 for m in experts_of(model))

    def test_counts_stay(self, model: Any):
        assert {name: p.shape for name, p in model.named_parameters()} == {
            name: value.shape for name, value in self.before.items()
        }
        assert model.dtype is torch.bfloat16

    def test_state_dict_has_the_weights_and_they_stay_released(self, model: Any):
        assert equal(weights(model), self.before)
        assert all(is_empty(m._parameters["down_proj"]) for m in experts_of(model))

    def test_save_and_reload(self, model: Any, tmp_path: Path):
        model.save_pretrained(tmp_path)
        again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, experts_implementation="moelab")
        assert equal(weights(again), self.before)
        assert torch.equal(logits(again), self.expected)

    def test_another_implementation_gets_the_weights(self, model: Any):
        model.set_experts_implementation("eager")
        assert logits(model).isfinite().all()
        assert not any(is_empty(p) for p in model.parameters())
        model.set_experts_implementation("moelab")
        assert torch.equal(logits(model), self.expected)

    def test_casting(self, model: Any):
        model.float()
        assert equal(weights(model), {name: value.float() for name, value in self.before.items()})

    def test_copies_and_pickles(self, model: Any):
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert equal(weights(other), self.before)
            assert torch.equal(logits(other), self.expected)
        assert torch.equal(logits(model), self.expected)

    def test_reading_a_weight(self, model: Any):
        experts = experts_of(model)[0]
        assert torch.equal(experts.down_proj, weights(model)[name_of(model, experts) + ".down_proj"])
        assert torch.equal(logits(model), self.expected)

    def test_released_again_without_packing_again(self, model: Any, monkeypatch: pytest.MonkeyPatch):
        assert experts_of(model)[0].gate_up_proj.isfinite().all()
        monkeypatch.setattr(_experts.Layer, "pack", None)
        assert torch.equal(logits(model), self.expected)
        assert is_empty(experts_of(model)[0]._parameters["gate_up_proj"])


def is_empty(parameter: torch.Tensor) -> bool:
    return parameter.untyped_storage().nbytes() == parameter.element_size()


def name_of(model: Any, module: torch.nn.Module) -> str:
    return next(name for name, m in model.named_modules() if m is module)


MEMORY = """
import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
import moelab_kernels.transformers

def memory(key):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(l for l in lines if l.startswith(key)).split()[1]) / 1024

config = MixtralConfig(hidden_size=1024, intermediate_size=1024, num_local_experts=16)
config._experts_implementation = "moelab"
x = torch.ones(1, 1024, dtype=torch.bfloat16)
ids, weights = torch.tensor([[0, 1]]), torch.ones(1, 2)
torch.set_default_dtype(torch.bfloat16)
for release in (False, True):
    moelab_kernels.transformers.register(release=release)
    module = MixtralExperts(config).requires_grad_(False)
    for p in module.parameters():
        p.fill_(0.5)
    del p  # who holds a parameter keeps it
    open("/proc/self/clear_refs", "w").write("5")
    before = memory("VmRSS:")
    module(x, ids, weights)
    print(memory("VmRSS:") - before, memory("VmHWM:") - before)
"""


def test_released_experts_never_exist_twice():
    """Resident memory that the first call of a layer of 96 MiB adds: afterwards, and at its highest point."""
    out = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True).stdout
    (kept, _), (after, highest) = ([float(part) for part in line.split()] for line in out.splitlines())
    assert kept > 90
    assert after < 15
    assert highest < 40
