"""One OpenMP runtime in the process, and a thread count that a forked child survives."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from operator import index
from pathlib import Path
from typing import Any

_INT32_MAX = 2**31 - 1


def prefer_torch_runtime() -> None:
    """Loads the libgomp that torch ships, where it ships one, so that ours and torch's are the same.

    The x86-64 wheel has it as libgomp.so.1, the name that libmoelab asks for too, so the first one loaded serves
    both. The aarch64 wheel has it under another name: there its symbols must come before the system's in the
    global scope, and libmoelab binds to them.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return
    package = Path(spec.origin).parent
    for library in (*package.glob("lib/libgomp*.so*"), *package.parent.glob("torch.libs/libgomp*.so*")):
        same_name = library.name == "libgomp.so.1"
        ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL if same_name else ctypes.RTLD_GLOBAL)
        return


def loaded() -> list[str]:
    """Names of the OpenMP runtimes in this process. With more than one, their threads compete for the cores."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    mapped = {line.split(maxsplit=5)[-1] for line in lines if "omp" in line}
    names = [Path(path).name for path in sorted(mapped)]
    return [name for name in names if name.startswith(("libgomp", "libomp", "libiomp")) and ".so" in name]


class _Threads:
    """`default` asks the framework; `limit` is None but in a forked child."""

    default: Callable[[], int] | None = None
    limit: int | None = None


threads = _Threads()


def checked(num_threads: Any) -> int:
    """A thread count that somebody asked for. Raises TypeError or ValueError."""
    if type(num_threads) is int and 1 <= num_threads <= _INT32_MAX:  # the common case, at a third of the time
        return num_threads
    try:
        count = index(num_threads)
    except TypeError:
        raise TypeError(f"num_threads: {type(num_threads).__name__}, expected an int or None") from None
    if not 1 <= count <= _INT32_MAX:
        raise ValueError(f"num_threads: {count}, expected 1 or more, or None for the process's setting")
    return count


def resolve(num_threads: int | None) -> int:
    """The thread count to hand to the library; 0 leaves it to the OpenMP setting of the calling thread."""
    if threads.limit is not None:
        return threads.limit
    if num_threads is None:
        # torch keeps one setting for the process and gives it to a thread on its first parallel call; OpenMP
        # alone would not know it in a new thread.
        return threads.default() if threads.default is not None else 0
    return checked(num_threads)


def _after_fork() -> None:
    # A child inherits libgomp's record of a thread team but not the threads: its next parallel region waits for
    # them for ever. libmoelab knows when it has started a team itself; that torch has, nobody can tell.
    if "torch" in sys.modules:
        threads.limit = 1


os.register_at_fork(after_in_child=_after_fork)
