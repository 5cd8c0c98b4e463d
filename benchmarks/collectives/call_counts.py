"""How often each size is timed: ``bytes:calls:warmup,…``, as contestants get it.

The number of calls follows from the size, and from how fast the wire is. So all ranks of all contestants make the same
calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence, Tuple

__all__ = ["TimingPace", "call_counts", "parse_call_counts"]

MOST_CALLS = 3000


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


def call_counts(wanted: Sequence[int], pace: TimingPace) -> str:
    """Return ``bytes:calls:warmup,…`` for the contestants' command lines."""
    return ",".join(f"{nbytes}:{pace.calls(nbytes)}:{pace.warmup(nbytes)}" for nbytes in wanted)


def parse_call_counts(text: str) -> List[Tuple[int, int, int]]:
    """Return (bytes, timed calls, calls before that) for each size of ``bytes:calls:warmup,…``."""
    return [(int(a), int(b), int(c)) for a, b, c in (entry.split(":") for entry in text.split(","))]
