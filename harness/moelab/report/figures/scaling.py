"""Thread scaling: GFLOP/s per core over threads, at the fewest and the most tokens that were run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from moelab.report.figures.canvas import Drawn, Handle, legend_above, new_figure
from moelab.report.model import Cell, Measurement
from moelab.report.palette import backend_look, backend_order

Row = tuple[int, int, str, float, float, float]


def thread_scaling(name: str, title: str, footer: str, cells: Sequence[Cell]) -> Drawn | None:
    """None where fewer than two numbers of threads were run with the same case."""
    rows: list[Row] = sorted(
        (
            (cell.case.tokens, cell.setting.threads, m.backend, *_rates(m, cell.setting.threads))
            for cell in cells
            for m in cell.measurements.values()
            if cell.setting.threads > 0 and math.isfinite(m.roofline.flops) and not m.broken
        ),
        key=lambda row: (row[0], backend_order(row[2]), row[1]),
    )
    threads = {tokens: {row[1] for row in rows if row[0] == tokens} for tokens in {row[0] for row in rows}}
    scaled = sorted(tokens for tokens, counts in threads.items() if len(counts) > 1)
    if not scaled:
        return None
    shown = scaled if len(scaled) < 3 else [scaled[0], scaled[-1]]
    rows = [row for row in rows if row[0] in scaled]
    backends = list(dict.fromkeys(row[2] for row in rows))
    alt = (
        f"GFLOP/s per thread over {min(min(threads[t]) for t in scaled)} to {max(max(threads[t]) for t in scaled)} "
        f"threads at {' and '.join(map(str, shown))} tokens for {', '.join(backends)}; a flat line scales fully."
    )
    columns = ("tokens", "threads", "backend", "gflops_per_thread", "low", "high")
    return Drawn(name, title, alt, footer, columns, rows, lambda: _draw(rows, shown, backends))


def _rates(m: Measurement, threads: int) -> tuple[float, float, float]:
    """GFLOP/s per thread and the ends of its interval."""
    each = m.roofline.flops / 1e9 / threads
    return each / m.time.value, each / m.time.high, each / m.time.low


def _draw(rows: Sequence[Row], shown: Sequence[int], backends: Sequence[str]) -> Figure:
    figure, panels = new_figure(2.8, panels=len(shown))
    handles: dict[str, Handle] = {}
    for axes, tokens in zip(panels, shown, strict=True):
        counts = sorted({row[1] for row in rows if row[0] == tokens})
        for backend in backends:
            own = [row for row in rows if row[0] == tokens and row[2] == backend]
            if not own:
                continue
            look = backend_look(backend)
            ends = [[max(row[3] - row[4], 0) if math.isfinite(row[4]) else 0 for row in own],
                    [max(row[5] - row[3], 0) if math.isfinite(row[5]) else 0 for row in own]]  # fmt: skip
            line = axes.errorbar([row[1] for row in own], [row[3] for row in own], ends, color=look.light,
                                 marker=look.marker, dashes=look.dash or (None, None), elinewidth=0.9)  # fmt: skip
            handles.setdefault(backend, line)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"threads ({tokens} token{'' if tokens == 1 else 's'})")
    panels[0].set_ylabel("GFLOP/s per thread")
    legend_above(figure, list(handles.values()), list(handles))
    return figure
