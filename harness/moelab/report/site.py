"""Writes the report: a static site, one self-contained HTML file, and the Markdown summary."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moelab.report import html, markdown
from moelab.report.blocks import Page
from moelab.report.load import Loaded, load, machines
from moelab.report.pages.context import Context
from moelab.report.pages.front import front_page
from moelab.report.pages.machine_page import page_of_machine
from moelab.report.pages.model_page import page_of_model
from moelab.report.pages.runs_page import PAGE, runs_page
from moelab.report.side_tables import KINDS, side_pages
from moelab.report.summary import models
from moelab.report.text import slug

# About 0.25 s each; 200 result files of 200 machines stay under a minute.
MOST_FIGURES = 80
_OWN_FOLDERS = ("figures", "data", "models", "machines", "results")
# Pages that not every report has.
_OWN_PAGES = (f"{PAGE}.html", *(kind.path for kind in KINDS.values()))


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """Where a report is: the site's first page, the file to send, the summary for a job or pull request."""

    html: Path
    single_html: Path
    markdown: Path
    figures_left_out: int
    broken: int


def write_report(
    result_paths: Sequence[str | os.PathLike[str]],
    out_dir: str | os.PathLike[str],
    *,
    most_figures: int = MOST_FIGURES,
) -> ReportPaths:
    """Read result files and write the report into `out_dir`, replacing an earlier report there.

    Raises ReportError (a ValueError) when no file can be read, and ValueError when `out_dir` holds something that is no
    report. Damaged files among good ones are named in the report.
    """
    loaded = load(result_paths)
    folder = Path(out_dir)
    _make_room(folder)
    files = _copy_results(loaded, folder)
    context = Context(loaded, folder, most_figures)
    pages = _pages(context, files)
    html.write_site(pages, folder)
    html.write_single(pages, folder / "report.html", folder)
    (folder / "report.md").write_text(markdown.render(pages), encoding="utf-8")
    broken = sum(bool(m.broken) for cell in loaded.cells for m in cell.measurements.values())
    broken += sum(check.passed is False for run in loaded.model_runs for check in run.checks)
    return ReportPaths(folder / "index.html", folder / "report.html", folder / "report.md", context.left_out, broken)


def _pages(context: Context, files: dict[str, str]) -> list[Page]:
    pages = [front_page(context)]
    pages += [page_of_model(context, name) for name in models(context.loaded.cells)]
    pages += [page] if (page := runs_page(context)) else []
    pages += [page_of_machine(context, key, machine, files) for key, machine in machines(context.loaded).items()]
    pages += side_pages(context.loaded.side_tables)
    _tell_apart(pages)
    return pages


def _tell_apart(pages: list[Page]) -> None:
    """Two machines of one CPU get their page's number in the title."""
    titles = [page.title for page in pages]
    for page in pages:
        if titles.count(page.title) > 1:
            page.title += f" ({page.id[-6:]})"


def _make_room(folder: Path) -> None:
    """Remove an earlier report. A folder that holds anything else is left alone, so that a slip deletes nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    present = {entry.name for entry in folder.iterdir()}
    if present and "index.html" in present and (folder / "style.css").is_file():
        for name in _OWN_FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in _OWN_PAGES:
            (folder / name).unlink(missing_ok=True)
    elif clash := sorted(present & {*_OWN_FOLDERS, "index.html", "style.css"}):
        raise ValueError(f"out_dir {folder} holds {', '.join(clash)} that no report wrote; give an empty folder")


def _copy_results(loaded: Loaded, folder: Path) -> dict[str, str]:
    """Copies of the result files under names made here; digest -> path inside the site."""
    (folder / "results").mkdir(exist_ok=True)
    names = {}
    for result in loaded.results:
        name = f"results/{slug(Path(result.name).stem)[:40]}-{result.digest[:12]}.json"
        shutil.copyfile(loaded.paths[result.digest], folder / name)
        names[result.digest] = name
    return names
