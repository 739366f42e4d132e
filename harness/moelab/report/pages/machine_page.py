"""The page of one machine: what it is, how steady it was, everything that was timed on it."""

from __future__ import annotations

from moelab.report.blocks import Bullets, Command, Link, Links, Page, Section, Table, Text, Value
from moelab.report.load import machine_key
from moelab.report.model import Machine, Result
from moelab.report.pages import tables
from moelab.report.pages.charts import control_chart, ratio_charts
from moelab.report.pages.context import Context, machine_page
from moelab.report.pages.packing import packing_table, packings
from moelab.report.pages.runs_page import PAGE
from moelab.report.pages.steadiness import disturbances
from moelab.report.palette import backend_order
from moelab.report.summary import MachineKey, comparisons
from moelab.report.text import count, slug


def page_of_machine(context: Context, key: MachineKey, machine: Machine, files: dict[str, str]) -> Page:
    """`files`: digest of a result -> its copy in the site."""
    identity = machine_page(key, machine.name)
    page = Page(identity, f"machines/{identity.removeprefix('machine-')}.html", _title(key, machine), group="Machines")
    results = [result for result in context.loaded.results if machine_key(result) == key]
    groups = [group for group in context.groups if group.key == key]
    cells = [cell for group in groups for cell in group.cells]
    first = Section("")
    first.blocks += context.alarms
    first.blocks.append(Text(_about(machine, results, len(cells))))
    if any(machine_key(run.result) == key for run in context.loaded.model_runs):
        first.blocks.append(Links((Link("Whole models on this machine", page=PAGE),)))
    page.sections.append(first)
    for group in groups:
        peers = sorted({c.against for _, c in comparisons(group.cells)}, key=backend_order)
        section = Section(f"Against each backend, {group.setting.label}")
        if table := tables.standing_table(group.cells, f"On {machine.name}, {group.setting.label}"):
            section.blocks.append(table)
        if unsure := tables.what_undecided_means(group.cells):
            section.blocks.append(Text(unsure))
        section.blocks += context.figures(ratio_charts(group, peers))
        if rows := tables.ratio_rows(group, f"Every cell, {group.setting.label}"):
            section.blocks.append(rows)
        if packed := packings(group.cells):
            section.blocks.append(packing_table(context, group, packed, f"Packing, {group.setting.label}"))
        page.sections.append(section)
    if cells:
        charts = context.figures([control_chart(slug(f"control-{identity}"), cells)])
        page.sections.append(Section("How steady it was", [*charts, *_steadiness(results)]))
        page.sections.append(
            Section("Correctness", [tables.correctness_table(cells, "Largest errors on this machine")])
        )
        page.sections.append(Section("Backends", [_backends(context, key)]))
    page.sections.append(Section("The machine", [_facts(machine)]))
    if table := tables.missing_table([(r.name, item) for r in results for item in r.missing], "What did not run here"):
        page.sections.append(Section("What did not run", [table]))
    page.sections.append(_files(results, files))
    return page


def _title(key: MachineKey, machine: Machine) -> str:
    _, synthetic, emulated = key
    return machine.name + (" (synthetic)" if synthetic else " (emulated)" if emulated else "")


def _about(machine: Machine, results: list[Result], cells: int) -> str:
    image = next((f", image {result.image}" for result in results if result.image), "")
    return (
        f"{machine.architecture}, {machine.part}, {count(machine.cpus, 'CPU')} usable: {count(cells, 'cell')} from "
        f"{count(len(results), 'run')}{image}."
    )


def _steadiness(results: list[Result]) -> list[Bullets]:
    conditions = [f"{result.name}: {text}" for result in results for text in disturbances(result)]
    advice = list(dict.fromkeys(text for result in results for text in result.advice))
    lines = conditions + [f"Would improve it: {text}" for text in advice]
    return [Bullets(tuple(lines[:40]))] if lines else []


def _facts(machine: Machine) -> Table:
    rows: list[list[str | Value]] = [[name, value] for name, value in machine.facts]
    if machine.features:
        rows.append(["CPU features", ", ".join(machine.features)])
    return Table(f"Facts about {machine.name}", ("fact", "value"), rows)


def _backends(context: Context, key: MachineKey) -> Table:
    rows: dict[tuple[str, str], list[str | Value]] = {}
    for group in context.groups:
        for cell in group.cells if group.key == key else ():
            for m in cell.measurements.values():
                amx = {True: "yes", False: "no", None: "unknown"}[m.uses_amx]
                rows.setdefault((m.backend, m.version), [m.backend, m.version or "–", m.isa or "–", amx,
                                m.rounding or "–"])  # fmt: skip
    ordered = [rows[name] for name in sorted(rows, key=lambda name: (backend_order(name[0]), name[1]))]
    columns = ("backend", "version", "ISA", "uses AMX", "rounds to BF16")
    return Table("Backends, each at the first layer it ran", columns, ordered)


def _files(results: list[Result], files: dict[str, str]) -> Section:
    section = Section("Result files")
    rows: list[list[str | Value]] = []
    for result in sorted(results, key=lambda r: (r.started, r.digest), reverse=True):
        path = files.get(result.digest, "")
        rows.append(
            [
                Value(result.name, link=Link("", file=path) if path else None),
                result.started or "–",
                result.revision_label,
                result.image or "–",
                result.library[:12] or "–",
                "–" if result.seed is None else str(result.seed),
                result.digest[:12],
            ]
        )
    columns = ("file", "started", "revision", "image", "library", "seed", "sha256")
    section.blocks.append(Table("Runs on this machine, newest first", columns, rows))
    for command in list(dict.fromkeys(result.command for result in results if result.command))[:5]:
        section.blocks.append(Command(command))
    links = tuple(Link(result.name, file=files[result.digest]) for result in results[:5] if result.digest in files)
    if links:
        section.blocks.append(Links(links))
    return section
