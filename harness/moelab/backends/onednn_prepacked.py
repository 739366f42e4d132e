"""The loop over experts on weights that oneDNN has packed in its own blocked layout."""

from __future__ import annotations

from moelab.backends.base import Facts
from moelab.backends.torch_common import bf16_tensor
from moelab.backends.torch_loop import TorchLoop
from moelab.weights import Weights
from moelab.workloads import Layer

# oneDNN chooses a layout for one number of rows; any other number works on it too.
_ROWS = 64


class OnednnPrepacked(TorchLoop):
    """torch_loop with torch.ops.mkldnn._linear_pointwise in place of the linear layer."""

    name = "onednn_prepacked"

    def unavailable(self) -> str | None:
        missing = super().unavailable()
        if missing:
            return missing
        import torch

        if not torch.backends.mkldnn.is_available():
            return f"torch {torch.__version__} was built without oneDNN"
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "oneDNN has no BF16 on this CPU"
        return None

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        import torch

        self.start(layer, threads)
        self.keep_biases(weights)
        reorder, product = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise.default
        self._linear = lambda rows, weight, bias: product(rows, weight, bias, "none", [], "")
        self._w13 = [reorder(bf16_tensor(w), _ROWS) for w in weights.w13]
        self._w2 = [reorder(bf16_tensor(w), _ROWS) for w in weights.w2]

    def describe(self) -> Facts:
        return super().describe() | {"packing": f"oneDNN blocked, chosen for {_ROWS} rows"}
