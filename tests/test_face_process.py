"""The Python face in a process: without torch, without ml_dtypes, with threads, after a fork, with one OpenMP."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moelab_kernels as mk
from face_layer import make_inputs, make_layer, pack_arguments

ROOT = Path(__file__).resolve().parents[1]
HAS_TORCH = "torch" in sys.modules

# What every script starts with: a layer in numpy, packed, and its output.
LAYER = """
import sys
import numpy as np
import moelab_kernels as mk

random = np.random.default_rng(0)


def bits(*shape):
    return (random.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)


E, H, I, M, K = 4, 64, 48, 30, 2
packed = mk.pack(bits(E, 2 * I, H), bits(E, H, I), activation="silu", bf16_as_uint16=True)
x, weights, ids = bits(M, H), random.random((M, K), np.float32), random.integers(0, E, (M, K))


def run(threads):
    return mk.fused_moe(x, packed, weights, ids, num_threads=threads, bf16_as_uint16=True)
"""


def run_script(*parts: str, timeout: float = 120, **environment: str) -> str:
    """Output of a script in a process of its own, which must end well."""
    script = "\n".join(textwrap.dedent(part) for part in parts)
    outcome = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONWARNINGS": "error", **environment},
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def blocked(*names: str) -> str:
    """Start of a script in which these packages are not installed."""
    return f"""
        import sys

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {names!r}:
                    raise ModuleNotFoundError("No module named " + name, name=name)
                return None

        sys.meta_path.insert(0, Blocked())
        import importlib.util
        real = importlib.util.find_spec
        importlib.util.find_spec = lambda name, package=None: None if name in {names!r} else real(name, package)
    """


def test_without_torch() -> None:
    output = run_script(
        blocked("torch"),
        LAYER,
        """
        assert run(1).shape == (M, H)
        assert packed.unpack()[0].dtype == np.uint16
        for function in (lambda: packed.tensor, lambda: mk.fused_moe([1], packed, weights, ids)):
            try:
                function()
            except (RuntimeError, TypeError) as error:
                print(error)
        assert "torch" not in sys.modules
        """,
    )
    assert output.count("torch is not installed") == 2


def test_without_ml_dtypes() -> None:
    run_script(
        blocked("torch", "ml_dtypes"),
        LAYER,
        """
        again = mk.PackedExperts.from_buffer(packed.tobytes())
        assert again.unpack()[0].dtype == np.uint16
        floats = mk.pack(np.ones((E, 2 * I, H), np.float32), np.ones((E, H, I), np.float32), activation="gelu")
        assert floats.unpack()[0].dtype == np.uint16
        assert (floats.unpack()[0] == 0x3F80).all()
        """,
    )


def test_a_broken_torch_is_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open')")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    output = run_script(
        """
        import warnings

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import moelab_kernels
        print(caught[0].message)
        """,
        LAYER,
        "run(1)",
        PYTHONPATH=paths,
    )
    assert "libtorch_cpu.so: cannot open" in output


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
def test_importing_registers_the_ops_whichever_comes_first() -> None:
    for imports in ("import torch, moelab_kernels", "import moelab_kernels, torch"):
        run_script(imports, "assert torch.ops.moelab.fused_moe.default and torch.ops.moelab.fused_moe_out.default")


# ---- one OpenMP ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
@pytest.mark.parametrize("order", ["import torch", "pass"])
def test_one_openmp_runtime(order: str) -> None:
    """torch's team of threads is ours: a parallel call of ours after one of torch's starts no new thread."""
    output = run_script(
        order,
        LAYER,
        """
        import os
        import torch

        def tasks():
            return len(os.listdir("/proc/self/task"))

        torch.set_num_threads(5)
        before = tasks()
        torch.ones(4_000_000).add_(1)
        with_torch = tasks()
        run(5)
        print(before, with_torch, tasks())
        mapped = {line.split()[-1] for line in open("/proc/self/maps")}
        print(*[path for path in mapped if "omp" in path.rpartition("/")[2] and ".so" in path])
        """,
        OMP_NUM_THREADS="1",  # until torch is asked for five
    )
    counts, paths = output.splitlines()
    before, with_torch, with_both = map(int, counts.split())
    assert with_torch == before + 4
    assert with_both == with_torch
    if os.uname().machine == "x86_64":
        # The aarch64 wheel renames its libgomp, so that the system's is mapped too, and bound by nobody.
        assert len(paths.split()) == 1, paths


def test_a_second_openmp_runtime_is_detected(tmp_path: Path) -> None:
    output = run_script(
        LAYER,
        f"""
        import ctypes
        import shutil

        first = mk.build_info()["openmp"]
        run(2)
        path = next(line.split()[-1] for line in open("/proc/self/maps") if first[0] in line)
        shutil.copy(path, {str(tmp_path)!r} + "/libiomp5.so")
        ctypes.CDLL({str(tmp_path)!r} + "/libiomp5.so")
        print(len(first), sorted(set(mk.build_info()["openmp"]) - set(first)))
        """,
    )
    one = "1" if os.uname().machine == "x86_64" else output[0]  # torch for aarch64 maps a second copy, bound by nobody
    assert output == f"{one} ['libiomp5.so']\n"


# ---- fork ---------------------------------------------------------------------------------------------

FORK = """
    import os
    import signal

    def in_child(function):
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # a hang ends with SIGALRM
            try:
                function()
            except BaseException as error:
                print(error, file=sys.stderr)
                os._exit(1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("threads", ["2", "None"])
def test_fork_after_our_threads(threads: str) -> None:
    run_script(
        LAYER,
        FORK,
        f"""
        expected = run(2)

        def check():
            assert (run({threads}) == expected).all()

        assert in_child(check) == 0
        assert in_child(lambda: in_child(check) and 1 / 0) == 0  # a grandchild
        assert (run(2) == expected).all()  # the parent still has its threads
        """,
    )


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
def test_fork_after_torchs_threads() -> None:
    run_script(
        LAYER,
        FORK,
        """
        import torch

        torch.set_num_threads(2)
        torch.ones(4_000_000).add_(1)
        x_torch = torch.zeros(M, H, dtype=torch.bfloat16)

        def check():
            mk.fused_moe(x_torch, packed, torch.from_numpy(weights), torch.from_numpy(ids), num_threads=2)
            run(2)
            mk.pack(torch.ones(2, 8, 64), torch.ones(2, 64, 4), activation="silu")

        assert in_child(check) == 0
        """,
    )


def test_fork_before_any_thread() -> None:
    run_script(LAYER, FORK, "assert in_child(lambda: run(2)) == 0")


def test_packed_weights_survive_their_child() -> None:
    run_script(LAYER, FORK, "expected = run(1)\nassert in_child(lambda: None) == 0\nassert (run(1) == expected).all()")


# ---- threads ------------------------------------------------------------------------------------------


def test_concurrent_calls() -> None:
    layer = make_layer(experts=6, hidden=96, intermediate=64)
    packed = mk.pack(**pack_arguments(layer, "uint16"))
    cases = [make_inputs(layer, tokens=20 + 7 * i, topk=2, seed=i) for i in range(8)]

    def one(i: int) -> Any:
        case = cases[i]
        return mk.fused_moe(
            case.x, packed, case.topk_weights, case.topk_ids, num_threads=1 + i % 3, bf16_as_uint16=True
        )

    expected = [one(i) for i in range(len(cases))]
    wrong: list[str] = []

    def work(i: int) -> None:
        for _ in range(20):
            try:
                if not np.array_equal(one(i), expected[i]):
                    wrong.append(f"case {i} differs")
            except Exception as error:  # noqa: BLE001 - whatever it is, the test has failed
                wrong.append(repr(error))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_errors_belong_to_their_thread() -> None:
    layer = make_layer(experts=4)
    packed = mk.pack(**pack_arguments(layer, "uint16"))
    wrong: list[str] = []

    def work(bad: int) -> None:
        case = make_inputs(layer)
        case.topk_ids[1, 1] = bad
        for _ in range(200):
            try:
                mk.fused_moe(case.x, packed, case.topk_weights, case.topk_ids, bf16_as_uint16=True)
            except ValueError as error:
                if str(bad) not in str(error):
                    wrong.append(str(error))
            else:
                wrong.append("no error")

    workers = [threading.Thread(target=work, args=(1000 + i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_the_gil_is_released() -> None:
    layer = make_layer(experts=4, hidden=512, intermediate=512)
    packed = mk.pack(**pack_arguments(layer, "uint16"), isa="scalar")
    case = make_inputs(layer, tokens=60, topk=4)
    span: list[float] = []

    def call() -> None:
        span.append(time.monotonic())
        mk.fused_moe(case.x, packed, case.topk_weights, case.topk_ids, num_threads=1, bf16_as_uint16=True)
        span.append(time.monotonic())

    worker = threading.Thread(target=call)
    ticks = []
    worker.start()
    while worker.is_alive():
        ticks.append(time.monotonic())
        time.sleep(0.001)
    start, end = span
    # Held, the lock would leave this loop no tick inside the call, but for one at either edge.
    assert sum(start < tick < end for tick in ticks) > 2, f"a call of {end - start:.3f} s"


# ---- the folder kernels/ -------------------------------------------------------------------------------


def test_the_folder_kernels_hides_no_package() -> None:
    """transformers asks whether a package `kernels` is installed; the folder of that name must not answer."""
    script = "import importlib.util; print(importlib.util.find_spec('kernels'))"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    outcome = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment, "PYTHONSAFEPATH": "1"},
    )
    assert str(ROOT) not in outcome.stdout
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert str(ROOT) not in sys.path, "the repository's root on sys.path hides the package"


def test_a_profile_adds_up_to_the_call() -> None:
    script = """
        import time

        run(2)
        start = time.perf_counter()
        run(2)
        whole = time.perf_counter() - start
        profile = mk.last_profile()
        print(sum(profile.values()), whole, *profile)
    """
    words = run_script(blocked("torch"), LAYER, script, MOELAB_PROFILE="1").split()
    assert 0 < float(words[0]) <= float(words[1])
    assert words[2:] == ["route", "pack", "gemm1", "gemm2", "combine", "wait"]
    assert float(run_script(blocked("torch"), LAYER, script, MOELAB_PROFILE="0").split()[0]) == 0


def test_the_laboratory_names_a_package_it_lacks() -> None:
    output = run_script(
        blocked("scipy"),
        """
        import contextlib
        import io

        sys.argv = ["moelab", "workloads"]
        from moelab.__main__ import main

        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            status = main()
        print(status, errors.getvalue())
        """,
    )
    assert output.startswith("1 moelab: the package scipy is not installed")
