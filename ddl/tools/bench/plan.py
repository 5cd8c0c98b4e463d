"""Sizes and numbers of calls: ``8,64K,4M`` on the command line, ``bytes:calls:warmup,…`` for the contestants.

The number of calls follows from the size (and from how fast the wire is) alone, so that all ranks of all contestants
make the same calls.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import List, Sequence

from ddl.bootstrap.environ import parse_size

__all__ = ["TimingPace", "fitting", "plan_text", "readable", "sizes"]

MOST_CALLS = 3000


def sizes(text: str) -> List[int]:
    """Return the bytes of a list like ``8,64K,4M``; argparse's error otherwise."""
    try:
        parsed = [parse_size(entry) for entry in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: each size must be {error}") from error
    if not all(parsed):
        raise argparse.ArgumentTypeError(f"{text!r}: a size of 0 bytes cannot be timed")
    return parsed


def readable(nbytes: int) -> str:
    """Return a size for people, as short as it can be exact: ``64 KiB``, ``48 B``."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << shift and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} B"


def fitting(wanted: Sequence[int], unit: int) -> List[int]:
    """Return the sizes, ascending, each once, rounded up to multiples of ``unit`` bytes (an element per rank)."""
    return sorted({-(-nbytes // unit) * unit for nbytes in wanted})


@dataclass(frozen=True)
class TimingPace:
    """How long to time: about ``seconds`` per size and start if a contestant moves ``speed`` bytes a second."""

    seconds: float
    speed: float
    overhead: float = 20e-6  # seconds of a call without bytes
    least: int = 7

    def calls(self, nbytes: int) -> int:
        wanted = self.seconds / (nbytes / self.speed + self.overhead)
        return max(self.least, min(MOST_CALLS, int(wanted)))

    def warmup(self, nbytes: int) -> int:
        return max(2 if self.least > 3 else 1, self.calls(nbytes) // 8)


def plan_text(wanted: Sequence[int], pace: TimingPace) -> str:
    """Return ``bytes:calls:warmup,…`` for the contestants' command lines."""
    return ",".join(f"{nbytes}:{pace.calls(nbytes)}:{pace.warmup(nbytes)}" for nbytes in wanted)
