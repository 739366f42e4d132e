"""The command line: help everywhere, tables, and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moelab import options
from moelab.cli import main
from moelab.plan import Plan
from moelab.workloads import LAYERS

COMMANDS = ("bench", "report", "compare", "reproduce", "machine", "workloads", "backends")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert "usage: moelab" in capsys.readouterr().out


def test_bench_has_the_options_of_the_design(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    text = capsys.readouterr().out
    for name in ("workload", "tokens", "backend", "threads", "routing", "cache", "quick", "seed", "out", "expect"):
        assert f"--{name}" in text


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["dance"])
    assert end.value.code == 2
    assert "dance" in capsys.readouterr().err


def test_workloads_lists_every_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in LAYERS)


def test_backends_lists_every_backend_with_a_reason_or_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    from moelab import backends

    assert main(["backends"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(backends.NAMES)
    assert all(len(line.split()) > 2 for line in lines)


def test_machine_prints_facts_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine"]) == 0
    assert "CPU" in capsys.readouterr().out
    assert main(["machine", "--json"]) == 0
    assert "machine_id" in json.loads(capsys.readouterr().out)


def test_machine_keeps_a_contract_by_its_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "--expect", "cpu=pentium"]) == 1
    assert "not as expected: cpu=pentium" in capsys.readouterr().err
    assert main(["machine", "--expect", "what"]) == 2


def test_report_of_no_result_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "x.json").write_text("no json")
    assert main(["report", str(tmp_path / "x.json"), "--out", str(tmp_path / "out")]) == 2
    assert "x.json" in capsys.readouterr().err


# ---- options --------------------------------------------------------------------------------------------------------


def plan(**given: object) -> Plan:
    return options.plan_of(given.get)


def test_defaults_are_those_of_the_design() -> None:
    default = plan()
    assert default.workloads == ("gpt-oss-20b", "gemma-4-26b-a4b", "qwen3-30b-a3b")
    assert default.tokens == (1, 4, 16, 64, 256, 1024)
    assert default.backends == ("moelab", "torch_loop", "torch_grouped_mm")
    assert default.baseline == "torch_loop"
    assert default.cache == "cold"
    assert default.labels == {**{name: name for name in default.backends}, "moelab#2": "moelab"}


def test_quick_cuts_cost_alone() -> None:
    quick, default = plan(quick=True), plan()
    assert quick.budget < 180 < default.budget < 900
    assert quick.processes >= 2, "one process cannot tell differences between processes"
    assert (quick.workloads, quick.seed) == (default.workloads, default.seed)
    assert set(quick.tokens) < set(default.tokens)
    assert plan(quick=True, tokens=(4, 64)).tokens == (4, 64)
    assert plan(quick=True, processes=3).processes == 3


def test_without_the_usual_baseline_a_peer_takes_its_place() -> None:
    assert plan(backend=("moelab", "vllm")).baseline == "vllm"
    assert plan(backend=("moelab:scalar", "moelab")).baseline == "moelab:scalar"


def test_arguments_give_the_same_plan_again() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    options.add_to(parser.add_argument)
    first = parser.parse_args(["--workload", "tiny,mixtral-8x7b/E4", "--tokens", "1,9", "--quick", "--seed", "3"])
    again = parser.parse_args(options.arguments_of(vars(first).get))
    assert vars(first) == vars(again)
    assert options.plan_of(vars(first).get) == options.plan_of(vars(again).get)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"workload": ("gpt-6",)}, "gpt-6"),
        ({"backend": ("cuda",)}, "cuda"),
        ({"tokens": (0,)}, "at least 1"),
        ({"tokens": (4, 4)}, "each once"),
        ({"threads": 0}, "threads"),
        ({"threads": 100000}, "100000"),
        ({"processes": 0}, "processes"),
        ({"routing": ("zigzag",)}, "zigzag"),
        ({"backend": ("missing.py:Thing",)}, "missing.py"),
        ({"backend": ("moelab@base",)}, "moelab@base"),
        ({"backend": ("moelab@base=/nowhere",)}, "moelab_kernels"),
    ],
)
def test_wrong_options_name_what_is_wrong(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        plan(**given)
