"""Random numbers by name: the same name and seed give the same number, whatever else happens in the run.

A stream of random numbers would give every later message another delay once an event has been taken away. Names (of a
message, a step, a process) keep the rest of a run as it was, and so a failing schedule can be made smaller.
"""

from __future__ import annotations

import zlib

__all__ = ["Chance"]

_MASK = (1 << 32) - 1


class Chance:
    """Numbers of the run ``seed``."""

    def __init__(self, seed: int) -> None:
        self._start = zlib.crc32(f"seed {seed}".encode())

    def at(self, name: str) -> float:
        """Return the number from 0 to below 1 that ``name`` has."""
        bits = zlib.crc32(name.encode(), self._start)
        for factor in (0x45D9F3B, 0x119DE1F3):  # a checksum alone gives similar names similar numbers
            bits = ((bits >> 16) ^ bits) * factor & _MASK
        return ((bits >> 16) ^ bits) / (_MASK + 1)

    def between(self, low: float, high: float, name: str) -> float:
        """Return a number from ``low`` to ``high``."""
        return low + (high - low) * self.at(name)

    def integer(self, count: int, name: str) -> int:
        """Return a whole number from 0 to below ``count``."""
        return int(self.at(name) * count)
