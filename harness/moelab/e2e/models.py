"""Which models are run: real shapes cut to a few layers with random weights, or a checkpoint as it is.

Sizes are those of the models' published configurations. To add a model, add an entry to `SHAPES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moelab.e2e.seeded import fill

Json = dict[str, Any]

UNPACKED = "mxfp4"
"""The quantisation that transformers turns into BF16 while it loads: that of gpt-oss."""
NEEDED = "transformers 5.24 or newer; in moelab's repository: pip install '.[transformers]'"


@dataclass(frozen=True)
class Shape:
    """A model's configuration: classes of transformers, full depth, and what differs from the class's defaults."""

    model: str
    config: str
    layers: int
    settings: dict[str, Any]


SHAPES: dict[str, Shape] = {
    "gpt-oss-20b": Shape("GptOssForCausalLM", "GptOssConfig", 24, {"num_local_experts": 32}),
    "gemma-4-26b-a4b": Shape(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        30,
        {
            "hidden_size": 2816,
            "intermediate_size": 2112,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_global_key_value_heads": 2,
            "attention_k_eq_v": True,
            "sliding_window": 1024,
            "final_logit_softcapping": 30.0,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 128,
            "top_k_experts": 8,
            "moe_intermediate_size": 704,
        },
    ),
    "qwen3-30b-a3b": Shape("Qwen3MoeForCausalLM", "Qwen3MoeConfig", 48, {"norm_topk_prob": True}),
}

_FIELDS = {
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "topk": ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k"),
    "intermediate": ("moe_intermediate_size", "intermediate_size"),
}


@dataclass(frozen=True)
class Variant:
    """A model at one depth. `path` is a checkpoint's folder; without it `model` is one of `SHAPES`, cut to `layers`."""

    model: str
    layers: int | None = None
    path: str | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """`gpt-oss-20b/2L`; a checkpoint goes by its own name, since it is not cut."""
        return self.model if self.path is not None else f"{self.model}/{self.layers}L"

    def as_json(self) -> Json:
        return {"model": self.model, "layers": self.layers, "path": self.path, "seed": self.seed}


def variants_of(model: str, layers: tuple[int, ...], seed: int) -> list[Variant]:
    """The depths at which `--model` is run. ValueError with a sentence where it cannot be."""
    if model in SHAPES:
        full = SHAPES[model].layers
        if wrong := [n for n in layers if not 1 <= n <= full]:
            raise ValueError(f"--layers {wrong[0]}: {model} has 1 to {full} layers")
        return [Variant(model, n, seed=seed) for n in layers]
    path = fetched(model)
    return [Variant(path.resolve().name if Path(model).is_dir() else model, path=str(path), seed=seed)]


def fetched(model: str) -> Path:
    """Folder of a checkpoint: given as such, or fetched from the Hugging Face hub (or its cache) by id."""
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(f"--model {model}: the folder holds no config.json, so it is no checkpoint")
        return folder
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or folder.is_absolute():
        known = ", ".join(SHAPES)
        raise ValueError(f"--model {model}: not one of {known}, no checkpoint's folder and no hub id (OWNER/NAME)")
    from huggingface_hub import snapshot_download  # comes with transformers

    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt"]))
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"--model {model}: cannot be fetched: {first}") from error


def config_of(variant: Variant) -> Any:
    """The transformers configuration. ValueError where it has no experts, or is quantised and cannot be unpacked."""
    import transformers

    if variant.path is not None:
        config = transformers.AutoConfig.from_pretrained(variant.path)
    else:
        shape = SHAPES[variant.model]
        # Ids that end or pad a text mean nothing here, and generation must not stop at one.
        config = getattr(transformers, shape.config)(
            **shape.settings, num_hidden_layers=variant.layers, eos_token_id=None, pad_token_id=0
        )
    text = config.get_text_config()
    method = quantization_of(config)
    if method not in (None, UNPACKED):
        raise ValueError(f"--model {variant.name}: its weights are quantised ({method}); give a checkpoint in BF16")
    if _first(text, "experts") is None:
        raise ValueError(f"--model {variant.name}: {type(text).__name__} has no experts, nothing to compare")
    return config


def quantization_of(config: Any) -> str | None:
    """Name of a checkpoint's quantisation, None without."""
    found = getattr(config, "quantization_config", None) or getattr(
        config.get_text_config(), "quantization_config", None
    )
    if not found:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else found.quant_method
    return str(getattr(method, "value", method))


def _first(config: Any, what: str) -> int | None:
    values = (getattr(config, name, None) for name in _FIELDS[what])
    return next((int(value) for value in values if isinstance(value, int)), None)


def model_class(variant: Variant, config: Any) -> Any:
    """The class that gives logits for text."""
    import transformers

    if variant.path is None:
        return getattr(transformers, SHAPES[variant.model].model)
    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    return transformers.AutoModelForCausalLM._model_mapping[type(config)]


def facts(variant: Variant) -> Json:
    """What the model is, without making it: sizes, parameters, bytes in BF16 (shared ones counted once)."""
    import torch

    config = config_of(variant)
    text = config.get_text_config()
    with torch.device("meta"):
        model = model_class(variant, config)._from_config(config, dtype=torch.bfloat16)
    if not experts_of(model):
        raise ValueError(f"--model {variant.name}: {type(model).__name__} does not use transformers' experts interface")
    parameters = {id(p): p.numel() for p in model.parameters()}
    full = config_of(replace(variant, layers=SHAPES[variant.model].layers)) if variant.path is None else config
    return {
        "architecture": type(model).__name__,
        "layers": int(text.num_hidden_layers),
        "full_layers": SHAPES[variant.model].layers if variant.path is None else int(text.num_hidden_layers),
        "layer_kinds": _kinds(text),
        "full_kinds": _kinds(full.get_text_config()),
        "experts": _first(text, "experts"),
        "topk": _first(text, "topk"),
        "hidden": int(text.hidden_size),
        "intermediate": _first(text, "intermediate"),
        "vocabulary": int(text.vocab_size),
        "heads": int(text.num_attention_heads),
        "parameters": sum(parameters.values()),
        "bytes": 2 * sum(parameters.values()),
        "unpacked": variant.path is not None and quantization_of(config) == UNPACKED,
    }


def _kinds(config: Any) -> list[str]:
    """What each layer's attention is; empty where all are of one kind."""
    return list(getattr(config, "layer_types", None) or ())


def experts_of(model: Any) -> list[Any]:
    """The modules whose forward goes through transformers' experts interface."""
    return [m for m in model.modules() if hasattr(m, "_is_expert_parallel") and hasattr(m, "_apply_gate")]


def make(variant: Variant, experts_implementation: str) -> Any:
    """The model in BF16 on the CPU, from its checkpoint or with weights that follow from the seed alone."""
    import torch
    import transformers
    from transformers.initialization import no_init_weights

    config = config_of(variant)
    cls = model_class(variant, config)
    if variant.path is not None:
        options = {"dtype": torch.bfloat16, "experts_implementation": experts_implementation, "local_files_only": True}
        if quantization_of(config) == UNPACKED:
            options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
        model = cls.from_pretrained(variant.path, **options)
    else:
        with no_init_weights():
            model = cls._from_config(config, dtype=torch.bfloat16, experts_implementation=experts_implementation)
        fill(model, variant.seed)
    return model.eval().requires_grad_(False)
