"""Sets of moments as sorted lists of spans that do not touch: their union, what two share, and their length."""

from __future__ import annotations

from typing import Iterable, List, Sequence, Tuple

__all__ = ["Span", "length", "shared", "union", "without"]

Span = Tuple[float, float]


def union(spans: Iterable[Span]) -> List[Span]:
    """Return the moments that lie in any of ``spans``, which may overlap; empty ones are left out."""
    whole: List[Span] = []
    for begin, end in sorted(spans):
        if whole and begin <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], end))
        elif begin < end:
            whole.append((begin, end))
    return whole


def shared(a: Sequence[Span], b: Sequence[Span]) -> List[Span]:
    """Return the moments that lie in both sets."""
    spans: List[Span] = []
    i = j = 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            spans.append((begin, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return spans


def without(a: Sequence[Span], b: Sequence[Span]) -> List[Span]:
    """Return the moments of ``a`` that do not lie in ``b``."""
    ends = [float("-inf"), *(moment for span in b for moment in span), float("inf")]
    return shared(a, list(zip(ends[::2], ends[1::2])))


def length(spans: Iterable[Span]) -> float:
    """Return how long a set is."""
    return sum(end - begin for begin, end in spans)
