"""What every test file relies on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers' models here come from nowhere but their configurations

# Where somebody tests the kernels without transformers; the sessions and images have it.
collect_ignore_glob = [] if find_spec("transformers") else ["test_transformers*.py"]
# `nox -s vllm` runs these in an environment of its own.
if find_spec("vllm") is None:
    collect_ignore_glob.append("in_vllm/*")


@pytest.fixture(autouse=True)
def grad_mode() -> Iterator[None]:
    """A torch backend switches gradients off for its process; the next test gets them back."""
    before = sys.modules.get("torch")
    enabled = before.is_grad_enabled() if before else True
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_grad_enabled(enabled)


@pytest.fixture(scope="module")
def fewer_resamples() -> Iterator[None]:
    """For tests that do not hang on the last digits of an interval's ends."""
    from moelab import statistics  # not every environment that runs tests has scipy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 500)
        yield
