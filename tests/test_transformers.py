"""The experts implementation for transformers: what it keeps, what it gives back, where it steps aside."""

from __future__ import annotations

import copy
import gc
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Mxfp4Config
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

import moelab_kernels.transformers
import mxfp4_checkpoint
from moelab_kernels.transformers import _experts, record_routing
from moelab_models import GPT_OSS, QWEN, TOKENS, logits, on_moelab, registered
from tiny_models import experts_of, tiny_models

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture(params=[QWEN, GPT_OSS], ids=["qwen3_moe", "gpt_oss"])
def model(request: pytest.FixtureRequest) -> Any:
    return on_moelab(request.param)


@pytest.mark.parametrize("edit", ["in place", "through .data", "replaced", "loaded"])
@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
def test_edited_weights_are_packed_again(model: Any, name: str, edit: str, release: bool):
    moelab_kernels.transformers.register(release=release)
    before = logits(model)
    experts = experts_of(model)[-1]
    if edit == "in place":
        getattr(experts, name).mul_(2)
    elif edit == "through .data":
        getattr(experts, name).data.mul_(2)
    elif edit == "replaced":
        setattr(experts, name, torch.nn.Parameter(getattr(experts, name) * 2))
    else:
        state = experts.state_dict()
        experts.load_state_dict({**state, name: state[name] * 2})
    edited = logits(model)
    assert not torch.equal(before, edited)
    fresh = copy.deepcopy(model)
    assert torch.equal(edited, logits(fresh))
    getattr(experts, name).mul_(0.5)
    assert torch.equal(before, logits(model))


class TestStepsAside:
    """The result is transformers' own, after one warning that says why."""

    def check(self, model: Any, why: str, call: Any = logits) -> None:
        with pytest.warns(UserWarning, match=why) as told:
            result = call(model)
        assert len(told) == 1, [str(w.message) for w in told]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(result, call(model))
        model.set_experts_implementation("grouped_mm")
        assert torch.equal(result, call(model))

    def test_gradients(self, model: Any):
        with torch.enable_grad():
            self.check(model, "gradients are on")

    def test_training(self, model: Any):
        model.train()
        with torch.enable_grad(), pytest.warns(UserWarning, match="gradients are on"):
            model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        assert all(m.down_proj.grad.abs().sum() > 0 for m in experts_of(model))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_dtype(self, model: Any, dtype: torch.dtype):
        self.check(model.to(dtype), "not BF16.*dtype=torch.bfloat16")

    def test_weights_of_another_dtype(self, model: Any):
        for experts in experts_of(model):
            experts.float()
        call = torch.ones(2, 64).bfloat16(), torch.tensor([[0], [1]]), torch.ones(2, 1)
        with pytest.warns(UserWarning, match="gate_up_proj is torch.float32"):
            experts_of(model)[0](*call)

    def test_fp8_checkpoints(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(ALL_FP8_EXPERTS_FUNCTIONS, "grouped_mm", lambda module, *arguments: arguments)
        implementation = ALL_FP8_EXPERTS_FUNCTIONS.get_interface("moelab", None)
        with pytest.warns(UserWarning, match="Linear runs on transformers' own grouped_mm: its weights are FP8"):
            assert implementation(torch.nn.Linear(1, 1), 1, 2, 3) == (1, 2, 3)

    def test_weights_made_in_inference_mode(self):
        with torch.inference_mode():
            model = on_moelab(QWEN)
            self.check(model, "made in inference mode")

    def test_another_device(self, model: Any):
        experts = experts_of(model)[0].to("meta")
        x, ids, router = (torch.ones(2, 64).bfloat16(), torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1))
        with pytest.warns(UserWarning, match="hidden states on meta, the kernels run on the CPU"):
            assert experts(x.to("meta"), ids.to("meta"), router.to("meta")).device.type == "meta"


def test_inference_mode_is_used(model: Any):
    expected = logits(model)
    with torch.inference_mode():
        assert torch.equal(logits(model), expected)


def test_a_copy_has_weights_of_its_own(model: Any):
    before = logits(model)
    other = copy.deepcopy(model)
    experts_of(other)[0].down_proj.mul_(3)
    assert not torch.equal(logits(other), before)
    assert torch.equal(logits(model), before)


def test_nothing_keeps_a_model_alive():
    model = on_moelab(QWEN)
    logits(model)
    gc.collect()
    count = len(_experts._modules)
    del model
    gc.collect()
    assert len(_experts._modules) == count - 2


def test_ids_of_other_ranks_are_skipped(model: Any):
    experts = experts_of(model)[0]
    x = torch.randn(3, 64).bfloat16()
    ids, router = torch.tensor([[0, 5], [8, 1], [9, 8]]), torch.rand(3, 2)
    experts._is_expert_parallel = True
    router[ids >= 8] = 0
    got = experts(x, ids, router)
    experts._is_expert_parallel = False
    assert torch.equal(got, experts(x, ids.where(ids < 8, 0), router))
    assert not got[2].any()


class TestCompiled:
    @pytest.fixture(autouse=True)
    def clean(self) -> Iterator[None]:
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    def test_cold_in_one_graph(self, model: Any):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert torch.equal(logits(compiled), logits(model))

    def test_edits_are_noticed(self, model: Any):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        before = logits(compiled)
        experts_of(model)[0].down_proj.mul_(2)
        after = logits(compiled)
        assert not torch.equal(before, after)
        assert torch.equal(after, logits(model))

    def test_layers_and_copies_share_no_weights(self, model: Any):
        """One piece of compiled code serves several modules."""
        other = copy.deepcopy(model)
        for experts in experts_of(other):
            experts.down_proj.mul_(2)
        expected = [logits(model), logits(other)]
        for one in (model, other):
            for layer in one.model.layers:
                layer.compile(backend="eager", fullgraph=True)
        assert torch.equal(logits(model), expected[0])
        assert torch.equal(logits(other), expected[1])

    def test_released(self, model: Any):
        expected = logits(model)
        moelab_kernels.transformers.register(release=True)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(logits(compiled), expected)
        assert torch.equal(logits(compiled), expected)

    def test_stepping_aside(self, model: Any):
        model.float()
        compiled = torch.compile(model, backend="eager")
        with pytest.warns(UserWarning, match="not BF16"):
            result = logits(compiled)
        torch.testing.assert_close(result, logits(model))

    def test_inductor(self, model: Any):
        experts = experts_of(model)[0]
        call = torch.randn(3, 64).bfloat16(), torch.tensor([[0, 5], [2, 1], [7, 7]]), torch.rand(3, 2)
        assert torch.equal(torch.compile(experts, fullgraph=True)(*call), experts(*call))


def test_routing_traces(model: Any, tmp_path: Path):
    from moelab.routing import load_trace, route

    with record_routing(model) as routing:
        model.generate(TOKENS, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert [len(calls) for calls in routing.calls.values()] == [5, 5]
    file = tmp_path / "layer1.npz"
    routing.save(file, layer=1, model="tiny", source="a test")
    trace = load_trace(file)
    assert (trace.model, trace.layer, trace.source) == ("tiny", 1, "a test")
    assert trace.topk_ids.shape == (7 + 4, 2)
    with record_routing(model) as prompt:
        logits(model)
    assert torch.equal(torch.from_numpy(trace.topk_ids[:7]), prompt.rows(1)[0])
    ids, router = route(f"trace:{file}", tokens=7, num_experts=8, topk=2)
    assert (ids == trace.topk_ids[:7]).all()
    assert (router == trace.topk_weights[:7]).all()
    with pytest.raises(IndexError, match="has 2 experts modules"):
        routing.rows(2)


def test_routing_of_a_model_without_experts():
    with pytest.raises(ValueError, match="Linear: has no experts"), record_routing(torch.nn.Linear(2, 2)):
        pass


@pytest.mark.parametrize(
    ("present", "message"),
    [
        ({"torch": "2.13.0"}, "transformers is not installed; in moelab's repository: python ci/install_torch.py; pip"),
        ({"transformers": "5.24.0"}, "torch is not installed"),
        ({"torch": "2.13.0", "transformers": "4.57.1"}, "transformers 4.57.1 is installed, 5.24 or newer is needed"),
    ],
)
def test_wrong_set_ups(monkeypatch: pytest.MonkeyPatch, present: dict[str, str], message: str):
    def version(name: str) -> str:
        if name not in present:
            raise moelab_kernels.transformers.PackageNotFoundError(name)
        return present[name]

    monkeypatch.setattr(moelab_kernels.transformers, "version", version)
    with pytest.raises(ImportError, match=message):
        moelab_kernels.transformers.register()


def test_readme(tmp_path: Path):
    """The README's lines, on a checkpoint made here."""
    _, model = tiny_models(QWEN)
    model.save_pretrained(tmp_path)
    section = (ROOT / "README.md").read_text().split("### Use it in transformers")[1]
    match = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert match is not None
    names: dict[str, Any] = {}
    exec(match[1].replace("Qwen/Qwen3-30B-A3B", str(tmp_path)), names)
    assert names["model"].config._experts_implementation == "moelab"
    names["model"](input_ids=TOKENS)
    assert all(m._moelab.packed is not None for m in experts_of(names["model"]))


def test_gpt_oss_as_it_is_published(tmp_path: Path):
    """The README's option unpacks MXFP4 while loading, and the kernels compute with those values."""
    values = mxfp4_checkpoint.save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        dtype=torch.bfloat16,
        experts_implementation="moelab",
        quantization_config=Mxfp4Config(dequantize=True),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="moelab: ")
        logits(model)
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in values.items())
    assert all(m._moelab.packed is not None for m in experts_of(model))


def test_registered_name():
    assert ALL_EXPERTS_FUNCTIONS["moelab"] is _experts.experts
