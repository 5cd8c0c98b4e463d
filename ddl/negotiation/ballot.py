"""A ballot: what a rank has submitted and what has not run yet, as bytes of the same length on every rank.

One byte of flags, then a bit for each entry of the table of known operations, which is the same on all ranks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import List, Tuple

import numpy as np

__all__ = ["FRESH", "JOINED", "NEWS", "numbers", "pack", "unpack"]

NEWS = 1  #: it has also submitted what the table lacks, and will say it
JOINED = 2  #: it has no more data
FRESH = 4  #: it says something that it has not said before


@lru_cache(maxsize=1024)  # mostly one operation is submitted at a time, again and again
def pack(flags: int, entries: int, known: int) -> np.ndarray:
    """Return the ballot of a rank that has submitted ``entries``, of ``known`` ones: bit i stands for entry i.

    It is not to be written to.
    """
    return np.frombuffer(bytearray((entries << 8 | flags).to_bytes(1 + (known + 7) // 8, "little")), np.uint8)


def unpack(ballots: np.ndarray) -> Tuple[List[int], List[int]]:
    """Return flags and entries of each rank; ``ballots``: (ranks, bytes), uint8."""
    size, width = ballots.shape
    data = ballots.tobytes()
    rows = [int.from_bytes(data[at : at + width], "little") for at in range(0, size * width, width)]
    return [row & 255 for row in rows], [row >> 8 for row in rows]


@lru_cache(maxsize=128)  # few, as one of many operations is long
def numbers(entries: int) -> Tuple[int, ...]:
    """Return the numbers of the entries."""
    ascending = []
    while entries:
        lowest = entries & -entries
        ascending.append(lowest.bit_length() - 1)
        entries ^= lowest
    return tuple(ascending)
