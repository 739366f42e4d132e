"""Boxes and text as SVG: all that the pictures of the kernels need."""

from __future__ import annotations

from xml.sax.saxutils import escape

INK = "#222222"


class Drawing:
    """A picture of fixed size on white, readable on any background. Coordinates in pixels from the top left."""

    def __init__(self, width: int, height: int, title: str) -> None:
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, fill: str, label: str = "", size: int = 13) -> None:
        """A filled box with its label in the middle."""
        self._rect(x, y, width, height, f'fill="{fill}" stroke="#ffffff" stroke-width="1"')
        if label:
            place = f'x="{x + width / 2:g}" y="{y + height / 2 + size * 0.36:g}" text-anchor="middle"'
            self._parts.append(f'<text {place} font-size="{size}" fill="{INK}">{escape(label)}</text>')

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        """An outline around what belongs together."""
        self._rect(x, y, width, height, f'fill="none" stroke="{INK}" stroke-width="2"')

    def text(self, x: float, y: float, text: str, size: int = 14) -> None:
        """A line of text; y is its baseline."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{INK}">{escape(text)}</text>')

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])

    def _rect(self, x: float, y: float, width: float, height: float, style: str) -> None:
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {style}/>')
