"""`moelab` and `python -m moelab`: one line, and no traceback, where only the kernels' own needs are installed."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command line; its exit status."""
    try:
        from moelab import cli

        return cli.main()
    except ModuleNotFoundError as error:
        package = (error.name or "moelab").partition(".")[0]
        if package in ("moelab", "moelab_kernels"):
            raise
        print(
            f"moelab: the package {package} is not installed: the kernels do without, the laboratory does not; "
            "in moelab's repository: pip install '.[bench,bf16]'",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
