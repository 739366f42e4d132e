"""Who was compared: what the names in results stand for."""

from __future__ import annotations

from moelab.report.blocks import Section, Table, Value
from moelab.report.palette import backend_order
from moelab.report.summary import Group

WHAT = {
    "moelab": "the kernels of this project; moelab:NAME is one instruction set of theirs by choice",
    "torch_loop": "a loop over experts with PyTorch's linear layer, as vLLM ran on Arm before it had a kernel there",
    "torch_grouped_mm": "PyTorch's grouped matrix product, transformers' experts_implementation=\"grouped_mm\"",
    "onednn_prepacked": "a loop over experts on weights that oneDNN has packed for itself",
    "vllm": "vLLM's fused MoE kernel for CPUs",
    "sglang": "SGLang's fused MoE kernel for CPUs, as vLLM ships it",
    "zentorch": "AMD's fused MoE operator on ZenDNN",
    "ggml": "llama.cpp's graph of a layer of experts",
}
_OTHER = "not known to this report"


def compared(group: Group) -> Section:
    """The backends of the group's cells, with their versions."""
    versions: dict[str, list[str]] = {}
    for cell in group.cells:
        for m in cell.measurements.values():
            known = versions.setdefault(m.backend, [])
            if m.version and m.version not in known:
                known.append(m.version)
    rows: list[list[str | Value]] = [
        [name, WHAT.get(name.partition(":")[0], _OTHER), ", ".join(versions[name]) or "–"]
        for name in sorted(versions, key=backend_order)
    ]
    table = Table("Backends timed side by side", ("backend", "what it is", "version"), rows)
    return Section("Who was compared", [table] if rows else [], brief=True)
