"""The page of one model: every machine and setting that ran it."""

from __future__ import annotations

from moelab.report.blocks import Block, Page, Section, Text
from moelab.report.load import machine_key
from moelab.report.model import Cell
from moelab.report.pages import packing, tables
from moelab.report.pages.charts import model_charts, of_model, scaling_chart
from moelab.report.pages.context import Context, machine_page, model_page
from moelab.report.text import slug


def page_of_model(context: Context, workload: str) -> Page:
    """Figures and tables for each machine and setting, then scaling and correctness."""
    page = Page(model_page(workload), f"models/{slug(workload)}.html", workload, group="Models")
    groups = [group for group in context.groups if of_model(group, workload)]
    cells = [cell for group in groups for cell in of_model(group, workload)]
    first = Section("")
    first.blocks += context.alarms
    first.blocks.append(Text(_about(cells)))
    page.sections.append(first)
    for group in groups:
        own = of_model(group, workload)
        section = Section(f"{group.machine.name}, {group.setting.label}")
        section.blocks += context.figures(model_charts(group, workload))
        section.blocks.append(tables.times_table(own, f"{workload} on {group.machine.name}: milliseconds per call"))
        section.blocks += packing.model_block(context, group, workload)
        page.sections.append(section)
    page.sections += _scaling(context, workload, cells)
    page.sections.append(Section("Correctness", [tables.correctness_table(cells, f"{workload}: largest errors")]))
    return page


def _about(cells: list[Cell]) -> str:
    shapes = list(dict.fromkeys(cell.case.shape for cell in cells if cell.case.shape))
    notes = list(dict.fromkeys(cell.case.note for cell in cells if cell.case.note))
    tokens = sorted({cell.case.tokens for cell in cells})
    text = f"One MoE layer ({'; '.join(shapes)})" if shapes else "One MoE layer"
    text += f" at {', '.join(map(str, tokens))} tokens."
    return text + (f" Differs from the model: {'; '.join(notes)}." if notes else "")


def _scaling(context: Context, workload: str, cells: list[Cell]) -> list[Section]:
    blocks: list[Block] = []
    by_machine: dict[tuple[tuple[str, bool, bool], str, str], list[Cell]] = {}
    for cell in cells:
        same = (machine_key(cell.result), cell.setting.routing, cell.setting.cache)
        by_machine.setdefault(same, []).append(cell)
    for (key, routing, cache), own in by_machine.items():
        name = slug(f"scaling-{workload}-{machine_page(key, own[0].result.machine.name)}-{routing}-{cache}")
        blocks += context.figures([scaling_chart(name, workload, own)])
    return [Section("Scaling with threads", blocks)] if blocks else []
