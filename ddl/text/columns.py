"""Tables of text."""

from __future__ import annotations

from typing import List, Sequence

__all__ = ["aligned"]


def aligned(rows: Sequence[Sequence[str]]) -> List[str]:
    """Return rows of cells as lines, with the cells of a column aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
