"""What a report says of packing: its time and rate, its memory, and the time until a first result."""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import synthetic_result
from moelab.report import write_report

Document = dict[str, Any]
Write = Callable[..., Path]
WORKLOAD = "qwen3-30b-a3b"
WEIGHTS = 128 * 3 * 2048 * 768 * 2  # experts x (gate, up, down) x hidden x intermediate x two bytes
PACKED = 1_500_000_000


@pytest.fixture(scope="module")
def built() -> str:
    document = json.loads(json.dumps(synthetic_result.build(workloads=(WORKLOAD,))))
    document["benchmarks"] = [e for e in document["benchmarks"] if e["extra_info"]["case"]["tokens"] in (1, 256)]
    return json.dumps(document)


@pytest.fixture
def document(built: str) -> Document:
    return dict(json.loads(built))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(*documents: Document, most_figures: int = 0) -> Path:
        paths = [tmp_path / f"result-{number}.json" for number in range(len(documents))]
        for path, document in zip(paths, documents, strict=True):
            path.write_text(json.dumps(document))
        return write_report(paths, tmp_path / "out", most_figures=most_figures).html.parent

    return make


def pack(document: Document, backend: str, **values: object) -> None:
    """Set what the entries of one backend say of its packing."""
    for entry in document["benchmarks"]:
        if entry["extra_info"]["backend"]["label"] == backend:
            entry["extra_info"]["backend"].update(values)


def measured(document: Document) -> Document:
    pack(document, "moelab", packing_seconds=[2.0, 1.0, 4.0], first_call_seconds=[0.5, 0.25, 1.5],
         packing_extra_bytes=[0, 3 << 20, 2 << 20], packed_bytes=PACKED,
         notes={"packing": "panels <of> 32"})  # fmt: skip
    return document


def words(path: Path) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", path.read_text())).split())


def first_lines(text: str) -> str:
    """The section of the front page in Markdown."""
    return text.split("## Packing and the first result")[1].split("\n## ", maxsplit=1)[0]


def test_packing_stands_in_every_form_of_the_report(document: Document, write: Write) -> None:
    folder = write(measured(document))
    rate = f"{(WEIGHTS + PACKED) / 2.0 / 1e9:.2f}"
    row = f"{WORKLOAD}, moelab 2.00 1.00–4.00 {rate} 1431 2.00 0.500 0.250–1.50 2.50 1.25–5.50 3 panels <of> 32"
    (machine,) = (folder / "machines").iterdir()
    for page in (folder / "index.html", folder / "report.html", folder / "models" / f"{WORKLOAD}.html", machine):
        assert row in words(page), page.name
    assert "packing [GB/s]" in words(folder / "index.html")
    line = next(line for line in first_lines((folder / "report.md").read_text()).splitlines() if "moelab |" in line)
    assert [cell.strip() for cell in line.split("|")][2:9] == [
        "2.00 (1.00–4.00)", rate, "1431", "2.00", "0.500 (0.250–1.50)", "2.50 (1.25–5.50)", "3",
    ]  # fmt: skip


def test_data_of_packing_are_beside_table_and_figure(document: Document, write: Write) -> None:
    folder = write(measured(document), most_figures=20)
    (picture,) = (folder / "figures").glob("packing-*.svg")
    (table,) = (folder / "data").glob("packing-table-*.csv")
    figure = folder / "data" / f"{picture.stem}.csv"
    assert table.name in (folder / "index.html").read_text()
    for path in (table, figure):
        (row,) = [row for row in csv.DictReader(path.read_text().splitlines()) if row["backend"] == "moelab"]
        assert row["layer"] == WORKLOAD
        found = {name: float(value) for name, value in row.items() if name not in ("layer", "backend")}
        assert found == pytest.approx(
            {
                "processes": 3,
                "packing_seconds": 2, "packing_seconds_low": 1, "packing_seconds_high": 4,
                "packing_gb_per_s": (WEIGHTS + PACKED) / 2e9, "weight_bytes": WEIGHTS, "packed_bytes": PACKED,
                "extra_bytes": 2 << 20,
                "first_call_seconds": 0.5, "first_call_seconds_low": 0.25, "first_call_seconds_high": 1.5,
                "first_result_seconds": 2.5, "first_result_seconds_low": 1.25, "first_result_seconds_high": 5.5,
            }
        )  # fmt: skip


def test_biases_count_as_weights(document: Document, write: Write) -> None:
    for entry in document["benchmarks"]:
        entry["extra_info"]["case"]["bias"] = True
    folder = write(measured(document))
    (table,) = (folder / "data").glob("packing-table-*.csv")
    row = next(csv.DictReader(table.read_text().splitlines()))
    assert float(row["weight_bytes"]) == WEIGHTS + 128 * (2 * 768 + 2048) * 4


def test_who_has_a_result_first_is_said_plainly(document: Document, write: Write) -> None:
    pack(document, "moelab", packing_seconds=[3.0] * 3, first_call_seconds=[0.5] * 3)
    pack(document, "vllm", packing_seconds=[0.5] * 3, first_call_seconds=[0.5] * 3)
    text = first_lines((write(document) / "report.md").read_text())
    assert f"{WORKLOAD}: vllm has a result first, after 1.00 s; moelab after 3.50 s." in text
    assert "not decided" not in text


@pytest.mark.parametrize(("theirs", "said"), [((1.4, 1.4, 9.0), True), ((2.9, 3.0, 3.1), False)])
def test_overlapping_processes_decide_nothing(
    document: Document, write: Write, theirs: tuple[float, ...], said: bool
) -> None:
    pack(document, "moelab", packing_seconds=[1.0, 1.3, 1.5], first_call_seconds=[0.0] * 3)
    for peer in ("torch_loop", "torch_grouped_mm", "vllm"):
        pack(document, peer, packing_seconds=list(theirs), first_call_seconds=[0.0] * 3)
    text = first_lines((write(document) / "report.md").read_text())
    assert "moelab has a result first, after 1.30 s" in text
    assert ("ranges of their processes overlap" in text) is said


def test_wrong_outputs_are_never_first(document: Document, write: Write) -> None:
    pack(document, "vllm", packing_seconds=[0.01] * 3, first_call_seconds=[0.01] * 3)
    for entry in document["benchmarks"]:
        if entry["extra_info"]["backend"]["label"] == "vllm":
            entry["extra_info"]["correctness"].update(passed=False, failure="far off")
    folder = write(document, most_figures=20)
    text = first_lines((folder / "report.md").read_text())
    assert "vllm has a result first" not in text
    assert "wrong outputs: no result" in text
    (picture,) = (folder / "figures").glob("packing-*.svg")
    assert ">vllm<" not in picture.read_text()


def test_a_layer_shows_the_packing_of_its_newest_run_alone(document: Document, write: Write) -> None:
    newer = json.loads(json.dumps(document))
    newer["moelab"]["run"]["started"] = "2001-01-01T00:00:00+00:00"
    newer["benchmarks"] = [e for e in newer["benchmarks"] if e["extra_info"]["case"]["tokens"] == 256]
    newer["benchmarks"] = [e for e in newer["benchmarks"] if e["extra_info"]["backend"]["name"] != "vllm"]
    pack(newer, "moelab", packing_seconds=[7.0, 7.0, 7.0])
    folder = write(newer, document)
    (table,) = (folder / "data").glob("packing-table-*.csv")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["backend"] for row in rows] == ["moelab", "torch_loop", "torch_grouped_mm"]
    assert float(rows[0]["packing_seconds"]) == 7


def test_files_from_before_the_first_call_was_kept(document: Document, write: Write) -> None:
    for entry in document["benchmarks"]:
        for key in ("first_call_seconds", "packing_extra_bytes", "notes"):
            del entry["extra_info"]["backend"][key]
    folder = write(document, most_figures=20)
    text = first_lines((folder / "report.md").read_text())
    assert "has a result first" not in text
    assert "| 1.50 (1.50–1.50) |" in text
    assert list((folder / "figures").glob("packing-*.svg"))


def test_without_packing_there_is_no_section(document: Document, write: Write) -> None:
    for entry in document["benchmarks"]:
        del entry["extra_info"]["backend"]["packing_seconds"]
    folder = write(document, most_figures=20)
    assert "Packing" not in (folder / "report.md").read_text()
    assert not list((folder / "figures").glob("packing-*"))
