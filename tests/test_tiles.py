"""`bench --tile`: the order of neon_bf16's main loop, for our processes alone, kept in results, refused elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moelab import options, tiles
from moelab.backends.moelab_backend import Moelab
from moelab.cli import main
from moelab.contenders import contenders_of
from moelab.plan import Plan


def plan_of(**given: object) -> Plan:
    return options.plan_of({"threads": 1, **given}.get)


@pytest.fixture
def on_neon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "chosen_isa", lambda: "neon_bf16")


@pytest.mark.usefixtures("on_neon")
def test_our_processes_are_started_with_the_order_and_no_other_is() -> None:
    plan = plan_of(tile="12x8-rows", backend=("moelab", "torch_loop"))
    settings = {
        label: state.facts.backend.process_settings(1).get(tiles.VARIABLE)
        for label, state in contenders_of(plan, separate_copy=True).items()
    }
    assert settings == {"moelab": "12x8-rows", "torch_loop": None, "moelab#2": "12x8-rows"}


@pytest.mark.usefixtures("on_neon")
def test_the_order_is_part_of_the_run_and_of_the_command_that_repeats_it() -> None:
    given: dict[str, Any] = {"tile": "12x8-swapped", "threads": 1}
    plan = options.plan_of(given.get)
    assert plan.as_dict()["tile"] == "12x8-swapped"
    assert options.arguments_of(given.get)[-2:] == ["--tile", "12x8-swapped"]
    assert plan_of().as_dict()["tile"] is None


def test_the_worker_says_which_order_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tiles.VARIABLE, "12x8-rows")
    assert tiles.in_use("neon_bf16") == "12x8-rows"
    assert tiles.in_use("avx512_bf16") is None
    monkeypatch.setenv(tiles.VARIABLE, "13x7")  # the kernels know no such order and take their own
    assert tiles.in_use("neon_bf16") == "12x8"
    monkeypatch.delenv(tiles.VARIABLE)
    assert tiles.in_use("neon_bf16") == "12x8"


def test_a_result_names_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Moelab("neon_bf16")
    monkeypatch.setenv(tiles.VARIABLE, "12x8-swapped")
    assert backend.describe()["tile"] == "12x8-swapped"


@pytest.mark.usefixtures("on_neon")
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"tile": "8x8"}, "tile '8x8' is unknown; known: 12x8, 12x8-rows, 12x8-swapped"),
        ({"tile": "12x8", "backend": ("torch_loop",)}, "is for our kernels, and none of torch_loop is one"),
        ({"tile": "12x8", "backend": ("moelab:neon",)}, "is an order of neon_bf16; moelab:neon runs neon"),
    ],
)
def test_what_it_cannot_set_is_refused(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        plan_of(**given)


def test_another_instruction_set_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOELAB_ISA", "scalar")
    assert main(["bench", "--tile", "12x8-rows", "--threads", "1"]) == 2
    assert "tile '12x8-rows' is an order of neon_bf16; moelab runs scalar on this machine" in capsys.readouterr().err


def test_the_names_are_those_that_the_kernels_read() -> None:
    source = (Path(__file__).parents[1] / "kernels/src/isa/neon_bf16.cpp").read_text()
    assert f'std::getenv("{tiles.VARIABLE}")' in source
    for name in tiles.NAMES[1:]:
        assert f'std::strcmp(name, "{name}")' in source
