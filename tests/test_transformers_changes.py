"""Experts that are tied, edited, parametrised or given another gate: the outputs are those of the module as it is."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize, prune

import moelab_kernels.transformers
from moelab_kernels._release import is_placeholder
from moelab_models import GPT_OSS, QWEN, logits, on_moelab, registered
from tiny_models import experts_classes, tiny_experts

GENERATOR = torch.Generator().manual_seed(3)
CALL = (
    torch.randn(9, 64, generator=GENERATOR).bfloat16(),
    torch.randint(0, 8, (9, 2), generator=GENERATOR),
    torch.rand(9, 2, generator=GENERATOR),
)


@pytest.fixture(autouse=True, params=[False, True], ids=["kept", "released"])
def release(request: pytest.FixtureRequest) -> Iterator[bool]:
    with registered():
        moelab_kernels.transformers.register(release=request.param)
        yield request.param


@pytest.fixture(params=[QWEN, GPT_OSS], ids=["qwen3_moe", "gpt_oss"])
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def experts(architecture: str) -> Any:
    return new(architecture, seed=0)


def new(architecture: str, seed: int) -> Any:
    torch.manual_seed(seed)
    return tiny_experts(architecture, experts_classes(architecture)[0])


def assert_right(*modules: Any) -> None:
    """Several times in turn: what one module's use does to another shows at the next one."""
    twins = [copy.deepcopy(module) for module in modules]
    for twin in twins:
        twin.config._experts_implementation = "eager"
    wanted = [twin(*CALL) for twin in twins]
    for _ in range(2):
        for module, right in zip(modules, wanted, strict=True):
            # Both round to BF16 a few times; another weight or gate is far outside.
            assert (module(*CALL) - right).abs().max() <= 0.02 * right.abs().max()


def quietly(call: Callable[[], None]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught if "moelab: " in str(warning.message)]


@pytest.mark.parametrize("names", [["gate_up_proj"], ["down_proj"], ["gate_up_proj", "down_proj"]], ids=str)
def test_tied_parameters(architecture: str, experts: Any, names: list[str], release: bool):
    """Two modules with one parameter: neither may take its memory away from the other."""
    other = new(architecture, seed=1)
    for name in names:
        setattr(other, name, getattr(experts, name))
    told = quietly(lambda: assert_right(experts, other))
    assert len(told) == (len(names) if release else 0)
    assert all("stays in memory beside its packed copy" in line for line in told)
    getattr(experts, names[0]).mul_(2)
    assert_right(experts, other)


def test_tied_after_the_first_use(architecture: str, experts: Any):
    other = new(architecture, seed=1)
    assert_right(experts, other)
    other.down_proj = experts.down_proj
    quietly(lambda: assert_right(experts, other))


def test_one_module_in_two_layers():
    model = on_moelab(QWEN)
    model.model.layers[1].mlp.experts = model.model.layers[0].mlp.experts
    first = logits(model)
    model.set_experts_implementation("eager")
    assert (logits(model) - first).abs().max() < 0.05 * first.abs().max()
    model.set_experts_implementation("moelab")
    assert torch.equal(logits(model), first)


def test_a_shallow_copy(experts: Any):
    """It has the same dictionary of parameters."""
    assert_right(experts)
    quietly(lambda: assert_right(experts, copy.copy(experts)))


def test_parameters_that_somebody_holds(experts: Any, release: bool):
    """They keep their values, and the module says that it has them twice."""
    held = [experts.gate_up_proj, experts.down_proj]
    copies = [weight.clone() for weight in held]
    told = quietly(lambda: assert_right(experts))
    assert all(torch.equal(weight, copied) for weight, copied in zip(held, copies, strict=True))
    assert len(told) == (2 if release else 0)


def test_weights_from_outside(experts: Any):
    """torch.func.functional_call: the caller's tensors for one call, which stay the caller's."""
    assert_right(experts)
    before = experts(*CALL)
    given = {name: value * 2 for name, value in experts.state_dict().items()}
    copies = {name: value.clone() for name, value in given.items()}
    got = []
    quietly(lambda: got.append(torch.func.functional_call(experts, given, CALL)))
    assert all(torch.equal(given[name], copies[name]) for name in given)
    assert torch.equal(experts(*CALL), before)
    experts.load_state_dict(copies)
    assert torch.equal(experts(*CALL), got[0])


class Doubled(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_parametrised(experts: Any, used: bool):
    """As adapters do (PEFT): the weight is computed anew at every use."""
    if used:
        assert_right(experts)
    before = experts.down_proj.clone()
    parametrize.register_parametrization(experts, "down_proj", Doubled())
    told = quietly(lambda: assert_right(experts))
    assert [line for line in told if "down_proj is no parameter of its own" in line]
    assert torch.equal(experts.down_proj, 2 * before)
    parametrize.remove_parametrizations(experts, "down_proj")
    assert quietly(lambda: assert_right(experts)) == []


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_pruned(experts: Any, used: bool):
    if used:
        assert_right(experts)
    mask = torch.zeros_like(experts.down_proj)
    mask[::2] = 1
    prune.custom_from_mask(experts, "down_proj", mask)
    assert [line for line in quietly(lambda: assert_right(experts)) if "pruned?" in line]
    prune.remove(experts, "down_proj")
    assert not experts.down_proj[1::2].any()
    assert quietly(lambda: assert_right(experts)) == []


def test_a_weight_that_was_taken_out(experts: Any):
    assert_right(experts)
    del experts.down_proj
    with pytest.raises(AttributeError, match="has no attribute 'down_proj'"):
        quietly(lambda: experts(*CALL))


def test_other_gates(experts: Any):
    """An activation or its constants are exchanged; then for one that no kernel computes."""
    assert_right(experts)
    if hasattr(experts, "limit"):
        experts.limit, experts.alpha = 1.5, 1.0
    else:
        experts.act_fn = torch.nn.GELU()
    assert quietly(lambda: assert_right(experts)) == []
    if hasattr(experts, "limit"):
        experts._apply_gate = lambda both: both[..., ::2].relu()
    else:
        experts.act_fn = torch.nn.ReLU()
    (told,) = quietly(lambda: assert_right(experts))
    assert "no kernel computes the gate" in told
    if hasattr(experts, "limit"):
        del experts._apply_gate
    else:
        experts.act_fn = torch.nn.SiLU()
    assert quietly(lambda: assert_right(experts)) == []


def test_training_mode_changes_nothing(experts: Any, monkeypatch: pytest.MonkeyPatch):
    """The gate is asked again, and nothing is packed again."""
    expected = experts(*CALL)
    monkeypatch.setattr(type(experts._moelab), "pack", None)
    assert torch.equal(experts.train()(*CALL), expected)
    assert torch.equal(experts.eval()(*CALL), expected)


def test_hooks_on_the_activation_see_it():
    """What somebody wants to see inside the experts runs where there is something to see."""
    experts = new(QWEN, seed=0)
    assert_right(experts)
    seen: list[torch.Tensor] = []
    handle = experts.act_fn.register_forward_hook(lambda module, given, out: seen.append(out))
    got = []
    (told,) = quietly(lambda: got.append(experts(*CALL)))
    assert "act_fn has forward hooks, which the kernels would not call" in told
    assert seen
    assert {out.dtype for out in seen} == {torch.bfloat16}
    handle.remove()
    assert quietly(lambda: assert_right(experts)) == []


def test_no_tokens(experts: Any):
    x, ids, weights = (tensor[:0] for tensor in CALL)
    assert experts(x, ids, weights).shape == (0, 64)
    assert_right(experts)
    assert experts(x, ids, weights).shape == (0, 64)


def test_ids_that_no_expert_has(experts: Any):
    x, ids, weights = CALL
    with pytest.raises(ValueError, match=r"topk_ids\[3, 1\]: 8; expected"):
        experts(x, ids.index_put((torch.tensor(3), torch.tensor(1)), torch.tensor(8)), weights)


def test_exported_programs_stand_alone(experts: Any, release: bool):
    """Packed weights belong to this process, so that torch.export gets transformers' own implementation."""
    wanted = experts(*CALL)
    if release:
        with pytest.raises(RuntimeError, match=r"these are released; export copy.deepcopy\(model\)"):
            torch.export.export(experts, CALL)
        experts = copy.deepcopy(experts)
    programs: list[Any] = []
    (told,) = quietly(lambda: programs.append(torch.export.export(experts, CALL)))
    assert "an exported program leaves this process" in told
    assert not [node for node in programs[0].graph.nodes if "moelab" in str(node.target)]
    assert (programs[0].module()(*CALL) - wanted).abs().max() < 0.02 * wanted.abs().max()


class TestReleased:
    @pytest.fixture(autouse=True)
    def released(self, release: bool, experts: Any) -> None:
        if not release:
            pytest.skip("weights are kept")
        assert_right(experts)
        assert all(is_placeholder(experts._parameters[name]) for name in ("gate_up_proj", "down_proj"))

    def test_no_edit_is_lost(self, experts: Any):
        """One element through `.data`, which torch does not count, before the weights are given back again."""
        for name in ("gate_up_proj", "down_proj"):
            getattr(experts, name).data[1, 1, 2] = 50
            assert_right(experts)
            assert is_placeholder(experts._parameters[name])
            assert getattr(experts, name)[1, 1, 2] == 50

    @pytest.mark.parametrize(
        "edit",
        [
            lambda p: p.mul_(2),
            lambda p: p.normal_(),
            lambda p: p.copy_(torch.ones(p.shape)),
            lambda p: p.data.copy_(torch.ones(p.shape)),
            lambda p: p.__setitem__(0, 1.0),
        ],
        ids=["mul_", "normal_", "copy_", "data.copy_", "setitem"],
    )
    def test_placeholders_refuse_edits(self, experts: Any, edit: Callable[[torch.Tensor], None]):
        """A parameter from `parameters()` has no values: an edit that went nowhere has to be an error."""
        parameter = next(p for p in experts.parameters() if p.dim() == 3)
        with pytest.raises(RuntimeError, match="single memory location"):
            edit(parameter)

    @pytest.mark.parametrize("edit", [lambda p: p.zero_(), lambda p: p.data.fill_(0)], ids=["zero_", "data.fill_"])
    def test_one_value_for_all_is_no_placeholder_any_more(self, experts: Any, edit: Callable[[torch.Tensor], None]):
        edit(experts._parameters["down_proj"])
        quietly(lambda: assert_right(experts))
        assert not experts.down_proj.any()
        assert experts.gate_up_proj.isfinite().all()
