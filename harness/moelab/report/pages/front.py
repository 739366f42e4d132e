"""The front page: the point first, what was lost, the bars, the machines, and what others claim."""

from __future__ import annotations

from collections.abc import Sequence

from moelab.report.blocks import Banner, Block, Bullets, Command, Link, Links, Page, Section, Table, Text, Value
from moelab.report.model import OURS
from moelab.report.pages import tables
from moelab.report.pages.backends import compared
from moelab.report.pages.charts import ratio_charts, speedup_chart
from moelab.report.pages.claim import claim_section
from moelab.report.pages.context import Context, machine_page, model_page
from moelab.report.pages.packing import packing_section
from moelab.report.pages.runs_page import brief, newest
from moelab.report.pages.sentences import sentences
from moelab.report.provenance import margin, runs
from moelab.report.summary import Group, baseline_of, models, standings
from moelab.report.text import count, ratio, ratio_interval

MOST_BARS = 6
MOST_COMMANDS = 2
MOST_ROWS = 40


def front_page(context: Context) -> Page:
    """Everything a reader needs who opens only one page."""
    loaded, groups = context.loaded, context.groups
    page = Page("front", "index.html", "Fused MoE on CPUs: what was measured")
    first = Section("", brief=True)
    first.blocks += context.alarms
    first.blocks += [Text(sentence, lead=True) for sentence in sentences(groups)]
    first.blocks += _repeat(groups)
    first.blocks += [banner for banner in context.banners if banner.level != "danger"]
    page.sections.append(first)
    if not groups:
        if loaded.model_runs:
            page.sections += [brief(context), claim_section(groups, newest(loaded))]
        else:
            first.blocks.append(Banner("warning", "These files hold no timed case"))
        page.sections += [_machines(context), _missing(context)]
        return page
    main = groups[0]
    page.sections.append(_standing(context, main))
    page.sections.append(_losses(context))
    page.sections.append(_bars(context, main))
    page.sections.append(packing_section(context, main))
    page.sections.append(_machines(context))
    page.sections.append(_models(context))
    page.sections.append(brief(context))
    page.sections.append(claim_section(groups, newest(loaded)))
    page.sections.append(_missing(context))
    page.sections.append(compared(main))
    page.sections.append(_reading(main))
    return page


def _repeat(made: Sequence[Group]) -> list[Block]:
    """The commands behind the first sentences, and how to check them against another run."""
    behind = runs(made[0].cells) if made else []
    blocks: list[Block] = []
    for run in behind[:MOST_COMMANDS]:
        if run.command:
            about = ", ".join(part for part in (run.name, run.started[:10], run.revision_label) if part)
            blocks += [Text(f"Repeat it ({about}):"), Command(run.command)]
    return blocks


def where(group: Group) -> str:
    return f"{group.machine.name}, {group.setting.label}"


def _standing(context: Context, main: Group) -> Section:
    section = Section("Speedup at a glance", brief=True)
    if table := tables.standing_table(main.cells, f"{OURS} against each backend on {where(main)}"):
        section.blocks.append(table)
    if unsure := tables.what_undecided_means(main.cells):
        section.blocks.append(Text(unsure))
    baseline = baseline_of(main.cells)
    section.blocks += context.figures(ratio_charts(main, [baseline] if baseline else []))
    return section


def _losses(context: Context) -> Section:
    section = Section("What was slower than a peer", brief=True)
    cells = [cell for group in context.groups for cell in group.cells]
    table = tables.losses(cells)
    if table is None:
        rows = [standing for group in context.groups for standing in standings(group.cells)]
        undecided = sum(row.undecided for row in rows)
        total = sum(row.cells for row in rows)
        text = (
            f"In none of {count(total, 'comparison')} was {OURS} decided slower than another backend; "
            f"{undecided} {'is' if undecided == 1 else 'are'} undecided and may hide a loss."
            if total
            else f"{'Every comparison is broken' if rows else f'{OURS} was compared with no other backend'}, "
            "so nothing can be said."
        )
        section.blocks.append(Text(text))
        return section
    section.blocks.append(Text(f"{OURS} is decided slower in {count(len(table.rows), 'comparison')}, worst first:"))
    if len(table.rows) > MOST_ROWS:
        note = f"The worst {MOST_ROWS} of {len(table.rows)}; the pages of the models have the rest."
        table = Table(table.caption, table.columns, table.rows[:MOST_ROWS], table.numeric, note)
    section.blocks.append(table)
    return section


def _bars(context: Context, main: Group) -> Section:
    section = Section("Against each backend, model by model", brief=True)
    names = models(main.cells)
    charts = [speedup_chart(main, name) for name in names[:MOST_BARS]]
    section.blocks += context.figures(charts)
    if len(names) > MOST_BARS:
        section.blocks.append(Text(f"{len(names) - MOST_BARS} more models have pages of their own."))
    if table := tables.ratio_rows(main, f"Every cell on {where(main)}"):
        section.blocks.append(table)
    return section


def _machines(context: Context) -> Section:
    section = Section("Machines", brief=True)
    rows: list[list[str | Value]] = []
    for group in context.groups:
        baseline = baseline_of(group.cells)
        standing = next((s for s in standings(group.cells) if s.against == baseline), None)
        runs = list({cell.result.digest: cell.result for cell in group.cells}.values())
        rows.append(
            [
                Value(
                    group.machine.name,
                    group.machine.part,
                    link=Link("", page=machine_page(group.key, group.machine.name)),
                ),
                group.machine.architecture,
                str(group.machine.cpus or "–"),
                group.setting.label,
                str(len(group.cells)),
                Value(ratio(standing.mean.value), ratio_interval(standing.mean.low, standing.mean.high))
                if standing
                else "–",
                baseline or "–",
                _revisions([run.revision_label for run in runs]),
            ]
        )
    with_cells = {group.key for group in context.groups}
    loaded = context.loaded
    for result in loaded.results:
        key = (result.machine.key, result.synthetic, result.emulated)
        if key not in with_cells:
            with_cells.add(key)
            page = machine_page(key, result.machine.name)
            name = Value(result.machine.name, result.machine.part, link=Link("", page=page))
            cpus = str(result.machine.cpus or "–")
            setting = "whole models" if any(r.result is result for r in loaded.model_runs) else "–"
            rows.append([name, result.machine.architecture, cpus, setting, "0", "–", "–", result.revision_label])
    columns = ("machine", "architecture", "CPUs", "setting", "cells", f"{OURS}, geometric mean", "over", "revision")
    section.blocks.append(Table("Machines and settings", columns, rows, frozenset({2, 4, 5})))
    return section


def _revisions(labels: list[str]) -> str:
    distinct = list(dict.fromkeys(labels))
    return distinct[0] + (f" and {len(distinct) - 1} more" if len(distinct) > 1 else "")


def _models(context: Context) -> Section:
    section = Section("Models")
    names = models(cell for group in context.groups for cell in group.cells)
    section.blocks.append(Links(tuple(Link(name, page=model_page(name)) for name in names)))
    return section


def _missing(context: Context) -> Section:
    section = Section("What did not run", brief=True)
    everything = [(result.machine.name, item) for result in context.loaded.results for item in result.missing]
    table = tables.missing_table(everything, "Backends and cases without a result")
    section.blocks.append(table or Text("Everything that was asked for ran."))
    return section


def _reading(group: Group) -> Section:
    cell = (
        "A cell is one model's MoE layer at one number of tokens. Its backends get the same inputs and are timed "
        "interleaved, round by round, in several processes; outputs are checked against an fp64 reference."
    )
    speedup = "A speedup is the other backend's time divided by ours, paired by round. Above 1 ours is faster."
    verdict = (
        f"Faster and slower mean that the whole interval lies beyond the margin of {margin(runs(group.cells))}, and "
        "the ratio farther than all that the A/A control (a backend against itself) showed; same means inside the "
        "margin; all else is undecided."
    )
    roofline = (
        "The roofline is the least time that the bytes and FLOPs of a call need at the rates measured beside its "
        "samples. A result above it is a broken measurement: marked, and left out of every summary."
    )
    repeat = (
        "Repeatable: each figure names its machine, revision and command; nox -s reproduce -- RESULT runs the command "
        "of a result file again and says whether the two agree. Whether it is reproduced is for others to say."
    )
    return Section("How to read this", [Bullets((cell, speedup, verdict, roofline, repeat))])
