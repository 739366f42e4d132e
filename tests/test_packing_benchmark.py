"""The benchmark of packing, and how it and `bench` measure memory."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moelab_kernels as mk
from moelab.memory import Growth
from moelab.workloads import layer_by_name

SCRIPT = Path(__file__).resolve().parents[1] / "harness" / "benchmarks" / "packing.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_growth_sees_memory_that_is_given_back() -> None:
    with Growth() as growth:
        block = np.ones(64 << 20, np.uint8)
        time.sleep(0.05)
        del block
    assert 60 << 20 <= growth.most < 128 << 20
    assert growth.left < 8 << 20


def test_packing_beside_memcpy(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    options = ["--workload", "tiny", "--experts", "2", "--rounds", "2", "--threads", "2", "--layout", "transposed"]
    done = run(*options, "--json", str(out))
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    assert [row["dtype"] for row in rows] == ["bf16", "fp16", "fp32"]
    for row in rows:
        assert row["threads"] == 2
        assert row["first_call_seconds"] > 0
        assert row["pack_seconds"] > 0
        for name in ("new", "there"):
            rates = row["gigabytes_per_second"]
            assert row["share_of_memcpy"][name] > 0
            assert rates[name] > 0
        assert row["dtype"] in done.stdout
    assert rows[2]["bytes"] > rows[0]["bytes"]


def test_the_clock_of_a_first_call_holds_the_packing_and_that_of_a_copy_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a clock that counts what ran instead of seconds: no other load on the machine can change the answer."""
    spec = importlib.util.spec_from_file_location("packing_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    counts = {"pack": 0, "fused_moe": 0}

    def counted(name: str) -> Any:
        real = getattr(mk, name)

        def call(*given: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(*given, **options)

        return call

    def clock(run: Any) -> float:
        before = dict(counts)
        run()
        return 1 + 10 * (counts["pack"] - before["pack"]) + 100 * (counts["fused_moe"] - before["fused_moe"])

    for name in counts:
        monkeypatch.setattr(mk, name, counted(name))
    monkeypatch.setattr(script, "seconds", clock)
    row = script.measure(layer_by_name("tiny"), 2, "bf16", "split", 1, 2, None)
    assert row["pack_seconds"] == 11
    assert row["first_call_seconds"] == 111
    assert row["share_of_memcpy"] == {"new": pytest.approx(1 / 11), "there": pytest.approx(1 / 11)}


def test_an_unknown_layout_is_refused_by_name() -> None:
    done = run("--layout", "rows")
    assert done.returncode == 2
    assert "--layout: 'rows', expected some of split, interleaved, transposed" in done.stderr
