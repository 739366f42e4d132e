"""Fused Mixture-of-Experts kernels for CPUs: pack the experts once, then one call per layer.

    packed = moelab_kernels.pack(w13, w2, activation="silu")
    y = moelab_kernels.fused_moe(x, packed, topk_weights, topk_ids)

Takes torch tensors and numpy arrays. Where torch is installed, importing this package also registers
torch.ops.moelab.fused_moe and torch.ops.moelab.fused_moe_out.
"""

from __future__ import annotations

from moelab_kernels._call import fused_moe
from moelab_kernels._info import build_info, isas, last_profile, peak
from moelab_kernels._pack import Packer, pack
from moelab_kernels._packed import PackedExperts

__all__ = ["PackedExperts", "Packer", "build_info", "fused_moe", "isas", "last_profile", "pack", "peak"]
