"""Every architecture of transformers that has the experts interface, tiny and random, through the kernels."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

import moelab_kernels.transformers
from face_layer import Layer, bits_of
from moelab_kernels.transformers import Routing, record_routing
from rounded_models import SPREAD, exact_and_deviation
from tiny_models import architectures, experts_classes, experts_of, tiny_experts, tiny_models

PROMPT, NEW_TOKENS = 12, 64

# Why the kernels cannot compute these: (architecture, part of the warning). Any other has to run on them.
ELSEWHERE = {
    "deepseek_v4": "gate",  # clamped SiLU
    "glm5_next": "gate",
    "hy_v4": "gate",
    "hy_v4_vl": "gate",
    "inkling2": "gate",  # tanh around gate and up
    "inkling2_loop": "gate",
    "muse_spark": "norm after each expert",
    "nemotron_h": "without a gate",
}


# Their eager experts compute in fp32 whatever the model's dtype: nothing in BF16 can be as close.
EAGER_IN_FP32 = {"openai_privacy_filter"}


class Calls(TorchDispatchMode):
    """Counts calls of the kernel's op, whoever makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.moelab.fused_moe.default
        return func(*args, **(kwargs or {}))


class Models(NamedTuple):
    architecture: str
    name: str
    fp32: Any  # weights that BF16 can hold
    bf16: Any


def name_of(architecture: str) -> str:
    return architecture.split(".", maxsplit=1)[0]


@pytest.fixture(scope="module", params=architectures(), ids=name_of)
def models(request: pytest.FixtureRequest) -> Models:
    moelab_kernels.transformers.register()
    return Models(request.param, name_of(request.param), *tiny_models(request.param))


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models lose time on threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """[B, T, V] fp32."""
    torch.manual_seed(0)  # diffusion models start from noise
    return model(input_ids=tokens, use_cache=False).logits.float()


class Run(NamedTuple):
    logits: torch.Tensor
    calls: int  # of our op
    told: list[str]  # moelab's warnings
    routing: Routing


def run(model: Any, implementation: str, tokens: torch.Tensor) -> Run:
    model.set_experts_implementation(implementation)
    with warnings.catch_warnings(record=True) as caught, Calls() as calls, record_routing(model) as routing:
        warnings.simplefilter("always")
        result = logits(model, tokens)
    return Run(result, calls.count, [str(w.message) for w in caught if "moelab" in str(w.message)], routing)


def exact_and_rounded(model: Any, tokens: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 eager logits [B, T, V], and [B, T, 1] their standard deviation when every operation rounds at random."""
    calls = (call for calls in routing.calls.values() for call in calls)
    return exact_and_deviation(model, lambda: logits(model, tokens), calls)


def prompt(rows: int) -> torch.Tensor:
    return torch.randint(3, 128, (rows, PROMPT), generator=torch.Generator().manual_seed(1))


def root_mean_square(error: torch.Tensor) -> float:
    return float(error.square().mean().sqrt())


def test_logits(models: Models):
    """Through our op, within the bound of a BF16 model, and as close as the eager BF16 model."""
    ours = run(models.bf16, "moelab", prompt(2))
    if models.name in ELSEWHERE:
        assert not ours.calls
        assert len(ours.told) == 1, ours.told
        assert ELSEWHERE[models.name] in ours.told[0]
        return
    assert not ours.told
    assert ours.calls == sum(map(len, ours.routing.calls.values())) > 0
    exact, sigma = exact_and_rounded(models.fp32, prompt(2), ours.routing)
    assert ((ours.logits - exact).abs() <= SPREAD * sigma).all()
    eager = run(models.bf16, "eager", prompt(2))
    exact_for_eager, _ = exact_and_rounded(models.fp32, prompt(2), eager.routing)
    # Most of both errors comes from the rest of the model, where the two differ by chance; the experts alone: below.
    assert root_mean_square(ours.logits - exact) <= 1.25 * root_mean_square(eager.logits - exact_for_eager)


@pytest.mark.parametrize(
    "models", [a for a in architectures() if name_of(a) not in ELSEWHERE], ids=name_of, indirect=True
)
class TestOnTheKernels:
    def test_experts_alone_are_closer_than_eager(self, models: Models):
        """With everything but the experts in fp32, ours are closer to fp32 than eager ones in BF16."""
        models.fp32.set_experts_implementation("eager")
        with record_routing(models.fp32) as routing:
            exact = logits(models.fp32, prompt(2))
        calls = [call for calls in routing.calls.values() for call in calls]
        partners = dict(zip(experts_of(models.fp32), experts_of(models.bf16), strict=True))

        def in_bf16(module: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            recorded_ids, recorded_weights = remaining.pop(0)
            return partners[module](x.bfloat16(), recorded_ids.long(), recorded_weights).float()

        ALL_EXPERTS_FUNCTIONS["in_bf16"] = in_bf16
        models.fp32.set_experts_implementation("in_bf16")
        errors = []
        for implementation in ("moelab", "grouped_mm" if models.name in EAGER_IN_FP32 else "eager"):
            models.bf16.set_experts_implementation(implementation)
            remaining = list(calls)
            errors.append(root_mean_square(logits(models.fp32, prompt(2)) - exact))
        assert 0 < errors[0] < errors[1]

    def test_greedy_generation(self, models: Models):
        """The tokens of the fp32 model, up to a place where its two candidates are too close to tell apart."""
        if not models.bf16.can_generate() or models.name == "diffusion_gemma":
            pytest.skip("does not generate token by token")
        models.fp32.set_experts_implementation("eager")
        models.bf16.set_experts_implementation("moelab")
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        wanted = models.fp32.generate(prompt(1), **options)[0]
        with Calls() as calls:
            got = models.bf16.generate(prompt(1), **options)[0]
        assert len(got) == len(wanted) == PROMPT + NEW_TOKENS
        assert calls.count >= NEW_TOKENS
        different = (got != wanted).nonzero()
        if not len(different):
            return
        first = int(different[0])
        ours = run(models.bf16, "moelab", got[None, :first])
        exact, sigma = exact_and_rounded(models.fp32, got[None, :first], ours.routing)
        # Given the experts that our run chose, fp32 prefers our token too, or by less than two logits may be off.
        gap = exact[0, -1, wanted[first]] - exact[0, -1, got[first]]
        assert gap <= 2 * SPREAD * sigma[0, -1, 0]

    def test_experts_module(self, models: Models):
        """Every class of experts: right against its own eager forward in fp64, the same bits whatever the batch."""
        models.bf16.set_experts_implementation("moelab")
        for cls in experts_classes(models.architecture):
            present = [m for m in experts_of(models.bf16) if type(m) is cls]
            module = present[0] if present else tiny_experts(models.architecture, cls)
            x, ids, weights = routed(module, tokens=33)
            with Calls() as calls:
                together = module(x, ids, weights)
            assert calls.count == 1
            alone = [module(x[i : i + 1], ids[i : i + 1], weights[i : i + 1]) for i in range(len(x))]
            assert torch.equal(together, torch.cat(alone))
            right = cls.forward.__wrapped__(copy.deepcopy(module).double(), x.double(), ids, weights.double())
            assert ((together - right).abs() <= bound(module, x, ids, weights)).all()


def routed(module: Any, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    hidden = module.down_proj.shape[2 if module.is_transposed else 1]
    x = torch.randn(tokens, hidden, generator=generator).bfloat16()
    scores = torch.randn(tokens, module.num_experts, generator=generator)
    weights, ids = scores.softmax(dim=-1).topk(2)
    return x, ids, weights


def bound(module: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """What rounding the activations and the output to BF16 may do, from a description of the layer apart from ours."""
    w13, w2 = module.gate_up_proj, module.down_proj
    if module.is_transposed:
        w13, w2 = w13.mT, w2.mT
    biases = [module.gate_up_proj_bias.float(), module.down_proj_bias.float()] if module.has_bias else [None, None]
    if not module.is_concatenated:
        w13 = torch.cat((w13[:, ::2], w13[:, 1::2]), dim=1)
        biases[0] = torch.cat((biases[0][:, ::2], biases[0][:, 1::2]), dim=1)
    activation = module._moelab.packed.activation
    layer = Layer(bits_of(w13), bits_of(w2), *(None if b is None else b.numpy() for b in biases), activation)
    return torch.from_numpy(layer.reference(bits_of(x), weights.numpy(), ids.numpy())[1])
