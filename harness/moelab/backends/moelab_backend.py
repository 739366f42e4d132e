"""Our kernels, through `moelab_kernels`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from moelab import tiles
from moelab.backends import amx
from moelab.backends.base import Backend, Facts, Output
from moelab.rounding import FUSED
from moelab.weights import Weights
from moelab.workloads import SWIGLUOAI_ALPHA, SWIGLUOAI_LIMIT, Inputs, Layer

if TYPE_CHECKING:
    from moelab_kernels import PackedExperts


class Moelab(Backend):
    """moelab_kernels.fused_moe: on torch tensors where torch is installed, on numpy arrays elsewhere."""

    rounding = FUSED

    def __init__(self, isa: str | None = None) -> None:
        self.name = "moelab" if isa is None else f"moelab:{isa}"
        self._isa = isa
        self._packed: PackedExperts | None = None
        self._threads = 1
        self.tile: str | None = None
        """Order of neon_bf16's main loop that its process is started with; None: as the environment says."""
        self.profile = False
        """Whether its process keeps the time of each phase."""

    def process_settings(self, threads: int) -> Mapping[str, str]:
        settings = dict(super().process_settings(threads))
        if self.tile is not None:
            settings[tiles.VARIABLE] = self.tile
        if self.profile:
            settings["MOELAB_PROFILE"] = "1"
        return settings

    def unavailable(self) -> str | None:
        try:
            import moelab_kernels
        except (ImportError, OSError) as error:
            return f"moelab_kernels cannot be imported: {error}"
        usable = moelab_kernels.isas()
        if self._isa is not None and self._isa not in usable:
            return f"this CPU and build cannot run {self._isa}; usable: {', '.join(usable)}"
        return None

    def prepare(self, weights: Weights, layer: Layer, threads: int) -> None:
        import moelab_kernels

        self._threads = threads
        self._packed = moelab_kernels.pack(
            weights.w13,
            weights.w2,
            w13_bias=weights.w13_bias,
            w2_bias=weights.w2_bias,
            activation=layer.activation,
            gate_up=layer.gate_up,
            alpha=SWIGLUOAI_ALPHA,
            limit=SWIGLUOAI_LIMIT,
            isa=self._isa,
            bf16_as_uint16=True,
        )

    def bind(self, inputs: Inputs) -> Callable[[], object]:
        import moelab_kernels

        packed, threads = self._packed, self._threads
        assert packed is not None, "prepare comes first"
        fused_moe: Any = moelab_kernels.fused_moe
        try:
            from moelab.backends.torch_common import torch_inputs

            given = torch_inputs(inputs)
        except ImportError:
            return lambda: fused_moe(
                inputs.x, packed, inputs.topk_weights, inputs.topk_ids, num_threads=threads, bf16_as_uint16=True
            )
        x, weights, ids = given.x, given.topk_weights, given.topk_ids
        return lambda: fused_moe(x, packed, weights, ids, num_threads=threads)

    def result(self, out: object) -> Output:
        if isinstance(out, np.ndarray):
            return np.asarray(out, dtype=np.uint16)
        import torch

        assert isinstance(out, torch.Tensor)
        return np.asarray(out.view(torch.uint16).numpy())

    def describe(self) -> Facts:
        import moelab_kernels

        build = moelab_kernels.build_info()
        isa = self._packed.isa if self._packed is not None else self._isa
        return {
            "version": str(build.get("version")),
            "git_commit": str(build.get("git_commit", build.get("commit"))),
            "compiler": str(build.get("compiler")),
            "isa": isa,
            "packing": f"panels of {isa}",
            "tile": tiles.in_use(isa),
            "packed_bytes": self._packed.nbytes if self._packed is not None else None,
            "threads": self._threads,
            "amx": amx.with_amx() if isa is not None and isa.startswith("amx") else amx.without_amx(),
        }

    def phases(self) -> Mapping[str, float] | None:
        import moelab_kernels

        last_profile = getattr(moelab_kernels, "last_profile", None)  # `ab` also runs revisions from before it
        found: dict[str, float] = last_profile() if last_profile else {}
        return found if any(found.values()) else None

    def close(self) -> None:
        self._packed = None
