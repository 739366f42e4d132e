"""What the process around a call may do: many threads, Ctrl-C, too little memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

PRELUDE = """
import numpy as np
import moelab_kernels as mk

def layer(experts, hidden, intermediate):
    random = np.random.default_rng(0)
    bits = lambda *shape: random.integers(0x3C00, 0x3D00, shape).astype(np.uint16)
    w13, w2 = bits(experts, 2 * intermediate, hidden), bits(experts, hidden, intermediate)
    return mk.pack(w13, w2, activation="silu", bf16_as_uint16=True)

def call(packed, tokens, threads):
    x = np.full((tokens, packed.hidden), 0x3F80, np.uint16)
    ids = np.zeros((tokens, 1), np.int32)
    return mk.fused_moe(x, packed, np.ones((tokens, 1), np.float32), ids, num_threads=threads, bf16_as_uint16=True)
"""


def run(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = PRELUDE + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_WAIT_POLICY": "passive", **environment},
    )


def passes(body: str, **environment: str) -> None:
    done = run(body, **environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"


def test_1_to_64_threads() -> None:
    passes("""
        packed = layer(3, 70, 45)
        first = call(packed, 33, 1)
        for threads in range(2, 65):
            assert np.array_equal(call(packed, 33, threads), first), threads
    """)


def test_more_threads_than_the_system_allows() -> None:
    # OMP_THREAD_LIMIT stands for a container's limit: fewer threads come than were asked for.
    passes(
        """
        packed = layer(3, 70, 45)
        assert np.array_equal(call(packed, 33, 16), call(packed, 33, 1))
        """,
        OMP_THREAD_LIMIT="3",
    )


def test_too_little_memory_for_scratch_is_a_memory_error() -> None:
    # Address space for a little more than there is now; then for everything again: the library still works.
    passes("""
        import resource
        packed = layer(2, 2048, 16)
        call(packed, 2, 2)
        x = np.full((20000, 2048), 0x3F80, np.uint16)
        ids, weights = np.zeros((20000, 1), np.int32), np.ones((20000, 1), np.float32)
        out = np.empty_like(x)
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (16 << 20), limit[1]))
        try:
            mk.fused_moe(x, packed, weights, ids, out=out, num_threads=2, bf16_as_uint16=True)
        except MemoryError as error:
            assert "bytes" in str(error), error
        else:
            raise AssertionError("no MemoryError")
        resource.setrlimit(resource.RLIMIT_AS, limit)
        mk.fused_moe(x, packed, weights, ids, out=out, num_threads=2, bf16_as_uint16=True)
        assert np.array_equal(out[:2], call(packed, 2, 2))
    """)


def test_too_little_memory_for_packing_is_a_memory_error() -> None:
    passes("""
        import resource
        layer(1, 8, 8)
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20), limit[1]))
        try:
            mk.Packer(64, 2880, 2880, activation="silu")
        except MemoryError:
            pass
        else:
            raise AssertionError("no MemoryError")
        resource.setrlimit(resource.RLIMIT_AS, limit)
        layer(1, 8, 8)
    """)


@pytest.mark.parametrize("threads", [1, 4])
def test_ctrl_c_interrupts_between_calls(threads: int) -> None:
    # A background job inherits SIGINT ignored, and Python then leaves it ignored: the child asks for its handler.
    code = PRELUDE + textwrap.dedent(f"""
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        packed = layer(3, 300, 200)
        print("ready", flush=True)
        try:
            while True:
                call(packed, 40, {threads})
        except KeyboardInterrupt:
            first = call(packed, 40, {threads})  # and the library goes on working
            assert np.array_equal(first, call(packed, 40, 1))
            print("interrupted", flush=True)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        assert (process.returncode, rest) == (0, "interrupted\n")
    finally:
        process.kill()
        process.wait()
