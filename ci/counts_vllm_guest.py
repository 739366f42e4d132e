"""The emulated part of counts_vllm.py: runs vLLM's fused layer between marks. Only torch is here, no moelab, no numpy.

    python3 counts_vllm_guest.py FOLDER

FOLDER holds about.json and the arrays as plain bytes; the outputs and this process's memory map are written there.
"""

from __future__ import annotations

import ctypes
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

warnings.simplefilter("ignore")  # no numpy, no CUDA


def main(folder: Path) -> None:
    about = json.loads((folder / "about.json").read_text())
    marks = ctypes.CDLL(about["marks"], ctypes.RTLD_GLOBAL)
    import torch  # finds in `marks` what its libraries ask of nobody by name

    torch.ops.load_library(about["library"])
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    def load(name: str, dtype: torch.dtype) -> torch.Tensor | None:
        if name not in about["shapes"]:
            return None
        return torch.frombuffer(bytearray((folder / name).read_bytes()), dtype=dtype).reshape(about["shapes"][name])

    def packed(name: str) -> torch.Tensor:
        weight = load(name, torch.bfloat16)
        assert weight is not None
        out = torch.empty_like(weight)
        torch.ops._C.prepack_moe_weight(weight, out, "neon")
        return out

    w13, w2 = packed("w13"), packed("w2")
    b13, b2 = load("b13", torch.bfloat16), load("b2", torch.bfloat16)
    fused = torch.ops._C.cpu_fused_moe.default
    for tokens in about["tokens"]:
        x, ids = load(f"{tokens}-x", torch.bfloat16), load(f"{tokens}-ids", torch.int32)
        weights = load(f"{tokens}-weights", torch.float32)
        assert x is not None
        out = torch.empty_like(x)
        operands = (out, x, w13, w2, b13, b2, weights, ids, False, about["activation"], "neon")
        fused(*operands)  # the call after this one is the steady one
        marks.begin()
        fused(*operands)
        marks.end()
        (folder / f"{tokens}-out").write_bytes(bytes(out.contiguous().view(torch.uint8).untyped_storage()))
    (folder / "maps").write_text(Path("/proc/self/maps").read_text())


main(Path(sys.argv[1]))
