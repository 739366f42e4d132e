"""Where a figure or table comes from, in the words of its footer: units, n, interval, machine, revision, command."""

from __future__ import annotations

from collections.abc import Sequence

from moelab.report.model import Cell, Result
from moelab.report.text import count, whole_percent

_MOST_RUNS = 2
GOES_ON = "; a triangle at the edge: the interval goes on"


def footer(cells: Sequence[Cell], units: str, *, intervals: str = "") -> str:
    """Lines for a figure's footer, separated by newlines; `intervals` as in `origin`."""
    settings = list(dict.fromkeys(cell.setting.label for cell in cells))
    return origin(runs(cells), units, sample_size(cells), settings, intervals=intervals)


def origin(results: Sequence[Result], units: str, samples: str, settings: Sequence[str], *, intervals: str = "") -> str:
    """The same for figures of anything that was run: `samples` says n, `settings` how it was run.

    `intervals`: what the lines around a point are, where they are no bootstrap intervals, or that there are none.
    """
    machines = list(dict.fromkeys(f"{r.machine.name} ({r.machine.part}), {r.machine.cpus} CPUs" for r in results))
    bootstrap = f"intervals: {level(results) or whole_percent(0.95)} bootstrap over processes and rounds"
    lines = [
        f"{_loud(results)}{units}. {samples}; {intervals or bootstrap}.",
        f"Machine: {_some(machines)}; {_some(settings)}.",
        f"Revision: {_some(list(dict.fromkeys(r.revision_label for r in results)))}"
        + (f"; image {results[0].image}" if results and results[0].image else "")
        + f"; {_some([f'{r.name} (sha256 {r.digest[:12]})' for r in results])}.",
    ]
    commands = list(dict.fromkeys(r.command for r in results if r.command))
    if commands:
        lines.append(f"Repeat: {_some(commands)}")
    return "\n".join(lines)


def level(results: Sequence[Result]) -> str:
    """The level of the intervals of these runs; all of them where runs differ."""
    return " and ".join(dict.fromkeys(whole_percent(result.level) for result in results))


def margin(results: Sequence[Result]) -> str:
    """The margin within which a ratio of these runs counts as the same; all of them where runs differ."""
    return " and ".join(dict.fromkeys(whole_percent(result.margin) for result in results))


def sample_size(cells: Sequence[Cell]) -> str:
    """n of the points: samples, processes and rounds."""
    sizes = [len(m.samples.seconds) for cell in cells for m in cell.measurements.values()]
    if not sizes:
        return "n unknown"
    n = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    processes = {cell.processes for cell in cells}
    over = f" from {count(max(processes), 'process', 'processes')}" if processes else ""
    return f"n = {n} samples per point{over}"


def runs(cells: Sequence[Cell]) -> list[Result]:
    """The runs behind the cells, each once, newest first."""
    found = {cell.result.digest: cell.result for cell in cells}
    return sorted(found.values(), key=lambda result: (result.started, result.digest), reverse=True)


def _loud(results: Sequence[Result]) -> str:
    if any(result.synthetic for result in results):
        return "SYNTHETIC, NOT MEASURED. "
    if any(result.emulated for result in results):
        return "EMULATED, NOT A SPEED. "
    return ""


def _some(items: Sequence[str]) -> str:
    rest = len(items) - _MOST_RUNS
    return "; ".join(items[:_MOST_RUNS]) + (f"; and {rest} more" if rest > 0 else "")
