"""The report's colours: contrast and distance, measured here under normal and colour-blind sight."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from moelab.report.palette import BACKENDS, PHASES, ROLES, Look, backend_look

Vector = npt.NDArray[np.float64]

# Machado, Oliveira, Fernandes (2009), severity 1, on linear RGB.
SIGHT: dict[str, Vector] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> Vector:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: Vector) -> Vector:
    """CIE L*a*b* (D65) of linear sRGB."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def luminance(colour: str) -> float:
    return float(linear(colour) @ np.array([0.2126, 0.7152, 0.0722]))


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def colour(look: Look, mode: str) -> str:
    return look.dark if mode == "dark" else look.light


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_backends_differ_for_every_eye(mode: str, sight: str) -> None:
    """25 units of CIE76 are more than ten times a just noticeable difference."""
    seen = {name: lab(SIGHT[sight] @ linear(colour(look, mode))) for name, look in BACKENDS.items()}
    for first, second in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[first] - seen[second]) >= 25, (first, second)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_lines_and_text_stand_out_from_the_page(mode: str) -> None:
    page = colour(ROLES["bg"], mode)
    for name, look in {**BACKENDS, **PHASES, "other": backend_look("somebody's")}.items():
        assert contrast(colour(look, mode), page) >= 3, name  # WCAG 1.4.11, graphics
    for name in ("fg", "muted"):
        assert contrast(colour(ROLES[name], mode), page) >= 4.5, name  # WCAG 1.4.3, text


def test_backends_differ_without_any_colour() -> None:
    for kind in ("marker", "dash", "hatch"):
        marks = [getattr(look, kind) for look in BACKENDS.values()]
        assert len(set(marks)) == len(marks), kind


def test_a_backend_keeps_its_look() -> None:
    assert backend_look("vllm") is BACKENDS["vllm"]
    assert backend_look("moelab:avx2").light == BACKENDS["moelab"].light
    assert backend_look("moelab:avx2").marker != backend_look("moelab:avx512").marker
    assert backend_look("new-peer") is backend_look("new-peer")
    assert backend_look("new-peer").light not in {look.light for look in BACKENDS.values()}


def test_every_colour_means_one_thing() -> None:
    """The SVG's colours are told apart by their light value, so none may stand for two roles."""
    lights = [look.light for group in (BACKENDS, ROLES, PHASES) for look in group.values()]
    assert len(set(lights)) == len(lights)
