"""Series and steps over made-up histories."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import synthetic_result
from moelab import history, statistics
from moelab.cli import main
from moelab.history import Point, Series

pytest.importorskip("ruptures")


@pytest.fixture(autouse=True, scope="module")
def _fewer_resamples() -> Iterator[None]:
    """What is tested here does not hang on the last digits of an interval's ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 500)
        yield


def series(values: list[float], noise: float = 0.01) -> Series:
    points = tuple(
        Point(f"2026-01-{i + 1:02d}", f"commit{i}", f"{i}.json", v, v * (1 - 2 * noise), v * (1 + 2 * noise))
        for i, v in enumerate(values)
    )
    return Series("cpu", "case", "moelab", (), points)


def noisy(rng: np.random.Generator, *levels: float) -> list[float]:
    """Ten results at each level, 1 % noise."""
    return [float(level * rng.lognormal(0, 0.01)) for level in levels for _ in range(10)]


def test_a_step_is_found_where_it_is() -> None:
    rng = np.random.default_rng(0)
    found = history.steps(series(noisy(rng, 2.0, 1.8)))
    assert [step.point.commit for step in found] == ["commit10"]
    assert found[0].before == pytest.approx(2.0, rel=0.01)
    assert found[0].after == pytest.approx(1.8, rel=0.01)


def test_two_steps() -> None:
    rng = np.random.default_rng(1)
    assert [s.point.commit for s in history.steps(series(noisy(rng, 1.5, 2.0, 1.5)))] == ["commit10", "commit20"]


def test_noise_alone_has_steps_in_few_histories() -> None:
    rng = np.random.default_rng(2)
    false = sum(bool(history.steps(series(noisy(rng, 2.0, 2.0)))) for _ in range(100))
    assert false <= 15


def test_a_single_outlier_is_no_step() -> None:
    rng = np.random.default_rng(3)
    values = noisy(rng, 2.0, 2.0)
    values[7] = 1.0
    assert history.steps(series(values)) == []


def test_a_short_history_says_nothing() -> None:
    assert history.steps(series([2.0, 1.0, 1.0])) == []


def test_files_become_series_by_cpu_and_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(json.dumps(synthetic_result.build(0, workloads=("qwen3-30b-a3b",))))
    for number in range(4):
        one = copy.deepcopy(document)
        one["moelab"]["run"]["started"] = f"2026-01-0{number + 1}"
        if number == 3:
            one["machine_info"]["moelab"]["cpu"]["part"] = "Other 1/2/3"
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "result.json").write_text(json.dumps(one))
    found = history.series_of(tmp_path.rglob("*.json"))
    assert {(s.cpu, len(s.points)) for s in found} == {("Synthetic 0/0/0", 3), ("Other 1/2/3", 1)}
    assert main(["history", str(tmp_path)]) == 0
    assert "Other 1/2/3" in capsys.readouterr().out
    (tmp_path / "bad.json").write_text("{}")
    assert main(["history", str(tmp_path)]) == 2
    shutil.rmtree(tmp_path / "0")
