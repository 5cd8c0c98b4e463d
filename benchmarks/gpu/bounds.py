"""How fast an all-reduce of arrays on one GPU can be at best: what each stage must do, at rates that were measured.

Arithmetic only. A call has three stages in a pipeline of pieces: copies down, the ranks' reduction on the host, copies
up. All ranks of a host share the link of the GPU, and the host's memory. The slowest stage decides; the others add the
time of one piece each, until the pipeline is full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

__all__ = ["LinkRates", "StageBounds", "bounds", "rates_of"]


@dataclass(frozen=True)
class LinkRates:
    """Measured by the probe, in bytes per second. down, up: by the link while both directions are busy."""

    down: float
    up: float
    memory: float  # read and written by all cores together


@dataclass(frozen=True)
class StageBounds:
    """Seconds that each stage takes at least, and ``all``: those of the whole call."""

    down: float
    up: float
    memory: float
    reduction: float
    all: float

    @property
    def slowest(self) -> str:
        """Return the name of the stage that decides."""
        stages = {"down": self.down, "up": self.up, "memory": self.memory, "reduction": self.reduction}
        return max(stages, key=lambda name: stages[name])


def rates_of(steps: Mapping[str, Mapping[str, Any]]) -> Optional[LinkRates]:
    """Return the rates that the probe has found on a real GPU, from a record's steps; None: it has not."""
    try:
        copies, memory = steps["probe.copies"]["result"], steps["probe.memory"]["result"]
        if copies["fake"]:
            return None
        both = copies["rates"]
        return LinkRates(float(both["both_down"]), float(both["both_up"]), float(memory["bytes_per_second"]))
    except (KeyError, TypeError):
        return None


def bounds(nbytes: int, ranks: int, piece: int, reduction: float, rates: LinkRates) -> StageBounds:
    """Return the least seconds of an all-reduce of ``nbytes`` on each of ``ranks`` ranks with one GPU together.

    ``reduction``: seconds that the same call takes on arrays of the host, in the same run. ``piece``: bytes.
    """
    moved = ranks * nbytes
    down, up = moved / rates.down, moved / rates.up
    memory = 4 * moved / rates.memory  # written by the copy down, read, written, read by the copy up
    stages: Dict[str, float] = {"down": down, "reduction": reduction, "up": up}
    slowest = max(*stages.values(), memory)
    others = sorted(stages.values())[:-1]
    share = min(1.0, piece / nbytes) if nbytes else 1.0
    return StageBounds(down, up, memory, reduction, slowest + share * sum(others))
