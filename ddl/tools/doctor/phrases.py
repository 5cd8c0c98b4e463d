"""Writes numbers, hosts and pairs of hosts for people."""

from __future__ import annotations

from typing import Iterable, Sequence, Tuple

from ddl.text.units import bytes_text, counted, duration

__all__ = ["bytes_text", "counted", "duration", "pairs_text", "rate"]

_SHOWN = 3  # pairs of hosts in one line


def rate(bits_per_s: float) -> str:
    """Return ``94 Gb/s`` or ``961 Mb/s``."""
    value, unit = (bits_per_s / 1e9, "Gb/s") if bits_per_s >= 1e9 else (bits_per_s / 1e6, "Mb/s")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def pairs_text(pairs: Iterable[Tuple[str, str]]) -> str:
    """Return ``a → b, b → a and 10 more``; both ways between two hosts are ``a ↔ b``."""
    there = list(dict.fromkeys(pairs))
    texts = []
    for source, target in there:
        if (target, source) in there:
            texts.append(" ↔ ".join(sorted((source, target))))
        else:
            texts.append(f"{source} → {target}")
    return _shortened(list(dict.fromkeys(texts)))


def _shortened(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
