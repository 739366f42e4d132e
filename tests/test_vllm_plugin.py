"""The plugin for vLLM where there is no vLLM: silent unless asked for. `nox -s vllm` tests it in vLLM itself."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

from moelab_kernels.vllm import INSTALL, register

ROOT = Path(__file__).resolve().parent.parent


def test_entry_point():
    """vLLM finds it by this group; importing it imports nothing of vLLM."""
    (point,) = (point for point in entry_points(group="vllm.general_plugins") if point.name == "moelab")
    assert point.value == "moelab_kernels.vllm:register"
    code = """
import sys
import moelab_kernels.vllm
moelab_kernels.vllm.register()
print(any(name.split(".")[0] == "vllm" for name in sys.modules))
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env={})
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize("value", [None, "", "0", " 0 "])
def test_off(monkeypatch: pytest.MonkeyPatch, value: str | None):
    monkeypatch.delenv("MOELAB_VLLM", raising=False)
    if value is not None:
        monkeypatch.setenv("MOELAB_VLLM", value)
    register()


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_asked_for_without_vllm(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOELAB_VLLM", "1")
    said = f"MOELAB_VLLM=1, but vLLM is not installed; {INSTALL}"
    with pytest.raises(ImportError, match=f"^{re.escape(said)}$"):
        register()


def test_the_readme_installs_it_as_the_sentence_says():
    section = (ROOT / "README.md").read_text().split("### Use it in vLLM")[1]
    assert section.split("```sh\n")[1].startswith(INSTALL.removeprefix("in moelab's repository: ") + "\n")


def test_a_value_that_is_neither(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOELAB_VLLM", "on")
    with pytest.raises(ValueError, match=r"^MOELAB_VLLM: 'on', expected 1 \(moelab's kernels\) or 0 \(vLLM's own\)$"):
        register()
