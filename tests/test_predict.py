"""Predictions for Arm cores: what llvm-mca says is read or refused, sums agree with other sources, labels hold."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ci_scripts import CI, load
from moelab.report.reading import Node
from moelab.report.side_tables import read_side_table

sys.path.insert(0, str(CI))
arm_loops = load("arm_loops.py", "arm_loops")
cores = load("predict_cores.py", "predict_cores")
mca = load("predict_mca.py", "predict_mca")
layers = load("predict_layers.py", "predict_layers")
text = load("predict_text.py", "predict_text")
predict = load("predict.py", "predict")

Json = dict[str, Any]
SAID = """Iterations:        100
Instructions:      11800
Total Cycles:      2415

Cycles with backend pressure increase [ 48.00% ]
Throughput Bottlenecks:
  Resource Pressure       [ 39.49% ]
  - N2UnitV0  [ 39.49% ]
  - N2UnitV1  [ 39.49% ]
  Data Dependencies:      [ 3.30% ]
  - Register Dependencies [ 3.30% ]
  - Memory Dependencies   [ 0.00% ]
"""


@pytest.fixture(scope="module")
def committed() -> Json:
    document: Json = json.loads(predict.RESULT.read_text())
    return document


def test_cycles_and_bottleneck_are_read() -> None:
    assert mca.cycles_of(SAID) == 2415
    assert mca.bottleneck_of(SAID) == "v0 v1 39 %, register dependencies 3 %"


@pytest.mark.parametrize("output", ["", "Total Cycles: many", SAID.replace("Total Cycles:", "Cycles:")])
def test_output_without_cycles_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="no cycles"):
        mca.cycles_of(output)


def test_output_without_an_analysis_is_an_error() -> None:
    with pytest.raises(ValueError, match="no bottleneck analysis"):
        mca.bottleneck_of("Total Cycles:      2415\n")


def test_a_tool_that_fails_is_an_error_in_its_own_words(tmp_path: Path) -> None:
    program = tmp_path / "mca"
    program.write_text("#!/bin/sh\necho 'error: unknown mnemonic' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="unknown mnemonic"):
        mca.simulate(mca.Tool(str(program), "mca 1"), cores.CORES[0], "nonsense", 1)


def test_a_loop_becomes_text_that_an_assembler_takes() -> None:
    loop = arm_loops.Loop("f", (("ld1rqh", "{z0.h}, p0@z, [x9, #-96]"), ("cmp", "x9, x13"), ("b.ne", "40 <f+0x40>")))
    assert mca.assembly(loop) == ".Lturn:\nld1rqh {z0.h}, p0/z, [x9, #-96]\ncmp x9, x13\nb.ne .Lturn\n"


def test_rows_are_cut_into_blocks_as_the_kernels_cut_them() -> None:
    # bfmmla_blocks.h in words: whole tiles of 24 are two blocks of twelve; 14 rows are 8 + 6; three rows are two pairs.
    assert layers.blocks(24) == [6, 6]
    assert layers.blocks(14) == [4, 3]
    assert layers.blocks(3) == [2]
    assert layers.blocks(49) == [6, 6, 6, 6, 1]
    assert all(sum(layers.blocks(rows)) == (rows + 1) // 2 for rows in range(1, 200))


def rates(percent: float = 100.0) -> dict[tuple[str, str, str], Any]:
    """As if every tile ran at this percent of the peak."""
    found = {}
    for core in cores.CORES:
        for kernel in core.kernels:
            width = core.vector_bits // 128 if kernel == "sve_bf16" else 1
            for tile in layers.TILES.get(kernel, {}).values():
                cycles = 96 * width / core.pipes * 100 / percent
                found[core.name, kernel, tile] = mca.Prediction(
                    core.name, kernel, tile, 96, 118, 4, cycles, percent, "none"
                )
    return found


def test_loops_at_the_peak_take_the_time_of_the_roofline() -> None:
    # 48 rows of one expert fill every tile: BFMMLA's 32 FLOP each are exactly 2 x rows x weights.
    layer = layers.Layer("one", 1, 1, 256, 128, "silu")
    core = cores.CORES[1]
    cycles, worst = layers.loop_cycles(layer, [48], core, "neon_bf16", rates())
    assert cycles == pytest.approx(2 * 48 * 3 * 256 * 128 / (core.pipes * 32))
    assert worst == pytest.approx(cycles * core.wide_error)
    assert layers.loop_cycles(layer, [48], core, "neon_bf16", rates(50))[0] == pytest.approx(2 * cycles)


def test_one_token_of_gpt_oss_on_graviton4_is_its_bytes_at_the_measured_bandwidth(committed: Json) -> None:
    # Four of 32 experts of 3 x 2880 x 2880 BF16: 199 MB, at 465 GB/s 428 µs.
    row = next(row for row in committed["rows"] if row[:3] == ["gpt-oss-20b", 1, "Graviton4"])
    assert row[4] == pytest.approx(4 * 3 * 2880 * 2880 * 2 / 465e9 * 1e6, rel=2e-3)


def test_no_prediction_is_faster_than_its_bound(committed: Json) -> None:
    assert len(committed["rows"]) == 3 * 6 * 4
    for row in committed["rows"]:
        fast, slow, bound = row[4:7]
        assert bound <= fast * 1.0001, row
        assert fast <= slow, row


def test_what_is_committed_meets_the_goal_and_says_where_it_does_not(committed: Json) -> None:
    assert predict.unmet_goals(committed) == []
    worse = copy.deepcopy(committed)
    for loop in worse["loops"]:
        if (loop["core"], loop["kernel"], loop["tile"]) == ("neoverse-v2", "neon_bf16", "8x12"):
            loop["percent"] = 95.7
    assert predict.unmet_goals(worse) == ["8x12 on neoverse-v2: 95.7 % of the peak, goal 97.0 %"]
    gone = {**committed, "loops": [loop for loop in committed["loops"] if loop["tile"] != "12x8"]}
    assert len(predict.unmet_goals(gone)) == 2


def test_every_core_has_predictions_and_the_error_of_its_model(committed: Json) -> None:
    assert {loop["core"] for loop in committed["loops"]} == {
        f"neoverse-{name}" for name in ("n1", "n2", "v1", "v2", "v3")
    }
    assert all(core["error"] for core in committed["cores"].values())


def test_a_change_beyond_the_tolerance_is_a_difference(committed: Json) -> None:
    assert predict.differences(committed, committed) == []
    other = copy.deepcopy(committed)
    other["loops"][0]["cycles"] *= 1.001
    assert predict.differences(committed, other) == []
    other["loops"][0]["cycles"] *= 1.02
    assert [line.partition(":")[0] for line in predict.differences(committed, other)] == ["loops[0].cycles"]
    other["loops"].pop()
    assert predict.differences(committed, other)


def test_the_text_is_made_from_the_file(committed: Json) -> None:
    assert predict.TEXT.read_text() == text.markdown(committed)
    assert "Predicted, not measured." in predict.TEXT.read_text()


def test_the_report_takes_it_as_a_prediction(committed: Json) -> None:
    table = read_side_table(Node(committed), "predictions.json", "0" * 64, "")
    assert table.kind == "prediction"
    assert len(table.rows) == len(committed["rows"])
    assert "not measured" in table.about
    assert "benchmarks" not in committed  # what makes a result file of the bench
