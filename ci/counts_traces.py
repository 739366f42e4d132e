"""Draws the routing of the counted cases once: reports/traces/*.npz, 64 tokens each, committed.

Scores are standard normal from torch's generator with the seed that the trace names, experts are torch's top-k,
weights the softmax of the chosen scores: what a router with no preference does. Nobody chose a routing that suits a
kernel. Needs torch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from moelab.routing import Trace, save_trace

FOLDER = Path(__file__).resolve().parents[1] / "reports" / "traces"
TOKENS, SEED = 64, 0  # the first one's; each next router has the next seed
ROUTERS = {
    "yardstick": (8, 2),
    "gpt-oss-20b": (32, 4),
    "gemma-4-26b-a4b": (128, 8),
    "qwen3-30b-a3b": (128, 8),
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for number, (model, (experts, topk)) in enumerate(ROUTERS.items()):
        generator = torch.Generator().manual_seed(SEED + number)
        scores, ids = torch.topk(torch.randn(TOKENS, experts, generator=generator), topk)
        weights = torch.softmax(scores, dim=1)
        source = f"torch.topk of standard normal scores, seed {SEED + number} (ci/counts_traces.py)"
        trace = Trace(ids.numpy().astype(np.int32), weights.numpy(), model, 0, source)
        save_trace(FOLDER / f"{model}.npz", trace)
        rows = np.bincount(trace.topk_ids.ravel(), minlength=experts)
        print(f"{model}: {int((rows % 2).sum())} of {experts} experts have an odd number of rows; {rows.tolist()}")


if __name__ == "__main__":
    main()
