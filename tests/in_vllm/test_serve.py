"""vLLM's server as the README starts it: one completion over HTTP, on our experts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from moelab_kernels import isas

ROOT = Path(__file__).resolve().parents[2]
NEW_TOKENS = 4
# Beside the README's line: a port of the loopback, and what makes a small machine start in seconds.
OPTIONS = ("--enforce-eager", "--max-model-len", "64", "--kv-cache-memory-bytes", str(64 << 20), "--max-num-seqs", "2")
# The machine's settings for a proxy are not for its loopback.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def save_tokenizer(folder: Path) -> None:
    """Bytes are tokens, 256 of them, as many as the tiny models know."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def readme_words() -> list[str]:
    """The README's command between `python` and the model."""
    section = (ROOT / "README.md").read_text().split("### Use it in vLLM")[1].split("```sh\n")[1]
    line = next(line for line in section.splitlines() if line.startswith("MOELAB_VLLM=1 "))
    variable, python, *words, _ = line.split()
    assert (variable, python) == ("MOELAB_VLLM=1", "python")
    return words


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(folder: Path, log: Path, **variables: str) -> Iterator[str]:
    """Address of a server that is ready; it and its workers have ended afterwards."""
    port = free_port()
    command = [sys.executable, *readme_words(), str(folder), "--host", "127.0.0.1"]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--port", str(port), *OPTIONS],
            env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **variables},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/health", server, log)
        yield address
    finally:
        server.terminate()  # nothing where it has ended already
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        with suppress(ProcessLookupError):  # of workers that outlive it
            os.killpg(server.pid, signal.SIGKILL)


def wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 300
    while True:
        try:
            DIRECT.open(address, timeout=5).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert server.poll() is None, log.read_text()[-6000:]
            assert time.monotonic() < end, log.read_text()[-6000:]
            time.sleep(0.5)
        else:
            return


def completion(address: str, folder: Path) -> dict[str, Any]:
    asked = {"model": str(folder), "prompt": "experts", "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with DIRECT.open(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.fixture
def served(saved: dict[str, Path], tmp_path: Path) -> Path:
    """A tiny random checkpoint with a tokenizer, which only a server needs."""
    folder = shutil.copytree(saved["qwen3_moe"], tmp_path / "served")
    save_tokenizer(folder)
    return folder


def test_a_completion_over_http(served: Path, cache: Path, tmp_path: Path):
    log = tmp_path / "log"
    with serving(served, log, MOELAB_VLLM="1", VLLM_CACHE_ROOT=str(cache)) as address:
        found = completion(address, served)
    assert found["usage"] == found["usage"] | {"prompt_tokens": len("experts"), "completion_tokens": NEW_TOKENS}
    (line,) = [line for line in log.read_text().splitlines() if "moelab: " in line]
    assert f"moelab: kernels {isas()[0]} compute 2 MoE layers, model.layers.0." in line
