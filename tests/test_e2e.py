"""End-to-end runs: the command on a checkpoint that the test saves, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from referencing import Registry, Resource

import e2e_result
import mxfp4_checkpoint
from moelab.cli import main
from moelab.e2e import command, models, text
from moelab.e2e.engines import ENGINES, Entry
from moelab.e2e.plan import Plan
from moelab.e2e.run import Run, VariantRun
from moelab.progress import Progress
from moelab_models import QWEN
from tiny_models import tiny_models

SCHEMAS = Path(__file__).resolve().parent.parent / "reports/schema"
SMALL = ["--prefill", "8", "--decode", "2", "--rounds", "2", "--processes", "1", "--threads", "1", "--budget", "1"]
MXFP4 = ["--prefill", "8", "--decode", "", "--no-mixed", "--engine", "eager,moelab", *SMALL[4:]]


def validate(document: dict[str, Any]) -> None:
    schema, bench = (json.loads((SCHEMAS / name).read_text()) for name in ("e2e.schema.json", "result-1.json"))
    registry = Registry().with_resource("result-1.json", Resource.from_contents(bench))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema, registry=registry).validate(document)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "mine"
    _, model = tiny_models(QWEN)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def measured(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("out")
    assert main(["e2e", "--model", str(checkpoint), *SMALL, "--out", str(out)]) == 0
    found: dict[str, Any] = json.loads((out / "e2e.json").read_text())
    return found


def test_a_checkpoint_is_measured_uncut_on_all_engines(measured: dict[str, Any], checkpoint: Path) -> None:
    validate(measured)
    assert [v["name"] for v in measured["variants"]] == ["mine"]
    assert measured["models"][0]["source"] == "checkpoint"
    assert measured["missing"] == []
    assert measured["full_depth"] == []
    assert {c["id"] for c in measured["cells"]} == {"prefill/8", "decode/b2", "mixed"}
    for cell in measured["cells"]:
        assert set(cell["engines"]) == {"eager", "grouped_mm", "moelab"}
        assert {r["baseline"] for r in cell["ratios"]} == {"eager", "grouped_mm"}
        for entry in cell["engines"].values():
            assert 0 < entry["experts"]["share"]["median"] < 1
            assert len(entry["samples"]["seconds"]) == 2
    assert str(checkpoint.parent) not in json.dumps(measured)


def test_the_engines_are_what_they_say_and_right(measured: dict[str, Any]) -> None:
    by_name = {e["name"]: e for e in measured["engines"]}
    assert by_name["moelab"]["isa"] is not None
    assert by_name["eager"]["isa"] is None
    assert measured["library"]["build_id"]
    for engine in measured["variants"][0]["engines"].values():
        assert engine["check"]["passed"]
        assert engine["peak_bytes"] > 0
    # The reference repeats its own bits; another implementation need not.
    assert measured["variants"][0]["engines"]["eager"]["check"]["max_error"] == 0.0
    assert measured["variants"][0]["engines"]["moelab"]["check"]["max_error"] > 0.0


def test_a_checkpoint_in_mxfp4_is_unpacked(tmp_path: Path) -> None:
    """gpt-oss as it is published."""
    mxfp4_checkpoint.save(tmp_path / "quantised")
    assert main(["e2e", "--model", str(tmp_path / "quantised"), *MXFP4, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "e2e.json").read_text())
    validate(found)
    assert found["models"][0]["source"] == "checkpoint, its MXFP4 unpacked to BF16"
    assert all(engine["check"]["passed"] for engine in found["variants"][0]["engines"].values())


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """moelab as an engine that loads checkpoints only, as vLLM does."""
    entry = dataclasses.replace(ENGINES["moelab"], checkpoint=True)
    monkeypatch.setitem(ENGINES, "moelab", entry)


def test_an_engine_that_reads_checkpoints_gets_one(
    reader: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights and unpacked MXFP4 take this way to vLLM: what it reads passes the check of values."""
    mxfp4_checkpoint.save(tmp_path / "quantised")
    saved = []
    save = Run._save
    monkeypatch.setattr(Run, "_save", lambda self, engine, run: (save(self, engine, run), saved.append(run.facts)))
    assert main(["e2e", "--model", str(tmp_path / "quantised"), *MXFP4, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "e2e.json").read_text())
    assert len(saved) == 1
    assert {name for cell in found["cells"] for name in cell["engines"]} == {"eager", "moelab"}


def test_a_full_disk_leaves_those_engines_out(reader: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mxfp4_checkpoint.save(tmp_path / "quantised")
    monkeypatch.setattr(Run, "_free_bytes", lambda self: 300_000_000)
    assert main(["e2e", "--model", str(tmp_path / "quantised"), *MXFP4, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "e2e.json").read_text())
    validate(found)
    assert [set(cell["engines"]) for cell in found["cells"]] == [{"eager"}]
    (missing,) = found["missing"]
    assert (missing["engine"], missing["variant"], missing["kind"]) == ("moelab", "quantised", "skipped")
    assert missing["reason"].startswith("it loads checkpoints only, and writing this one needs 0.5 GB of disk; 0.3 GB")
    assert str(tmp_path) not in json.dumps(found)


def test_saved_models_give_way_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk holds one of them."""
    run = Run(Plan(), tmp_path, Progress(budget=1.0))
    first, second = (
        VariantRun(models.Variant("qwen3-30b-a3b", depth), {"bytes": depth * 10**9, "unpacked": False})
        for depth in (1, 2)
    )
    run.outcome.runs += [first, second]
    run._checkpoint(first).mkdir()
    free = {True: 2 * 10**9, False: 3 * 10**9}  # with the first on disk, and without
    monkeypatch.setattr(Run, "_free_bytes", lambda self: free[self._checkpoint(first).exists()])
    monkeypatch.setitem(ENGINES, "vllm", dataclasses.replace(ENGINES["vllm"], missing=lambda: None))
    assert run._has_to_save(second, ["eager", "vllm"])
    assert not run._checkpoint(first).exists()
    assert run._has_to_save(first, ["vllm"])  # anew
    assert not run._has_to_save(first, ["eager"])
    assert run.outcome.missing == []


def test_what_is_printed_names_speed_ratio_and_memory() -> None:
    lines = text.summary(e2e_result.build()).splitlines()
    assert any(line.split()[:3] == ["qwen3-30b-a3b/2L", "decode/b1", "moelab"] for line in lines)
    assert any(line.split() == ["qwen3-30b-a3b/2L", "moelab", "2.15", "GB", "1.07", "GB"] for line in lines)


def test_a_wrong_engine_fails_the_run(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every token goes to the experts next to the chosen ones."""
    module = "wrong_engine_for_tests"
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setitem(ENGINES, "moelab", Entry("transformers", module, ("eager",)))
    options = ["--engine", "moelab", "--decode", "1", "--prefill", "8", "--no-mixed", *SMALL[4:]]
    assert main(["e2e", "--model", str(checkpoint), *options, "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "moelab mine: failed: wrong outputs: log-probabilities are" in printed.out
    assert "nothing was measured" in printed.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "no-such"], "--model no-such: not one of gpt-oss-20b"),
        (["--engine", "ggml"], "--engine ggml: unknown; known: eager"),
        (["--layers", "0"], "--layers 0: qwen3-30b-a3b has 1 to 48 layers"),
        (["--layers", "2,2"], "--layers 2,2: must name at least one, each once"),
        (["--decode", "0"], "--decode 0: takes numbers from 1 up"),
        (["--threads", "100000"], "threads is 100000"),
        (["--processes", "0"], "--processes 0: must be at least 1"),
        (["--prefill", "", "--decode", "", "--no-mixed"], "leave nothing to measure"),
    ],
)
def test_wrong_options_get_a_sentence(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "qwen3-30b-a3b"] if "--model" not in options else []
    assert main(["e2e", *given, *options]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "its weights are quantised (fp8); give a checkpoint in BF16",
        ),
        (None, "holds no config.json"),
    ],
)
def test_other_checkpoints_are_refused(
    checkpoint: Path, change: dict[str, Any] | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if change is not None:
        config = json.loads((checkpoint / "config.json").read_text()) | change
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["e2e", "--model", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_model_without_experts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    assert main(["e2e", "--model", str(tmp_path)]) == 2
    assert "LlamaConfig has no experts, nothing to compare" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"transformers": "5.24.0"}, "torch is not installed"),
        ({"torch": "2.13.0"}, "transformers is not installed"),
        ({"torch": "2.13.0", "transformers": "4.57.1"}, "transformers 4.57.1 is too old"),
    ],
)
def test_missing_packages_get_a_sentence(
    versions: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(command.metadata, "version", version)
    assert main(["e2e"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", models.SHAPES)
def test_shapes_are_those_of_the_layers_measured_by_bench(name: str) -> None:
    from moelab.workloads import LAYERS

    known, layer = models.facts(models.Variant(name, 2)), LAYERS[name]
    assert (known["experts"], known["topk"]) == (layer.num_experts, layer.topk)
    assert (known["hidden"], known["intermediate"]) == (layer.hidden, layer.intermediate)
    deeper = models.facts(models.Variant(name, 3))
    # A layer is its experts, which bench measures, and little else.
    assert 1.0 < 2 * (deeper["parameters"] - known["parameters"]) / layer.weight_bytes < 1.1


@pytest.mark.parametrize("name", models.SHAPES)
def test_random_weights_follow_from_the_seed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"hidden_size": 64, "vocab_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    small |= {"intermediate_size": 32, "num_local_experts": 8, "num_experts": 8, "moe_intermediate_size": 32}
    shape = models.SHAPES[name]
    if name == "gpt-oss-20b":
        small.pop("num_experts")
    settings = {**shape.settings, **small}
    settings.pop("num_global_key_value_heads", None)
    monkeypatch.setitem(models.SHAPES, name, models.Shape(shape.model, shape.config, shape.layers, settings))
    first, again, other = (models.make(models.Variant(name, 2, seed=seed), "eager") for seed in (1, 1, 2))
    weights = [dict(m.named_parameters()) for m in (first, again, other)]
    for key, weight in weights[0].items():
        assert weight.isfinite().all()
        assert torch.equal(weight, weights[1][key])
        if weight.dim() >= 2:
            assert not torch.equal(weight, weights[2][key])
            assert float(weight.float().std()) == pytest.approx(0.02, rel=0.2)
    ids = torch.arange(8)[None]
    assert torch.equal(first(input_ids=ids).logits, again(input_ids=ids).logits)
    assert float(first(input_ids=ids).logits.detach().std()) > 1e-3


def test_the_result_that_readers_are_tested_with_follows_the_schema() -> None:
    validate(e2e_result.build())
