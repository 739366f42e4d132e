"""One colour, marker, dash and hatch per backend, the same in every figure and on every page.

The two sets (light and dark background) were searched for the largest smallest colour difference under normal sight,
protanopia, deuteranopia and tritanopia, with a contrast of at least 3:1 to the background; tests/test_report_palette.py
measures both again. Markers, dashes and hatches differ too, so that the figures read in greyscale.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Look:
    """How one backend (or role) is drawn: colours as #rrggbb for a light and for a dark page, and matplotlib codes."""

    css: str
    light: str
    dark: str
    marker: str = "o"
    dash: tuple[float, ...] = ()
    hatch: str = ""


BACKENDS: dict[str, Look] = {
    "moelab": Look("moelab", "#fc5e07", "#e25817", "o", (), ""),
    "torch_loop": Look("torch-loop", "#5d5d5d", "#ebebeb", "s", (5, 2), "//"),
    "torch_grouped_mm": Look("torch-grouped-mm", "#4561d0", "#98c0ff", "^", (3, 1, 1, 1), "\\\\"),
    "onednn_prepacked": Look("onednn-prepacked", "#2b009e", "#5c41fe", "v", (1, 1), "xx"),
    "vllm": Look("vllm", "#12a663", "#0cfa91", "D", (6, 1.5), ".."),
    "sglang": Look("sglang", "#e065b4", "#d157a4", "P", (4, 1, 1, 1, 1, 1), "||"),
    "zentorch": Look("zentorch", "#6e167a", "#9664de", "X", (2, 2), "--"),
    "ggml": Look("ggml", "#883706", "#9f7155", "*", (1, 2.5), "++"),
}

# moelab forced to one ISA keeps the hue of moelab; the marker and dash tell which ISA it is.
_OURS = {
    "scalar": ("1", (1, 1)),
    "avx2": ("2", (2, 1)),
    "avx512": ("3", (3, 1)),
    "avx512_bf16": ("4", (4, 1)),
    "amx_bf16": ("+", (4, 2)),
    "neon": ("<", (5, 1)),
    "neon_bf16": (">", (6, 1)),
    "sve_bf16": ("p", (7, 1)),
}

# Engines of whole models, by the backend whose experts they run.
_ENGINES = {
    "eager": "torch_loop",
    "grouped_mm": "torch_grouped_mm",
    "vllm+moelab": "moelab:vllm",
}

# For backends added later: told apart by marker and dash, the name decides which, not the order in a file.
_OTHERS = (
    Look("other-1", "#7a6a00", "#d8c95a", "h", (3, 2), "oo"),
    Look("other-2", "#00707a", "#5fd0da", "d", (2, 1), "OO"),
    Look("other-3", "#7d4b66", "#d9a3bf", "H", (1, 3), "**"),
)

# Roles that are no backend.
ROLES: dict[str, Look] = {
    "fg": Look("fg", "#1b1f24", "#e8eaed"),
    "muted": Look("muted", "#5b6470", "#a3acb8"),
    "grid": Look("grid", "#dde1e6", "#333a44"),
    "bg": Look("bg", "#ffffff", "#14171c"),
    "shade": Look("shade", "#e9ecf0", "#232932"),
}

PHASES: dict[str, Look] = {
    "route": Look("phase-route", "#5e5f61", "#cfd2d6", hatch=""),
    "pack": Look("phase-pack", "#2f7fb8", "#74b9e8", hatch="//"),
    "gemm1": Look("phase-gemm1", "#c75a14", "#f08a48", hatch=""),
    "gemm2": Look("phase-gemm2", "#8e3a0c", "#c9743c", hatch="\\\\"),
    "combine": Look("phase-combine", "#0f8a68", "#3fd1a6", hatch=".."),
    "wait": Look("phase-wait", "#9a6fa8", "#c9a3d6", hatch="xx"),
}


def backend_look(name: str) -> Look:
    """The look of a backend by its name in results; a name not known here always gets the same reserve look."""
    if name in BACKENDS:
        return BACKENDS[name]
    base, _, variant = name.partition(":")
    if base == "moelab":
        ours = BACKENDS["moelab"]
        marker, dash = _OURS.get(variant, ("8", (8.0, 1.0)))
        return Look(ours.css, ours.light, ours.dark, marker, dash, "---")
    return _OTHERS[zlib.crc32(name.encode("utf-8", "replace")) % len(_OTHERS)]


def engine_look(name: str) -> Look:
    """The look of an engine of whole models: that of the backend that computes its experts."""
    return backend_look(_ENGINES.get(name, name))


def engine_order(name: str) -> tuple[tuple[int, str], str]:
    """Sort key of engines, in the order of their backends."""
    return (backend_order(_ENGINES.get(name, name)), name)


def backend_order(name: str) -> tuple[int, str]:
    """Sort key: ours first, then the order of the table above, then names not known here."""
    base = name.partition(":")[0]
    names = list(BACKENDS)
    return (names.index(base) if base in names else len(names), name)


def all_looks() -> list[Look]:
    """Every look that figures can use, each CSS name once."""
    seen = {look.css: look for group in (BACKENDS, ROLES, PHASES) for look in group.values()}
    seen.update({look.css: look for look in _OTHERS})
    return list(seen.values())


def css_variables(*, dark: bool) -> str:
    """The body of a CSS rule that sets every colour of the figures, for a light or a dark page."""
    return "".join(f"--c-{look.css}:{look.dark if dark else look.light};" for look in all_looks())
