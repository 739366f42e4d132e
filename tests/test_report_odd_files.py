"""Result files that nobody expects but somebody has: very many backends, every number of tokens, foreign scripts."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import synthetic_result
from moelab.report import ReportError, ReportPaths, write_report
from moelab.report.figures import canvas
from moelab.report.figures.axes import mark_what_goes_on
from moelab.report.text import clean
from synthetic_result import with_backends, with_tokens

Document = dict[str, Any]
Report = Callable[..., ReportPaths]
WORKLOAD = "qwen3-30b-a3b"
EVERYTHING = 60  # more figures than one small file has


@pytest.fixture(scope="module")
def built() -> str:
    return json.dumps(synthetic_result.build(workloads=(WORKLOAD,)))


@pytest.fixture
def document(built: str) -> Document:
    """Two numbers of tokens."""
    found = dict(json.loads(built))
    found["benchmarks"] = [e for e in found["benchmarks"] if e["extra_info"]["case"]["tokens"] in (1, 256)]
    return found


@pytest.fixture
def report(tmp_path: Path) -> Report:
    def make(*documents: Document, most_figures: int = EVERYTHING) -> ReportPaths:
        paths = []
        for number, content in enumerate(documents):
            paths.append(tmp_path / f"result-{number}.json")
            paths[-1].write_text(json.dumps(content))
        return write_report(paths, tmp_path / "out", most_figures=most_figures)

    return make


def kinds(paths: ReportPaths) -> set[str]:
    return {path.name.split("-")[0] for path in (paths.html.parent / "figures").glob("*.svg")}


USUAL = {"control", "latency", "packing", "percent", "ratios", "roofline", "speedup"}


def test_many_backends_of_long_names_are_drawn(document: Document, report: Report) -> None:
    names = [f"{number:02d} {'of a name without an end ' * 5}" for number in range(40)]
    assert kinds(report(with_backends(document, names))) == USUAL


def test_every_number_of_tokens_is_drawn(document: Document, report: Report) -> None:
    assert kinds(report(with_tokens(document, list(range(1, 65))))) == USUAL - {"control"}


def test_names_in_any_script_are_drawn(document: Document, report: Report) -> None:
    document["machine_info"]["moelab"]["cpu"]["name"] = "飞腾 FTC870 معالج"
    for entry in document["benchmarks"]:
        entry["extra_info"]["case"]["workload"] = "千问3"
    paths = report(document)
    assert kinds(paths) == USUAL
    picture = next((paths.html.parent / "figures").glob("latency-*.svg"))
    assert "千问3" in picture.read_text()


@pytest.mark.parametrize("number", [1, 5, 9, 21, 48])
@pytest.mark.parametrize("name", ["peer", "WWWWWWWWWWWWW", "W" * 200, "iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiii"])
def test_a_legend_has_its_room_and_no_more(number: int, name: str) -> None:
    with canvas.style():
        figure, (axes,) = canvas.new_figure(3)
        lines = [axes.plot([0, 1], [0, place])[0] for place in range(number)]
        canvas.legend_above(figure, lines, [f"{place}{name}" for place in range(number)])
        canvas.set_title(figure, "A title")
        FigureCanvasAgg(figure).draw()
        (legend,), (title,) = figure.legends, figure.texts
        box, plot = legend.get_window_extent(), axes.get_tightbbox()
        assert plot is not None
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= title.get_window_extent().y0 + 0.03 * figure.dpi
        assert 0 <= box.y0 - plot.y1 <= 0.15 * figure.dpi


def test_intervals_that_leave_a_figure_are_marked_at_its_edge() -> None:
    figure, (axes,) = canvas.new_figure(3)
    axes.set_ylim(1, 2)
    mark_what_goes_on(axes, [(0, 1.2, 1.5), (1, 0.5, 1.5), (2, 1.2, 9), (3, 0.1, 9)])
    found = {(line.get_xdata()[0], line.get_ydata()[0], line.get_marker()) for line in axes.lines}
    assert found == {(1, 1, "v"), (2, 2, "^"), (3, 2, "^"), (3, 1, "v")}
    (axes,) = figure.subplots(1, 1, squeeze=False)[0]
    axes.set_xlim(1, 2)
    mark_what_goes_on(axes, [(5, 1.2, 1.5), (6, 0.5, 9)], across=True)
    found = {(line.get_xdata()[0], line.get_ydata()[0], line.get_marker()) for line in axes.lines}
    assert found == {(1, 6, "<"), (2, 6, ">")}


def test_names_of_cases_may_hold_colons(document: Document, report: Report) -> None:
    document["moelab"]["cells"][0]["case"] = "my layer: odd/t1"
    document["moelab"]["conditions"] = [
        "my layer: odd/t1: the rate varied by 9%",
        "the run was interrupted; measured before that: a/t1, a/t4",
    ]
    text = report(document, most_figures=0).markdown.read_text()
    assert "json: the rate varied by 9%; the run was interrupted; measured before that: a/t1, a/t4\n" in text


def test_ours_as_the_baseline(document: Document, report: Report) -> None:
    for entry in document["benchmarks"]:
        info = entry["extra_info"]
        label = info["backend"]["label"]
        info["backend"]["role"] = {"moelab": "baseline", "moelab#2": "control"}.get(label, "candidate")
        if label == "moelab":
            info.update(ratio=None, verdict=None)
        elif info["ratio"]:
            info["ratio"]["baseline"] = "moelab"
    for cell in document["moelab"]["cells"]:
        cell["baseline"] = "moelab"
    paths = report(document)
    assert "speedup" in kinds(paths)
    assert "compared with no other backend" not in paths.markdown.read_text()


def test_where_all_is_broken_nothing_is_claimed(document: Document, report: Report) -> None:
    for entry in document["benchmarks"]:
        entry["extra_info"]["roofline"].update(broken=True, reason="above the roof")
        if entry["extra_info"]["verdict"]:
            entry["extra_info"]["verdict"].update(table="broken", alone="broken")
    text = report(document).markdown.read_text()
    assert "every comparison is broken" in text
    assert "no other backend" not in text


@pytest.mark.parametrize("hidden", ["\u200b", "\u00ad", "\u2060", "\ufeff", "\U000e0041", "\u202e", "\x00"])
def test_a_name_that_only_looks_like_another_shows_it(hidden: str) -> None:
    assert clean(f"moe{hidden}lab") == "moe\ufffdlab"


def test_pipes_folders_and_nothing_are_named_not_waited_for(document: Document, tmp_path: Path) -> None:
    good = tmp_path / "good.json"
    good.write_text(json.dumps(document))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReportError, match=r"pipe: not a regular file"):
        write_report([tmp_path / "pipe"], tmp_path / "out")
    paths = [good, tmp_path / "pipe", tmp_path, tmp_path / "nothing.json"]
    text = write_report(paths, tmp_path / "out", most_figures=0).markdown.read_text()
    assert "3 files not used" in text
    assert "nothing.json: no file" in text


def calls(make: Callable[[], object]) -> int:
    """Calls of functions while `make` runs: the same on every machine, however busy."""
    made = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        make()
    finally:
        sys.setprofile(before)
    return made


def test_twice_the_files_is_twice_the_work(document: Document, tmp_path: Path) -> None:
    """Of the same machine and of as many machines, superseded cells and disturbed runs among them."""
    document["moelab"]["missing"] = document["moelab"]["missing"][:1]
    paths = []
    for number in range(48):
        document["machine_info"]["moelab"]["machine_id"] = f"{number // 2:012x}"
        document["moelab"]["run"].update(seed=number, started=f"2001-01-01T00:00:{number:02d}+00:00")
        paths.append(tmp_path / f"result-{number}.json")
        paths[-1].write_text(json.dumps(document))
    write_report(paths[:2], tmp_path / "out", most_figures=0)  # imports, compiled templates
    work = [
        calls(lambda n=n: write_report(paths[:n], tmp_path / "out", most_figures=0))
        for n in (12, 24, 48)  # type: ignore[misc]
    ]
    assert (work[2] - work[1]) / (work[1] - work[0]) == pytest.approx(2, abs=0.25), work


def test_the_front_page_names_the_command_that_repeats_it(document: Document, report: Report) -> None:
    document["moelab"]["run"]["command"] = ["nox", "-s", "bench", "--", "--workload", "a b"]
    paths = report(document, most_figures=0)
    html = paths.html.read_text()
    assert "<code>nox -s bench -- --workload &#39;a b&#39;</code>" in html
    assert html.index("<code>nox -s bench") < html.index("Speedup at a glance</h2>")
    assert "`nox -s bench -- --workload 'a b'`" in paths.markdown.read_text().split("## ")[0]


def test_what_was_compared_is_explained(document: Document, report: Report) -> None:
    text = report(with_backends(document, ["mystery"]), most_figures=0).markdown.read_text()
    rows = dict(re.findall(r"^\| (\S+) \| (.*?) \|", text.split("## Who was compared")[1], re.MULTILINE))
    assert rows["vllm"] == "vLLM's fused MoE kernel for CPUs"
    assert rows["mystery"] == "not known to this report"
