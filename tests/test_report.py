"""The report: what it says agrees with the result file, whatever the file holds."""

from __future__ import annotations

import copy
import csv
import itertools
import json
import math
import os
import random
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import synthetic_model_runs
import synthetic_result
from moelab.report import ReportError, ReportPaths, write_report
from moelab.report.load import load
from moelab.report.summary import groups

Document = dict[str, Any]
WORKLOAD = "qwen3-30b-a3b"


@pytest.fixture(scope="session")
def built() -> str:
    """One result document of invented numbers, as JSON text."""
    return json.dumps(synthetic_result.build(workloads=(WORKLOAD,)))


@pytest.fixture
def document(built: str) -> Document:
    """All six numbers of tokens."""
    return dict(json.loads(built))


@pytest.fixture
def small(document: Document) -> Document:
    """Two numbers of tokens, for tests that make many reports."""
    document["benchmarks"] = [e for e in document["benchmarks"] if e["extra_info"]["case"]["tokens"] in (1, 256)]
    return document


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., ReportPaths]:
    def make(*documents: object, most_figures: int = 0) -> ReportPaths:
        paths = []
        for number, content in enumerate(documents):
            path = tmp_path / f"result-{number}.json"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            paths.append(path)
        return write_report(paths, tmp_path / "out", most_figures=most_figures)

    return make


PHASES = {"route": 1e-5, "pack": 2e-5, "gemm1": 6e-4, "gemm2": 3e-4, "combine": 5e-5}


@pytest.fixture(scope="session")
def whole(built: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report with every kind of figure: two numbers of threads, calls split into phases."""
    folder = tmp_path_factory.mktemp("whole")
    paths = []
    for threads in (1, 2):
        content = json.loads(built)
        content["benchmarks"] = [
            e for e in content["benchmarks"] if threads == 2 or e["extra_info"]["case"]["tokens"] in (1, 256)
        ]
        for entry in content["benchmarks"]:
            entry["extra_info"]["setting"]["threads"] = threads
            if entry["extra_info"]["backend"]["label"] == "moelab":
                entry["extra_info"]["phases"] = PHASES
        paths.append(folder / f"threads-{threads}.json")
        paths[-1].write_text(json.dumps(content))
    return write_report(paths, folder / "out").html.parent


class Page(HTMLParser):
    """Tags, attributes and visible text of one HTML file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._hidden = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._hidden += tag in ("style", "svg", "script")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "svg", "script")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def pages(folder: Path) -> list[Page]:
    return [Page(path) for path in sorted(folder.rglob("*.html"))]


def entries(document: Document, backend: str) -> list[Document]:
    return [e for e in document["benchmarks"] if e["extra_info"]["backend"]["label"] == backend]


# ---- what it says -------------------------------------------------------------------------------------------------
def test_geometric_mean_is_that_of_the_file(document: Document, report: Callable[..., ReportPaths]) -> None:
    (row,) = [row for row in document["moelab"]["geomeans"] if row["backend"] == "moelab"]
    text = report(document).markdown.read_text()
    assert f"at {row['value']:.2f}x the speed of torch\\_loop" in text
    assert f"| torch\\_loop | {row['value']:.2f}x" in text


def test_every_ratio_of_the_file_is_in_the_report(document: Document, report: Callable[..., ReportPaths]) -> None:
    paths = report(document)
    words = Page(paths.html).words
    for entry in entries(document, "moelab"):
        ratio = entry["extra_info"]["ratio"]
        verdict = entry["extra_info"]["verdict"]["table"]
        shown = f"{ratio['value']:.2f}x {ratio['low']:.2f}–{ratio['high']:.2f}, {verdict}"
        assert shown in words


def test_peers_are_compared_from_the_samples_where_the_file_did_not(
    document: Document, report: Callable[..., ReportPaths]
) -> None:
    """An independent median of paired ratios against what the table shows."""
    folder = report(document).html.parent
    (path,) = (folder / "data").glob("speedup-*.csv")
    shown = {
        (row["tokens"], row["against"]): float(row["speedup"]) for row in csv.DictReader(path.read_text().splitlines())
    }
    for ours, peer in zip(entries(document, "moelab"), entries(document, "vllm"), strict=True):
        pairs = sorted(b / a for a, b in zip(ours["stats"]["data"], peer["stats"]["data"], strict=True))
        middle = (pairs[len(pairs) // 2 - 1] + pairs[len(pairs) // 2]) / 2
        assert shown[(str(ours["extra_info"]["case"]["tokens"]), "vllm")] == pytest.approx(middle, rel=1e-3)


def slowed(document: Document) -> Document:
    """The same document with ours three times slower at 256 tokens, as the file and its samples say."""
    for entry in entries(document, "moelab"):
        info = entry["extra_info"]
        if info["case"]["tokens"] == 256:
            info["ratio"].update(value=0.52, low=0.51, high=0.53)
            info["verdict"].update(table="slower", alone="slower")
            entry["stats"]["data"] = [3 * seconds for seconds in entry["stats"]["data"]]
    return document


def test_losses_are_said_plainly(document: Document, report: Callable[..., ReportPaths]) -> None:
    text = report(slowed(document)).markdown.read_text()
    losses = text.split("## What was slower than a peer")[1].split("\n## ")[0]
    assert "decided slower" in losses
    assert f"| {WORKLOAD}, 256 | torch\\_loop | **0.52x** (0.51–0.53, slower)" in losses
    assert f"slower in {losses.count(', slower)')}, listed below" in text.split("## ")[0]


def test_without_losses_undecided_cells_are_not_called_wins(
    document: Document, report: Callable[..., ReportPaths]
) -> None:
    for entry in entries(document, "moelab"):
        entry["extra_info"]["verdict"].update(table="undecided", alone="faster")
    text = report(document).markdown.read_text()
    assert "may hide a loss" in text
    row = next(line for line in text.splitlines() if line.startswith("| torch\\_loop |"))
    assert [cell.strip() for cell in row.split("|")][4:9] == ["0", "0", "6", "0", "6"]


def test_undecided_says_what_the_run_could_have_seen(document: Document, report: Callable[..., ReportPaths]) -> None:
    for number, entry in enumerate(entries(document, "moelab")):
        entry["extra_info"]["verdict"].update(table="undecided")
        entry["extra_info"]["ratio"]["minimum_detectable"] = 0.1 * (number + 1)
    for backend in ("torch_grouped_mm", "vllm"):
        document["benchmarks"] = [e for e in document["benchmarks"] if e not in entries(document, backend)]
    text = report(document).markdown.read_text()
    assert "In 6 such comparisons the smallest speedup that this run sees" in text
    assert "is 1.40x (median; 1.10x to 1.60x)" in text


def test_the_point_comes_before_what_disturbed_it(small: Document, report: Callable[..., ReportPaths]) -> None:
    small["moelab"]["synthetic"] = False
    small["moelab"]["conditions"] = ["a/t1: the rate varied by 9%", "a/t4: the rate varied by 47.5%", "swap was used"]
    text = report(small).markdown.read_text()
    assert text.index("the speed of torch") < text.index("was not steady")
    assert "the rate varied by 9% to 47.5%, in 2 cells; swap was used" in text


def test_level_and_margin_are_those_of_the_run(small: Document, report: Callable[..., ReportPaths]) -> None:
    small["moelab"]["run"].update(level=0.9, margin=0.05)
    folder = report(small, most_figures=60).html.parent
    for page in pages(folder):
        if page.path.name != "report.html":
            assert "95 %" not in page.words, page.path
            assert "2 %" not in re.findall(r"margin (?:of )?([\d.]+ %)", page.words), page.path
    front = Page(folder / "index.html").words
    assert "(90 % interval" in front
    assert "beyond the margin of 5 %" in front


def test_the_first_sentences_give_every_mean_its_interval(
    document: Document, report: Callable[..., ReportPaths]
) -> None:
    text = report(document).markdown.read_text()
    for peer in ("torch\\_grouped\\_mm", "vllm"):
        glance = text.split("## Speedup at a glance")[1].split("\n## ")[0]
        (row,) = [line for line in glance.splitlines() if line.startswith(f"| {peer} |")]
        mean, ends = re.findall(r"([\d.]+x) \(([\d.]+–[\d.]+)\)", row)[0]
        assert f"{mean} over {peer} ({ends})" in text.split("\n## ")[0]


def test_what_did_not_run_is_in_the_order_of_its_tokens(small: Document, report: Callable[..., ReportPaths]) -> None:
    small["moelab"]["missing"] = [
        {"backend": "sglang", "case": f"layer/t{tokens}", "kind": "unsuited", "reason": "no gelu"}
        for tokens in (1024, 4, 16)
    ]
    assert "layer/t4, layer/t16, layer/t1024" in Page(report(small).html).words


def test_the_worst_element_stands_beside_its_own_bound(small: Document, report: Callable[..., ReportPaths]) -> None:
    """The largest error of all may exceed the bound of the element that is nearest to its own."""
    for entry in small["benchmarks"]:
        check = {"rows": 1, "max_error": 0.08, "bound": 0.05, "worst": 0.6, "flips": 0.1, "flip_limit": 0.2}
        entry["extra_info"]["correctness"].update(before=check, after=check)
        entry["extra_info"]["backend"]["rounding"] = {
            "gemm1": True, "bias": "bf16", "activation": "steps", "expert": "unweighted", "combine": "fp32",
            "output": True, "gelu_tanh": "fp32", "to": "zero",
        }  # fmt: skip
    folder = report(small).html.parent
    words = Page(folder / "models" / f"{WORKLOAD}.html").words
    assert "0.0800 0.0300 0.0500 0.600" in words
    points = "gate and up, biases, each step of the activation, each expert's output, output"
    assert f"{points}, all of them to zero, not to nearest" in words


def test_broken_measurements_are_marked_and_left_out(document: Document, report: Callable[..., ReportPaths]) -> None:
    for entry in entries(document, "moelab"):
        info = entry["extra_info"]
        if info["case"]["tokens"] == 1:
            info["roofline"].update(broken=True, reason="40 % above the roof")
            info["verdict"].update(table="broken")
            info["ratio"].update(value=9.0)
    paths = report(document)
    text = paths.markdown.read_text()
    assert paths.broken == 1
    assert "1 broken measurement, left out of every summary" in text
    assert f"{WORKLOAD}, 1 tokens, moelab: 40 % above the roof" in text
    assert "5 (+1 broken)" in text
    assert "9.00x" not in text.split("## Against each backend")[0]


def test_a_wrong_output_is_no_result(small: Document, report: Callable[..., ReportPaths]) -> None:
    info = entries(small, "vllm")[0]["extra_info"]
    info["correctness"].update(passed=False, failure="row 3 is 12 times its bound away")
    words = Page(report(small).html).words
    assert "vllm: row 3 is 12 times its bound away" in words


@pytest.mark.parametrize("synthetic", [True, False])
def test_synthetic_data_is_called_so_everywhere(
    small: Document, report: Callable[..., ReportPaths], synthetic: bool
) -> None:
    small["moelab"]["synthetic"] = synthetic
    paths = report(small, most_figures=1)
    for page in pages(paths.html.parent):
        assert ("SYNTHETIC DATA: invented by a test" in page.text) is synthetic, page.path
    assert ("SYNTHETIC, not measured: On" in paths.markdown.read_text()) is synthetic
    (picture,) = paths.html.parent.rglob("*.svg")
    assert ("SYNTHETIC, NOT MEASURED" in picture.read_text()) is synthetic


def test_synthetic_and_measured_results_of_one_machine_stay_apart(
    small: Document, report: Callable[..., ReportPaths]
) -> None:
    real = copy.deepcopy(small)
    real["moelab"]["synthetic"] = False
    folder = report(small, real).html.parent
    assert len(list((folder / "machines").iterdir())) == 2
    front = Page(folder / "index.html").words
    assert "SYNTHETIC, not measured: On" not in front
    assert "SYNTHETIC DATA beside measured data 1 of 2 files: result-0.json" in front
    links = front.split("Machines")[1].split("Fused MoE")[0]
    assert links.count("(synthetic)") == 1


def test_machines_of_one_cpu_are_told_apart(small: Document, report: Callable[..., ReportPaths]) -> None:
    other = copy.deepcopy(small)
    other["machine_info"]["moelab"]["machine_id"] = "f" * 12
    folder = report(small, other).html.parent
    titles = [re.search(r"<h1>(.*?)</h1>", path.read_text()) for path in (folder / "machines").iterdir()]
    assert len({found[1] for found in titles if found}) == 2


def test_the_claim_is_never_set_beside_invented_numbers(small: Document, report: Callable[..., ReportPaths]) -> None:
    text = json.dumps(small).replace(WORKLOAD, "gpt-oss-20b")
    synthetic = json.loads(text)
    claim = report(synthetic).markdown.read_text().split("## The published claim")[1].split("\n## ")[0]
    assert "2.1x" in claim
    assert "measured here" not in claim.split("|---|")[1]


def test_what_did_not_run_is_listed_with_its_reason(small: Document, report: Callable[..., ReportPaths]) -> None:
    words = Page(report(small).html).words
    for item in small["moelab"]["missing"]:
        assert item["reason"] in words


def test_newer_run_of_a_cell_wins_as_a_whole(small: Document, report: Callable[..., ReportPaths]) -> None:
    newer = copy.deepcopy(small)
    newer["moelab"]["run"]["started"] = "2001-01-01T00:00:00+00:00"
    newer["benchmarks"] = entries(newer, "moelab")[:1]
    folder = report(small, newer).html.parent
    (path,) = (folder / "data").glob("latency-*.csv")
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if row["tokens"] == "1"]
    assert [row["backend"] for row in rows] == ["moelab"]
    assert "result-0.json: 1 cell measured again by a newer file" in Page(folder / "index.html").words


def test_of_equally_many_cells_the_decided_ones_come_first(small: Document, tmp_path: Path) -> None:
    def first(decided: int) -> str:
        paths = []
        for number, name in enumerate(("a", "b")):
            one = copy.deepcopy(small)
            one["machine_info"]["moelab"]["machine_id"] = name * 12
            one["machine_info"]["moelab"]["cpu"]["name"] = name
            for entry in one["benchmarks"]:
                if entry["extra_info"]["verdict"]:
                    entry["extra_info"]["verdict"]["table"] = "faster" if number == decided else "undecided"
            paths.append(tmp_path / f"{name}.json")
            paths[-1].write_text(json.dumps(one))
        return groups(load(paths).cells)[0].key[0]

    assert [first(0)[0], first(1)[0]] == ["a", "b"]


# ---- form -----------------------------------------------------------------------------------------------------------
def test_every_link_and_download_leads_somewhere(whole: Path) -> None:
    for page in pages(whole):
        ids = page.attributes("id")
        assert len(ids) == len(set(ids)), page.path
        for href in page.attributes("href"):
            if href.startswith(("https://github.com/", "data:")):
                continue
            target, _, anchor = href.partition("#")
            path = (page.path.parent / unquote(target)).resolve() if target else page.path
            assert path.is_file(), f"{page.path.name}: {href}"
            assert not anchor or target or anchor in ids, f"{page.path.name}: {href}"


def test_nothing_is_loaded_from_elsewhere(whole: Path) -> None:
    for page in pages(whole):
        scripts = [attributes for tag, attributes in page.tags if tag == "script"]
        own = {} if page.path.name == "report.html" else {"src": os.path.relpath(whole / "report.js", page.path.parent)}
        assert scripts == [own], "the report's own script, and no other"
        assert not {tag for tag, _ in page.tags} & {"iframe", "object", "embed", "img"}
        for tag, attributes in page.tags:
            if tag == "link":
                assert not attributes["href"].startswith(("http", "//")), page.path
        assert not re.search(r"url\((?!#)", page.path.read_text()), page.path
    assert not re.search(r"url\(|@import", (whole / "style.css").read_text())


def test_single_file_needs_nothing_beside_it(whole: Path) -> None:
    page = Page(whole / "report.html")
    for href in page.attributes("href"):
        assert href.startswith(("#", "data:", "https://github.com/")), href


def test_every_figure_comes_with_picture_data_and_origin(whole: Path) -> None:
    pictures = sorted((whole / "figures").glob("*.svg"))
    kinds = {picture.name.split("-")[0] for picture in pictures}
    assert kinds == {"control", "latency", "packing", "percent", "phases", "ratios", "roofline", "scaling", "speedup"}
    for picture in pictures:
        root = ET.parse(picture).getroot()
        text = " ".join(node.text or "" for node in root.iter() if node.tag.endswith("}text"))
        once = picture.name.startswith("packing")  # done once in a process, too seldom for an interval
        size = ("n = 3 processes", "least to the largest") if once else ("n = 18 samples per point from 3", "95\u202f%")
        if picture.name.startswith("phases"):
            size = ("n = 18 samples per point from 3", "no intervals")
            assert "bootstrap" not in text
        for origin in (*size, "Synthetic 0/0/0", "Revision: 000000000000", "Repeat: nox -s bench"):
            assert origin in text, f"{picture.name}: {origin}"
        assert root.find("{http://www.w3.org/2000/svg}desc") is not None
        assert picture.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert len((whole / "data" / f"{picture.stem}.csv").read_text().splitlines()) > 1


def test_every_plot_on_a_page_has_alternative_text(whole: Path) -> None:
    plots = [a for page in pages(whole) for tag, a in page.tags if tag == "svg"]
    assert len(plots) > 10
    for attributes in plots:
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > 40


def test_colours_of_plots_follow_the_page(whole: Path) -> None:
    text = (whole / "models" / f"{WORKLOAD}.html").read_text()
    css = (whole / "style.css").read_text()
    for variable in set(re.findall(r"var\((--c-[a-z0-9-]+)", text)):
        assert css.count(f"{variable}:") == 3, f"{variable} needs a value for light, dark, and dark by choice"
    assert "var(--c-moelab" in text


def test_markdown_tables_are_whole(whole: Path) -> None:
    lines = (whole / "report.md").read_text().splitlines()
    assert any(line.startswith("|---") for line in lines)
    for above, line in itertools.pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            assert _columns(above) == _columns(line), line


def _columns(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


def test_the_same_input_gives_the_same_report(built: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(built)
    folders = [write_report([path], tmp_path / name, most_figures=2).html.parent for name in ("a", "b")]
    contents = [{f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()} for folder in folders]
    assert contents[0] == contents[1]


# ---- untrusted input --------------------------------------------------------------------------------------------
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "../../../../etc/passwd",
    "/etc/passwd\x00.json",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1}{0}$ \\undefined",
    "a | b `c` [d](javascript:alert(1)) @all #1 <!-- x -->",
    "\x1b[31m\u202egnp\ud800",
    "=HYPERLINK(1)",
    "x" * 5000,
    "]]></style><svg onload=alert(1)>",
    "--c-moelab:;}body{display:none",
)


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node[:3]):
            yield from leaves(value, (*path, index))
    else:
        yield path


def put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


def get(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:16]))
def test_hostile_text_stays_text(
    small: Document, report: Callable[..., ReportPaths], tmp_path: Path, text: str
) -> None:
    document = small
    for path in leaves(document):
        if isinstance(get(document, path), str) and path[-1] not in ("role", "datetime", "started"):
            put(document, path, text)
    for index, entry in enumerate(document["benchmarks"]):
        entry["extra_info"]["backend"]["name"] = "moelab" if index % 5 == 1 else f"{text}{index % 5}"
        entry["extra_info"]["case"]["workload"] = text
    paths = report(document, most_figures=3)
    allowed = {"html", "head", "meta", "title", "link", "style", "body", "header", "nav", "ul", "li", "a", "main",
               "article", "section", "aside", "h1", "h2", "p", "strong", "div", "table", "caption", "thead", "tbody",
               "tr", "th", "td", "span", "wbr", "figure", "figcaption", "svg", "g", "path", "defs", "use", "clippath",
               "rect", "text", "pattern", "image", "pre", "code", "footer", "br", "script"}  # fmt: skip
    for page in pages(paths.html.parent):
        assert {tag for tag, _ in page.tags} <= allowed
        assert page.path.read_text().count("<script") == 1, "only the report's own"
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
        assert not [href for href in page.attributes("href") if href.lower().startswith("javascript")]
        assert "49{" not in page.text
    for picture in paths.html.parent.rglob("*.svg"):
        tags = {node.tag.split("}")[1].lower() for node in ET.parse(picture).getroot().iter()}
        assert tags <= allowed | {"desc"}
    for file in paths.html.parent.rglob("*"):
        assert re.fullmatch(r"[a-z0-9.-]+", file.name), file
    written = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert written == {"out", "result-0.json"}
    markdown = paths.markdown.read_text()
    prose = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", markdown)  # what stands in code spans stays text
    assert "<script" not in prose.replace("\\<script", "")
    lines = markdown.splitlines()
    for above, line in itertools.pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            assert _columns(above) == _columns(line), line


def test_a_spreadsheet_runs_nothing_from_the_data(small: Document, report: Callable[..., ReportPaths]) -> None:
    for entry in small["benchmarks"]:
        entry["extra_info"]["case"]["workload"] = "=HYPERLINK(1)"
    folder = report(small).html.parent
    for path in (folder / "data").iterdir():
        for row in csv.reader(path.read_text().splitlines()):
            assert not [cell for cell in row if cell.startswith(("=", "@", "+"))]


DAMAGE = (None, "text", "", -1, 0, 10**400, 1e308, math.nan, math.inf, -math.inf, 5e-324, [], {}, [None], True,
          {"value": []})  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_make_a_report_or_a_clear_error(
    small: Document, report: Callable[..., ReportPaths], seed: int
) -> None:
    """Values of the wrong type, missing keys and emptied lists, many at once, at random places."""
    rng = random.Random(seed)
    document = small
    for _ in range(rng.choice((1, 5, 40, 400))):
        path = rng.choice(list(leaves(document)) or [("benchmarks",)])
        path = path[: max(4, len(path) - rng.choice((0, 0, 0, 1, 2)))]  # whole sections are taken out elsewhere
        if rng.random() < 0.3 and isinstance(path[-1], str):
            parent = get(document, path[:-1])
            parent.pop(path[-1], None)
        else:
            put(document, path, copy.deepcopy(rng.choice(DAMAGE)))
    try:
        paths = report(json.dumps(document), most_figures=1 if seed % 10 == 0 else 0)
    except ReportError as error:
        assert "result-0.json" in str(error)  # noqa: PT017
    else:
        assert Page(paths.html).text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400, -1.0, 0])
def test_numbers_that_are_none_are_never_shown(
    document: Document, report: Callable[..., ReportPaths], number: float
) -> None:
    """The same wrong number in every place that holds a float."""
    for entry in document["benchmarks"][::2]:
        for path in leaves(entry["extra_info"]):
            if isinstance(get(entry["extra_info"], path), float):
                put(entry["extra_info"], path, number)
    folder = report(document, most_figures=60).html.parent
    for page in pages(folder):
        assert not re.search(r"\b(nan|inf|infinity)\b", page.words, re.IGNORECASE), page.path
    for path in (folder / "data").iterdir():
        assert not re.search(r"(^|,)-?(nan|inf)", path.read_text(), re.IGNORECASE | re.MULTILINE), path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "result-0.json"),
        ("[]", "not a result file"),
        ('{"benchmarks": []}', "without moelab's sections"),
        ('{"benchmarks": [], "moelab": {"schema": NaN}}', None),
    ],
)
def test_files_that_are_no_results(report: Callable[..., ReportPaths], content: str, says: str | None) -> None:
    if says is None:
        assert "no timed case" in Page(report(content).html).words
        return
    with pytest.raises(ReportError, match=says):
        report(content)


def test_good_files_are_used_and_bad_ones_named(small: Document, report: Callable[..., ReportPaths]) -> None:
    text = report("no JSON", small, small).markdown.read_text()
    assert "2 files not used" in text
    assert "result-0.json: not JSON" in text
    assert "result-2.json: given twice" in text


def test_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="result_paths is empty"):
        write_report([], tmp_path)


def test_a_folder_of_something_else_is_left_alone(small: Document, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(small))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious.txt").write_text("mine")
    with pytest.raises(ValueError, match="no report wrote"):
        write_report([tmp_path / "result.json"], tmp_path, most_figures=0)
    assert (tmp_path / "data" / "precious.txt").read_text() == "mine"


def test_an_earlier_report_is_replaced(small: Document, report: Callable[..., ReportPaths]) -> None:
    folder = report(small).html.parent
    first = {path.name for path in folder.rglob("*.json")}
    small["moelab"]["run"]["seed"] = 5
    folder = report(small).html.parent
    assert first != {path.name for path in folder.rglob("*.json")}
    assert len(list((folder / "results").iterdir())) == 1


def test_no_page_of_an_earlier_report_is_left(small: Document, report: Callable[..., ReportPaths]) -> None:
    folder = report(small, TABLE, {**TABLE, "kind": "prediction"}, synthetic_model_runs.build()).html.parent
    more = {path.name for path in folder.glob("*.html")}
    report(small)
    assert {path.name for path in folder.glob("*.html")} == {"index.html", "report.html"} < more


# ---- thin and old results -----------------------------------------------------------------------------------------
def test_one_case_with_one_backend(small: Document, report: Callable[..., ReportPaths]) -> None:
    small["benchmarks"] = entries(small, "moelab")[:1]
    small["benchmarks"][0]["extra_info"].update(ratio=None, verdict=None)
    small["moelab"]["cells"] = []
    paths = report(small, most_figures=20)
    assert "compared with no other backend" in Page(paths.html).words
    assert list((paths.html.parent / "figures").glob("latency-*.svg"))


def test_peers_alone(small: Document, report: Callable[..., ReportPaths]) -> None:
    small["benchmarks"] = entries(small, "vllm") + entries(small, "torch_loop")
    paths = report(small, most_figures=20)
    assert "compared with no other backend" in Page(paths.html).words


def test_no_probes(small: Document, report: Callable[..., ReportPaths]) -> None:
    for entry in small["benchmarks"]:
        roof = entry["extra_info"]["roofline"]
        roof.update(dict.fromkeys(("bound_seconds", "fraction", "low", "high", "bandwidth", "peak")))
        roof["limit"] = "unknown"
    paths = report(small, most_figures=20)
    assert not list((paths.html.parent / "figures").glob("roofline-*"))
    assert list((paths.html.parent / "figures").glob("latency-*.svg"))


@pytest.mark.parametrize(("version", "says"), [(0, "an older schema"), (2, "a newer schema"), (None, "no schema")])
def test_other_schema_versions_are_read_with_a_note(
    small: Document, report: Callable[..., ReportPaths], version: int | None, says: str
) -> None:
    small["moelab"]["schema"] = version
    for entry in small["benchmarks"]:
        for key in ("samples", "correctness", "roofline", "time"):
            del entry["extra_info"][key]
    words = Page(report(small, most_figures=3).html).words
    assert says in words
    assert "1.8" in words


def test_without_moelabs_top_level_section(small: Document, report: Callable[..., ReportPaths]) -> None:
    del small["moelab"]
    small["machine_info"] = {"machine": "aarch64", "node": "n", "cpu": {"brand_raw": "Neoverse-N2", "count": 4}}
    words = Page(report(small).html).words
    assert "Neoverse-N2" in words
    assert "aarch64" in words


def test_phases_are_shown_where_the_run_split_its_calls(whole: Path) -> None:
    path = next((whole / "data").glob("phases-*.csv"))
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if row["tokens"] == "1"]
    assert {row["phase"]: float(row["milliseconds"]) / 1e3 for row in rows} == pytest.approx(PHASES)
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)
    assert list((whole / "figures").glob("phases-*.svg"))


def test_thread_scaling_from_runs_with_different_threads(whole: Path) -> None:
    (path,) = (whole / "data").glob("scaling-*.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {row["threads"] for row in rows} == {"1", "2"}
    assert {row["tokens"] for row in rows} == {"1", "256"}
    assert list((whole / "figures").glob("scaling-*.svg"))


@pytest.mark.slow
def test_two_hundred_files_in_a_minute(document: Document, tmp_path: Path) -> None:
    paths = []
    for number in range(200):
        document["machine_info"]["moelab"]["machine_id"] = f"{number:012x}"
        document["moelab"]["run"]["seed"] = number
        paths.append(tmp_path / f"result-{number}.json")
        paths[-1].write_text(json.dumps(document))
    start = time.process_time()  # of this process: the machine may be busy with something else
    report = write_report(paths, tmp_path / "out")
    assert time.process_time() - start < 60
    assert report.figures_left_out > 0
    assert len(list((tmp_path / "out" / "machines").iterdir())) == 200


# ---- counts and predictions ---------------------------------------------------------------------------------------
TABLE = {
    "moelab_table": 1, "kind": "counts", "title": "Instructions", "about": "Counted under emulation.",
    "columns": ["case", {"name": "total", "unit": "instructions"}, "each"],
    "rows": [["yardstick", 1234567, 1.5], ["<b>other</b>", None]], "tool": "qemu", "command": ["nox", "-s", "counts"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "file", "says"),
    [
        ("counts", "counts.html", "Counts, not time"),
        ("prediction", "predictions.html", "Predicted, not measured"),
    ],
)
def test_counts_and_predictions_have_pages_apart(
    small: Document, report: Callable[..., ReportPaths], kind: str, file: str, says: str
) -> None:
    folder = report(small, {**TABLE, "kind": kind}).html.parent
    page = Page(folder / file)
    assert says in page.words
    assert "1\u202f234\u202f567".replace("\u202f", " ") in page.words
    assert "<b>other</b>" in page.words
    assert "nox -s counts" in page.words
    assert "yardstick" not in Page(folder / "index.html").words


def test_a_report_of_tables_alone(report: Callable[..., ReportPaths]) -> None:
    assert "Instructions" in Page(report(TABLE).html.parent / "counts.html").words


@pytest.mark.parametrize("damage", [{"kind": "measured"}, {"columns": []}, {"columns": None}])
def test_tables_that_are_none(report: Callable[..., ReportPaths], damage: dict[str, Any]) -> None:
    with pytest.raises(ReportError, match=r"result-0\.json: (kind is|a table without)"):
        report({**TABLE, **damage})
