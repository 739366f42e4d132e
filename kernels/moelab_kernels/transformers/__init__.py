"""moelab's kernels as an experts implementation of transformers.

    moelab_kernels.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, experts_implementation="moelab")

Needs torch and transformers 5.24 or newer: `pip install '.[transformers]'` in moelab's repository.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moelab_kernels.transformers._record import Routing, record_routing

_OLDEST = (5, 24)


def register(*, release: bool = False) -> None:
    """Makes `experts_implementation="moelab"` known to transformers. Calling it again changes `release`.

    Experts are packed at their first use. Weights or gates that are edited or replaced later are packed again at the
    next use; of edits through `.data`, which torch does not count, those that change one fixed element of an expert are
    noticed.

    Where the kernels cannot compute a layer (gradients, another dtype or device than BF16 on the CPU, experts without
    a gate, quantised or parametrised ones, a gate that no kernel has or that has hooks, torch.export), transformers'
    own grouped_mm does, after one warning per reason.

    release: give the model's own weights back to the system while they are packed, expert by expert, so that there is
    no second copy. Saving unpacks them; whatever else asks for them (reading, loading, moving, copying, another
    implementation) puts them back first, so that every edit is noticed. Parameters look as before to those that count
    them, but hold NaN. A parameter that something else holds (a tied module, an optimizer, a variable) keeps its
    values and its memory, after a warning.

    Raises ImportError without torch or without a transformers that is new enough.
    """
    _check_versions()
    from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    from moelab_kernels.transformers._experts import experts, fp8_experts, options

    options.release = release
    ALL_EXPERTS_FUNCTIONS.register("moelab", experts)
    ALL_FP8_EXPERTS_FUNCTIONS.register("moelab", fp8_experts)


def _check_versions() -> None:
    advice = "in moelab's repository: python ci/install_torch.py; pip install '.[transformers]'"
    for name in ("torch", "transformers"):
        try:
            found = version(name)
        except PackageNotFoundError:
            raise ImportError(f"{name} is not installed; {advice}") from None
    if tuple(int(part) for part in found.split(".")[:2]) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise ImportError(f"transformers {found} is installed, {oldest} or newer is needed; {advice}")


def __getattr__(name: str) -> Any:
    # The recorder needs torch; importing this package does not, so that `register` can say what is missing.
    if name in ("Routing", "record_routing"):
        from moelab_kernels.transformers import _record

        return getattr(_record, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Routing", "record_routing", "register"]
