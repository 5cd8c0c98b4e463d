"""Times and sizes as people read them."""

from __future__ import annotations

from fractions import Fraction
from typing import Union

__all__ = ["bytes_text", "counted", "duration", "exact_bytes_text"]


def duration(seconds: float, digits: int = 2) -> str:
    """Return ``38 µs``, ``1.2 ms`` or ``2.5 s``, with at least ``digits`` digits."""
    unit, scale = ("s", 1.0) if abs(seconds) >= 1 else ("ms", 1e-3) if abs(seconds) >= 1e-3 else ("µs", 1e-6)
    value = seconds / scale
    whole = 1 if abs(value) < 10 else 2 if abs(value) < 100 else 3  # digits before the point
    return f"{value:.{max(0, digits - whole)}f} {unit}"


def bytes_text(count: Union[int, Fraction]) -> str:
    """Return ``64 MiB``."""
    units = (("GiB", 30), ("MiB", 20), ("KiB", 10))
    unit, shift = next((entry for entry in units if count >= 1 << entry[1]), ("bytes", 0))
    value = float(count / Fraction(1 << shift))
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def exact_bytes_text(count: int) -> str:
    """Return ``64 KiB``, ``48 B`` or ``1025 B``: exact, in the largest unit that is possible."""
    units = (("GiB", 30), ("MiB", 20), ("KiB", 10))
    unit, shift = next((entry for entry in units if count and count % (1 << entry[1]) == 0), ("B", 0))
    return f"{count >> shift} {unit}"


def counted(number: int, what: str) -> str:
    """Return ``1 host`` or ``3 hosts``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
