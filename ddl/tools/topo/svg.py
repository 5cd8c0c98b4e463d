"""A pen for SVG: boxes, lines and texts as strings, all text escaped. It knows nothing of what it draws."""

from __future__ import annotations

from typing import List
from xml.sax.saxutils import escape, quoteattr

__all__ = ["Pen", "shortened", "width_of"]

_FONT = "DejaVu Sans, Verdana, Helvetica, sans-serif"
_LETTER, _BOLD = 0.6, 0.7  # of the font's size: a letter's width, on average


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Return about how wide a text is."""
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

    def dot(self, x: float, y: float, *, color: str) -> None:
        self._elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>')

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
        """Write a line; ``hint`` shows while the mouse rests on it."""
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
