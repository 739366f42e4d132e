"""The page of whole models: what it says agrees with the file, losses and extrapolation are plain."""

from __future__ import annotations

import copy
import csv
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import synthetic_model_runs as invented
import synthetic_result
from moelab.report import ReportError, ReportPaths, write_report
from test_report import DAMAGE, HOSTILE, Page, get, leaves, put

Document = dict[str, Any]
FILE = "from-layer-to-model.html"


@pytest.fixture
def runs() -> Document:
    return invented.build()


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., ReportPaths]:
    def make(*documents: object, most_figures: int = 0) -> ReportPaths:
        paths = []
        for number, content in enumerate(documents):
            paths.append(tmp_path / f"result-{number}.json")
            paths[-1].write_text(json.dumps(content))
        return write_report(paths, tmp_path / "out", most_figures=most_figures)

    return make


def words(paths: ReportPaths) -> str:
    return Page(paths.html.parent / FILE).words


def test_every_rate_and_ratio_of_the_file_is_on_the_page(runs: Document, report: Callable[..., ReportPaths]) -> None:
    paths = report(runs)
    text = words(paths)
    for cell in (*runs["cells"], *runs["full_depth"]):
        for r in cell["ratios"]:
            assert f"{r['value']:.2f}x {r['low']:.2f}–{r['high']:.2f}, faster" in text
    rows = list(csv.DictReader(next((paths.html.parent / "data").glob("model-rates-*.csv")).read_text().splitlines()))
    assert len(rows) == 3 * (len(runs["cells"]) + len(runs["full_depth"]))
    by_hand = 512 / (0.020 + 2 * (0.040 + 0.080))  # tokens over fixed + 2 layers
    (row,) = [r for r in rows if (r["run"], r["layers"], r["engine"]) == ("prefill/512", "2", "moelab")]
    assert float(row["tokens_per_second"]) == pytest.approx(by_hand)


def test_what_is_extrapolated_is_never_shown_as_measured(runs: Document, report: Callable[..., ReportPaths]) -> None:
    paths = report(runs)
    text = words(paths)
    assert text.count("extrapolated from 1 and 2 layers, not run") == len(runs["full_depth"])
    for cell in runs["full_depth"]:
        for r in cell["ratios"]:
            assert f"{r['low']:.2f}–{r['high']:.2f}, faster, extrapolated" in text
    brief = paths.markdown.read_text().split("## From layer to model")[1].split("\n## ")[0]
    rows = [line for line in brief.splitlines() if line.startswith("| qwen3")]
    assert len(rows) == 2 * len(runs["full_depth"])
    assert all(re.search(r"\| \*{0,2}[\d.]+x\*{0,2} \([^|]*faster, extrapolated\) \|", row) for row in rows)
    assert all("extrapolated" not in row.split("|")[2] for row in rows)


def test_the_prediction_stands_beside_what_was_measured(runs: Document, report: Callable[..., ReportPaths]) -> None:
    text = words(report(runs))
    # 80 % of 0.4 s halved, by hand: eager at two layers is 0.02 + 2 * 0.2, of which 0.32 in the experts.
    assert "1.62x 1.58–1.65 1.62x 1.57–1.66 1.00x agrees" in text
    assert "explains 12 of 12" in text


def test_a_prediction_that_fails_is_said(runs: Document, report: Callable[..., ReportPaths]) -> None:
    runs["cells"][0]["ratios"][0]["amdahl"].update(explained=False, reason="attention took longer beside it")
    text = words(report(runs))
    assert "explains 11 of 12" in text
    assert "differs attention took longer beside it" in text


def test_losses_of_models_are_said_plainly(runs: Document, report: Callable[..., ReportPaths]) -> None:
    runs["cells"][2]["ratios"][0].update(value=0.8, low=0.78, high=0.82)
    paths = report(runs)
    lost = words(paths).split("Where a model got slower")[2].split("The published claim")[0]
    assert "qwen3-30b-a3b, decode/b8 1 layer moelab over eager 0.80x 0.78–0.82, slower" in lost
    assert "1 slower" in paths.markdown.read_text()


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.03, 1.2, "faster"), (0.8, 0.97, "slower"), (0.99, 1.01, "same"), (0.9, 1.1, "undecided"),
     (1.01, 1.2, "undecided")],
)  # fmt: skip
def test_verdict_from_the_interval_and_the_margin(
    runs: Document, report: Callable[..., ReportPaths], low: float, high: float, verdict: str
) -> None:
    runs["cells"][0]["ratios"][0].update(value=1.0, low=low, high=high)
    assert f"1.00x {low:.2f}–{high:.2f}, {verdict}" in words(report(runs))


def test_wrong_logits_are_broken_runs(runs: Document, report: Callable[..., ReportPaths]) -> None:
    bad = copy.deepcopy(runs["variants"][0]["engines"]["moelab"]["check"])
    bad.update(passed=False, failure="position 3 is 9 times its bound away")
    runs["variants"][0]["engines"]["moelab"]["check"] = bad
    paths = report(runs)
    assert paths.broken == 1
    assert "qwen3-30b-a3b/1L, moelab: position 3 is 9 times its bound away" in Page(paths.html).words


@pytest.mark.parametrize("synthetic", [True, False])
def test_the_claim_stands_beside_measured_models_only(report: Callable[..., ReportPaths], synthetic: bool) -> None:
    runs = {**invented.build("gpt-oss-20b"), "synthetic": synthetic}
    text = report(runs).markdown.read_text().split("## The published claim")
    claim = words_of_claim(text)
    assert "2.1x" in claim
    assert ("whole model, 2 layers, mixed run" in claim) is not synthetic
    assert ("whole model, all 48 layers, extrapolated, mixed run" in claim) is not synthetic


def words_of_claim(parts: list[str]) -> str:
    assert len(parts) == 2
    return parts[1].split("\n## ")[0]


def test_layers_and_models_in_one_report(runs: Document, report: Callable[..., ReportPaths]) -> None:
    paths = report(synthetic_result.build(workloads=("qwen3-30b-a3b",)), runs)
    front = Page(paths.html).words
    assert "whole models (qwen3-30b-a3b, cut to few layers)" in front
    assert "vllm is not installed" in front
    assert len(list((paths.html.parent / "machines").iterdir())) == 1, "one machine, one page"
    assert len(list((paths.html.parent / "results").iterdir())) == 2


def test_a_report_of_models_alone_has_every_figure(runs: Document, report: Callable[..., ReportPaths]) -> None:
    folder = report(runs, most_figures=20).html.parent
    kinds = sorted(path.name.split("-")[1] for path in (folder / "figures").glob("*.svg"))
    assert kinds == ["rates", "share", "speed", "speed"]
    for path in (folder / "figures").glob("*.svg"):
        assert "n = 3 runs per point" in path.read_text()
        assert "Repeat: nox -s e2e" in path.read_text()


def test_newer_runs_of_a_model_replace_older_ones(runs: Document, report: Callable[..., ReportPaths]) -> None:
    newer = copy.deepcopy(runs)
    newer["run"]["started"] = "2001-01-01T00:00:00+00:00"
    for cell in newer["cells"]:
        cell["ratios"][0].update(value=1.11, low=1.1, high=1.12)
    text = words(report(newer, runs))
    assert "1.11x 1.10–1.12, faster" in text
    assert f"{runs['cells'][0]['ratios'][0]['value']:.2f}x" not in text.split("tokens per second and speed")[1][:900]


def test_a_checkpoint_at_its_own_depth(runs: Document, report: Callable[..., ReportPaths]) -> None:
    runs["full_depth"] = []
    runs["models"][0].update(source="checkpoint", layers=2)
    text = words(report(runs))
    assert "extrapolated" not in text.split("Speed over the loop")[1]
    assert "cut to few layers" not in text


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:16]))
def test_hostile_text_stays_text(runs: Document, report: Callable[..., ReportPaths], tmp_path: Path, text: str) -> None:
    for path in leaves(runs):
        if isinstance(get(runs, path), str):
            put(runs, path, text)
    runs["variants"][0]["engines"][text] = runs["variants"][0]["engines"].pop("moelab")
    runs["cells"][0]["engines"][text] = runs["cells"][0]["engines"].pop("moelab")
    folder = report(runs).html.parent
    for file in folder.rglob("*.html"):
        page = Page(file)
        assert not {tag for tag, _ in page.tags} & {"img", "iframe", "object"}
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
        assert "alert(1)" not in "".join(value for _, a in page.tags if "src" in a for value in a.values())
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")} == {"out", "result-0.json"}


@pytest.mark.parametrize("seed", range(14))
def test_damaged_files_make_a_report_or_a_clear_error(
    runs: Document, report: Callable[..., ReportPaths], seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(rng.choice((1, 10, 100))):
        path = rng.choice(list(leaves(runs)) or [("cells",)])
        put(runs, path[: len(path) - rng.choice((0, 0, 1))] or path, copy.deepcopy(rng.choice(DAMAGE)))
    try:
        paths = report(runs, most_figures=4 if seed % 5 == 0 else 0)
    except ReportError as error:
        assert "result-0.json" in str(error)  # noqa: PT017
    else:
        assert Page(paths.html).text


def test_a_file_without_runs_is_refused(runs: Document, report: Callable[..., ReportPaths]) -> None:
    with pytest.raises(ReportError, match="no timed run of a model"):
        report({**runs, "cells": [], "full_depth": []})
