"""The command line: `moelab` or `python -m moelab`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from moelab import bench_command, compare_command, history_command, machine_command, reproduce_command
from moelab.e2e import command as e2e_command
from moelab.text_table import table


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit status."""
    arguments = parser().parse_args(argv)
    return int(arguments.run(arguments))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="moelab", description="Proves fused MoE kernels right and measures them.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    bench = commands.add_parser("bench", help="check, then time all backends interleaved; result file and report")
    bench_command.add_arguments(bench)
    bench.set_defaults(run=bench_command.run)

    report = commands.add_parser("report", help="HTML and Markdown from result files")
    report.add_argument("results", nargs="+", type=Path, metavar="RESULT")
    report.add_argument("--out", type=Path, default=Path("report"), metavar="FOLDER")
    report.set_defaults(run=_report)

    compare = commands.add_parser("compare", help="did something change between result files?")
    compare_command.add_arguments(compare)
    compare.set_defaults(run=compare_command.run)

    reproduce = commands.add_parser("reproduce", help="run a result's command again and say whether it agrees")
    reproduce_command.add_arguments(reproduce)
    reproduce.set_defaults(run=reproduce_command.run)

    e2e = commands.add_parser("e2e", help="whole models with and without the kernels, and what explains the difference")
    e2e_command.add_arguments(e2e)
    e2e.set_defaults(run=e2e_command.run)

    history = commands.add_parser("history", help="how speeds moved over committed results, and where they jumped")
    history_command.add_arguments(history)
    history.set_defaults(run=history_command.run)

    machine = commands.add_parser("machine", help="what this machine is as an instrument, and how to improve it")
    machine_command.add_arguments(machine)
    machine.set_defaults(run=machine_command.run)

    workloads = commands.add_parser("workloads", help="the layers that can be measured")
    workloads.set_defaults(run=_workloads)

    backends = commands.add_parser("backends", help="the implementations that can be measured, and which run here")
    backends.set_defaults(run=_backends)
    return top


def _report(arguments: argparse.Namespace) -> int:
    from moelab.report import write_report  # needs matplotlib

    try:
        written = write_report(arguments.results, arguments.out)
    except ValueError as error:
        print(f"moelab report: {error}", file=sys.stderr)
        return 2
    print(written.markdown)
    print(written.html)
    return 1 if written.broken else 0


def _workloads(_: argparse.Namespace) -> int:
    from moelab.workloads import LAYERS

    rows = [
        [
            layer.name,
            *(str(n) for n in (layer.num_experts, layer.topk, layer.hidden, layer.intermediate)),
            layer.activation + (", biases" if layer.bias else ""),
            f"{layer.weight_bytes / 2**30:.2f} GiB",
        ]
        for layer in LAYERS.values()
    ]
    print(table(["name", "experts", "topk", "hidden", "intermediate", "activation", "weights"], rows))
    print("\nA name with /E<n>, /H<n> or /I<n> keeps fewer experts or cuts a size, for example mixtral-8x7b/E4.")
    return 0


def _backends(_: argparse.Namespace) -> int:
    from moelab import backends

    rows = []
    for name in backends.NAMES:
        backend = backends.create(name)
        reason = backend.unavailable() if backend.environment == "main" else None
        where = "runs here" if backend.environment == "main" else f"environment {backend.environment}"
        rows.append([name, where if reason is None else f"cannot run: {reason}"])
    print(table(["name", ""], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
