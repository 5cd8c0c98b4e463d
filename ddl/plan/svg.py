"""A pen for SVG: boxes, lines and texts as strings, all text escaped. It knows nothing of what it draws."""

from __future__ import annotations

import math
from typing import List
from xml.sax.saxutils import escape, quoteattr

__all__ = ["Pen", "shortened", "width_of"]

_FONT = "DejaVu Sans, Verdana, Helvetica, sans-serif"
_LETTER, _BOLD = 0.6, 0.7  # average width of a letter, relative to the font's size


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Return the approximate width of a text."""
    return len(text) * size * (_BOLD if bold else _LETTER)


def shortened(text: str, size: float, width: float, *, bold: bool = False) -> str:
    """Return as much of a text as fits."""
    most = max(1, int(width / width_of("x", size, bold=bold)))
    return text if len(text) <= most else text[: most - 1] + "…"


class Pen:
    """Collects elements; ``document`` returns the whole."""

    def __init__(self) -> None:
        self._elements: List[str] = []

    def box(
        self, x: float, y: float, w: float, h: float, *, fill: str, line: str = "none", round: float = 4, dash: str = ""
    ) -> None:
        self._elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{round:g}" fill="{fill}" '
            f'stroke="{line}"{_dashed(dash)}/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, color: str, width: float = 2, dash: str = "") -> None:
        self._elements.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
            f'stroke-width="{width:g}"{_dashed(dash)}/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, color: str, width: float = 2) -> None:
        """Draw a line with a head at its second end."""
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        along, across = (x2 - x1) / length, (y2 - y1) / length  # the direction, as a vector of length 1
        head = 4 + 2 * width
        x, y = x2 - head * along, y2 - head * across  # the middle of the head's base
        self.line(x1, y1, x, y, color=color, width=width)
        corners = [(x2, y2)] + [(x - side * head * across / 2, y + side * head * along / 2) for side in (1, -1)]
        points = " ".join(f"{corner_x:.1f},{corner_y:.1f}" for corner_x, corner_y in corners)
        self._elements.append(f'<polygon points="{points}" fill="{color}"/>')

    def dot(self, x: float, y: float, *, color: str, fill: str = "") -> None:
        """Draw a dot, or with ``fill`` a ring around that colour."""
        self._elements.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3.2 if fill else 4}" fill="{fill or color}"'
            + (f' stroke="{color}" stroke-width="1.6"/>' if fill else "/>")
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        color: str = "#1a202c",
        anchor: str = "start",
        bold: bool = False,
        hint: str = "",
    ) -> None:
        """Write a line of text; ``hint`` is shown while the mouse rests on it."""
        weight = ' font-weight="bold"' if bold else ""
        title = f"<title>{escape(hint)}</title>" if hint else ""
        self._elements.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{color}" text-anchor="{anchor}"{weight}>'
            f"{title}{escape(text)}</text>"
        )

    def document(self, width: float, height: float, title: str) -> str:
        """Return the drawing, on white."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
                f'viewBox="0 0 {width:.0f} {height:.0f}" font-family={quoteattr(_FONT)}>',
                f"<title>{escape(title)}</title>",
                f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
                *self._elements,
                "</svg>\n",
            ]
        )


def _dashed(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""
