"""The pictures of kernels/README.md: up to date with the kernels, shown, and sound SVG."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ci_scripts import CI, load

sys.path.insert(0, str(CI))
pictures = load("kernel_pictures.py", "kernel_pictures")
README = Path(__file__).parents[1] / "kernels" / "README.md"


def test_pictures_are_up_to_date() -> None:
    assert pictures.stale() == [], "run ci/kernel_pictures.py"


def test_a_changed_kernel_makes_pictures_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pictures.BFMMLA_LOOPS, "12x8", (96, 24, 140))
    assert pictures.stale() == ["tiles"]
    assert pictures.main(["--check"]) == 1


def test_the_readme_shows_every_picture_and_its_links_lead_somewhere() -> None:
    text = README.read_text()
    shown = re.findall(r"!\[[^]]+\]\(pictures/(\w+)\.svg\)", text)
    assert sorted(shown) == sorted(pictures.PICTURES)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (README.parent / target).exists(), target


@pytest.mark.parametrize("name", list(pictures.PICTURES))
def test_a_picture_is_sound_and_everything_lies_inside(name: str) -> None:
    root = ET.fromstring(pictures.PICTURES[name]())
    _, _, width, height = (float(v) for v in root.attrib["viewBox"].split())
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(box.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert x >= 0, name
        assert x + w <= width + 0.5, name
        assert y + h <= height + 0.5, name
    for line in root.iter("{http://www.w3.org/2000/svg}text"):
        assert float(line.attrib["y"]) <= height, line.text


def test_tiles_are_drawn_to_scale() -> None:
    text = pictures.tiles()
    accumulators = sum(sums for _, sums, _ in pictures.BFMMLA_LOOPS.values())
    assert text.count('width="15" height="15"') == accumulators
