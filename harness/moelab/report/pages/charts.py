"""The figures of one machine and setting, with their names, titles and footers."""

from __future__ import annotations

from collections.abc import Sequence

from moelab.report.figures.canvas import Drawn
from moelab.report.figures.control import control
from moelab.report.figures.heatmap import ratio_table, roofline_percent
from moelab.report.figures.latency import latency
from moelab.report.figures.phases import phases
from moelab.report.figures.roofline import roofline
from moelab.report.figures.scaling import thread_scaling
from moelab.report.figures.speedup import speedup
from moelab.report.model import OURS, Cell
from moelab.report.pages.context import group_name
from moelab.report.pages.packing import packing_chart
from moelab.report.provenance import GOES_ON, footer
from moelab.report.summary import Group
from moelab.report.text import whole_percent


def of_model(group: Group, workload: str) -> list[Cell]:
    return [cell for cell in group.cells if cell.case.workload == workload]


def speedup_chart(group: Group, workload: str) -> Drawn | None:
    cells = of_model(group, workload)
    units = f"Time of the other / time of {OURS}, median over paired rounds; pale bars: same or undecided{GOES_ON}"
    title = f"{workload}: speed of {OURS} against each backend"
    return speedup(group_name(group, "speedup", workload), title, footer(cells, units), cells)


def model_charts(group: Group, workload: str) -> list[Drawn | None]:
    """Everything about one model on one machine."""
    cells = of_model(group, workload)
    return [
        latency(
            group_name(group, "latency", workload),
            f"{workload}: time of a call",
            footer(cells, f"Milliseconds per call, median; ringed: broken, not a result{GOES_ON}"),
            cells,
        ),
        speedup_chart(group, workload),
        roofline_percent(
            group_name(group, "percent", workload),
            f"{workload}: percent of the roofline",
            footer(cells, "Percent of the roofline measured beside the samples, median; ! marks a broken measurement"),
            cells,
        ),
        roofline(
            group_name(group, "roofline", workload),
            f"{workload}: under the roofline",
            footer(cells, "GFLOP/s from the FLOPs of the routing used and the median time; roof: median of the probes"),
            cells,
        ),
        phases(
            group_name(group, "phases", workload),
            f"{workload}: where the time of a call goes",
            footer(
                cells,
                f"Share of one {OURS} call, waits included; each phase is a median over the samples",
                intervals="no intervals",
            ),
            cells,
        ),
        packing_chart(group, workload),
    ]


def ratio_charts(group: Group, against: Sequence[str]) -> list[Drawn | None]:
    """Models x tokens, one figure per backend."""
    units = "Ratio of times, other / ours; = same, ? undecided, ! broken; a number alone is decided"
    return [
        ratio_table(
            group_name(group, "ratios", peer),
            f"Speed of {OURS} over {peer}",
            footer(group.cells, units),
            group.cells,
            peer,
        )
        for peer in against
    ]


def control_chart(name: str, cells: Sequence[Cell]) -> Drawn | None:
    margin = cells[0].result.margin
    units = f"Ratio of a backend to itself; shaded: the margin of {whole_percent(margin)}"
    return control(name, "A/A control: a backend against itself", footer(cells, units), cells, margin)


def scaling_chart(name: str, workload: str, cells: Sequence[Cell]) -> Drawn | None:
    units = "GFLOP/s per thread, from the FLOPs of the routing used and the median time"
    return thread_scaling(name, f"{workload}: scaling with threads", footer(cells, units), cells)
