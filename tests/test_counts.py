"""The table of instruction counts: what it holds meets the goals, and a count that changed cannot pass."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest

import ci_scripts

script = ci_scripts.load("counts.py", "counts_script")
cases = ci_scripts.load("counts_cases.py", "counts_cases")
table = ci_scripts.load("counts_table.py", "counts_table")
vllm = ci_scripts.load("counts_vllm.py", "counts_vllm")

YARDSTICK = cases.yardstick_case()


@pytest.fixture
def document() -> dict[str, Any]:
    """A copy of the committed table."""
    return copy.deepcopy(table.read(script.TABLE))


def phase(document: dict[str, Any], case: str = YARDSTICK, name: str = "gemm1") -> dict[str, int]:
    counts: dict[str, int] = document["cases"][case]["phases"][name]
    return counts


# The committed table.


def test_the_table_holds_every_case(document: dict[str, Any]) -> None:
    expected = {counted.name(tokens) for counted in cases.LAYERS for tokens in counted.tokens}
    assert set(document["cases"]) == expected
    for counted in cases.LAYERS:
        for tokens in counted.tokens:
            assert document["cases"][counted.name(tokens)]["minimum_bfmmla"] == counted.minimum(tokens)


def test_the_table_meets_the_goals(document: dict[str, Any]) -> None:
    assert table.missed_goals(document, YARDSTICK) == []
    assert table.not_fewer_than_peers(document) == []


def test_vllm_is_counted_in_every_case(document: dict[str, Any]) -> None:
    counted = document["peers"]["vLLM"]["cases"]
    assert set(counted) == set(document["cases"])
    for name, classes in counted.items():  # it computes the same products
        assert table.bfmmla(classes) >= document["cases"][name]["minimum_bfmmla"]


def test_the_markdown_is_the_table(document: dict[str, Any]) -> None:
    assert script.TABLE.with_suffix(".md").read_text() == table.markdown(document)


def test_budgets_add_up_to_the_limit() -> None:
    assert sum(table.YARDSTICK_BUDGET.values()) == pytest.approx(table.YARDSTICK_LIMIT, abs=1e-9)


# What must not pass.


def test_the_same_counts_pass(document: dict[str, Any]) -> None:
    verdict = table.compare(document, copy.deepcopy(document))
    assert (verdict.faults, verdict.notes) == ([], [])


@pytest.mark.parametrize("change", [-1, 1])
def test_one_bfmmla_more_or_less_is_a_fault(document: dict[str, Any], change: int) -> None:
    old = copy.deepcopy(document)
    phase(document)["bfmmla"] += change
    assert any("BFMMLA" in fault and YARDSTICK in fault for fault in table.compare(document, old).faults)


@pytest.mark.parametrize(("change", "faults"), [(0.0009, 0), (0.0011, 1), (-0.0009, 0), (-0.0011, 1)])
def test_a_total_may_differ_by_a_thousandth(document: dict[str, Any], change: float, faults: int) -> None:
    old = copy.deepcopy(document)
    phase(document)["simd_load"] += round(change * table.total(table.whole_call(old["cases"][YARDSTICK])))
    assert len(table.compare(document, old).faults) == faults


def test_another_compiler_is_said_and_only_bfmmla_judged(document: dict[str, Any]) -> None:
    old = copy.deepcopy(document)
    document["versions"]["compiler"] = "another one 13.2"
    phase(document)["int_alu"] *= 2
    verdict = table.compare(document, old)
    assert verdict.faults == []
    assert "another one 13.2" in verdict.notes[0]
    assert any(YARDSTICK in note for note in verdict.notes)
    phase(document)["bfmmla"] += 1
    assert len(table.compare(document, old).faults) == 1


def test_another_emulator_is_said_and_everything_judged(document: dict[str, Any]) -> None:
    old = copy.deepcopy(document)
    document["versions"]["emulator"] = "another one 10.0"
    assert "another one 10.0" in table.compare(document, old).notes[0]
    phase(document)["int_alu"] *= 2
    assert len(table.compare(document, old).faults) == 1


def test_an_unknown_case_and_another_routing_are_faults(document: dict[str, Any]) -> None:
    old = copy.deepcopy(document)
    del old["cases"][YARDSTICK]
    other = next(iter(old["cases"]))
    old["cases"][other]["minimum_bfmmla"] += 2
    faults = table.compare(document, old).faults
    assert any("not in the table" in fault for fault in faults)
    assert any("another routing" in fault for fault in faults)


def test_goals_can_be_missed(document: dict[str, Any]) -> None:
    minimum = document["cases"][YARDSTICK]["minimum_bfmmla"]
    phase(document, name="combine")["int_alu"] += minimum // 20
    missed = table.missed_goals(document, YARDSTICK)
    assert any("instructions per minimum" in text for text in missed)
    assert any("combine" in text for text in missed)
    phase(document)["bfmmla"] += minimum // 40
    assert any("1.025 of the minimum" in text for text in table.missed_goals(document, YARDSTICK))
    phase(document)["bfmmla"] = 0
    assert any("fewer than the minimum" in text for text in table.missed_goals(document, YARDSTICK))


def test_a_peer_with_as_few_instructions_is_found(document: dict[str, Any]) -> None:
    ours = table.total(table.whole_call(document["cases"][YARDSTICK]))
    document["peers"] = {"peer": {"versions": {}, "note": "", "cases": {YARDSTICK: {"int_alu": ours}}}}
    assert [YARDSTICK in text for text in table.not_fewer_than_peers(document)] == [True]
    document["peers"]["peer"]["cases"][YARDSTICK]["int_alu"] += 1
    assert table.not_fewer_than_peers(document) == []


def test_rows_that_are_not_the_counts_are_refused(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    table.write(path, document)
    assert table.read(path) == document
    path.write_text(path.read_text().replace(str(document["rows"][0][1]), "123", 1))
    with pytest.raises(ValueError, match="its rows are not its counts"):
        table.read(path)


# The command, with counts that somebody else has made.


@pytest.mark.parametrize(
    ("alter", "status", "said"),
    [
        (lambda d: None, 0, "cases are as in the table"),
        (lambda d: phase(d).update(bfmmla=phase(d)["bfmmla"] + 2), 1, "CHANGED"),
        (lambda d: phase(d).update(int_alu=phase(d)["int_alu"] * 2), 1, "CHANGED"),
    ],
    ids=["same", "BFMMLA", "total"],
)
def test_the_command_compares(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    alter: Any, status: int, said: str,
) -> None:  # fmt: skip
    counted = {key: document[key] for key in ("versions", "cases")}
    alter(counted)
    for name, result in {"install": None, "build_all": None}.items():
        monkeypatch.setattr(script, name, lambda result=result: result)
    monkeypatch.setattr(script, "count", lambda only: counted)
    assert script.main([]) == status
    assert said in capsys.readouterr().out


# What the numbers are made of.


@pytest.mark.parametrize("rows", [[0], [1], [2, 5], [3, 0, 8]])
def test_minimum_covers_every_product_once(rows: list[int]) -> None:
    hidden, inner = 9, 5

    def blocks(m: int, n: int, k: int) -> int:
        """2 x 2 x 4 blocks that hold a product of an m x k by a k x n matrix."""
        return len({(a // 2, b // 2, c // 4) for a, b, c in itertools.product(range(m), range(n), range(k))})

    expected = sum(blocks(m, 2 * inner, hidden) + blocks(m, hidden, inner) for m in rows)
    assert cases.minimum_bfmmla(rows, hidden, inner) == expected


def test_half_of_the_yardsticks_experts_have_an_odd_number_of_rows() -> None:
    rows = cases.LAYERS[0].rows(64)
    assert sum(rows) == 64 * 2
    assert sum(count % 2 for count in rows) == len(rows) // 2


def test_phases_are_read_between_the_marks() -> None:
    lines = [
        "mark 70 total=9 load=9",  # of a call that is not counted
        "mark 7f total=5 load=5",
        *("mark 70 total=3 load=1 branch=2", "mark 71 total=4 store=4", "mark 72 total=7 bfmmla=7"),
        *("mark 73 total=6 bfmmla=6", "mark 74 total=2 load=2", "mark 7e total=1 branch=1"),
        "mark 7f total=50 load=50",
        # in two chunks
        *("mark 70 total=1 load=1", "mark 71 total=1 load=1", "mark 72 total=1 load=1", "mark 73 total=1 load=1"),
        *("mark 74 total=1 load=1", "mark 70 total=1 load=1", "mark 71 total=1 load=1", "mark 72 total=1 load=1"),
        *("mark 73 total=1 load=1", "mark 74 total=1 load=1", "mark 7e total=1 load=1"),
        "all total=99 load=99",
    ]
    first, second = script.phases_of(lines)
    assert first == {
        "route": {"load": 1, "branch": 2},
        "pack": {"store": 4},
        "gemm1": {"bfmmla": 7},
        "gemm2": {"bfmmla": 6},
        "combine": {"load": 2, "branch": 1},
    }
    assert {name: table.total(counts) for name, counts in second.items()} == {
        "route": 2, "pack": 2, "gemm1": 2, "gemm2": 2, "combine": 3,
    }  # fmt: skip


def test_a_peers_call_is_what_ran_in_its_libraries() -> None:
    maps = "\n".join(
        f"{start:x}-{start + 0x1000:x} r-xp 00000000 fe:00 1 {path}"
        for start, path in (
            (0x1000, "/site/vllm/_C.abi3.so"), (0x2000, "/root/lib/libm.so.6"), (0x3000, "/root/lib/libc.so.6"),
            (0x4000, "/site/torch/lib/libtorch_cpu.so"), (0x5000, "/root/lib/libgomp.so.1.0.0"),
            (0x6000, "/site/torch/_C.cpython-311-aarch64-linux-gnu.so"),
        )
    )  # fmt: skip
    lines = [
        *("mark 7f total=9 load=9", "block 1000 total=9 load=9"),  # before the call
        *("mark 7e total=99 load=99", "block 1004 total=5 bfmmla=4 load=1", "block 1ffc total=2 load=2"),
        *("block 2000 total=3 branch=3", "block 3000 total=7 load=7", "block 4010 total=7 load=7"),
        *("block 5000 total=1 load=1", "block 6000 total=8 load=8"),
        *("mark 7f total=9 load=9", "block 1000 total=9 load=9"),
        *("mark 7e total=9 load=9", "block 1000 total=1 bfmmla=1"),
        "all total=999 load=999",
    ]
    calls = list(vllm._calls(lines, list(vllm._ranges(maps))))
    assert calls == [{"bfmmla": 4, "load": 4, "branch": 3}, {"bfmmla": 1}]
