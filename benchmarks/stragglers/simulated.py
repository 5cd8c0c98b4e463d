"""Jobs in which each rank needs its own time before each operation, judged by the store's own state machine.

A job is the times that its ranks need, an array of shape (operations, ranks) in seconds. All ranks go on together when
the last one has come. Each says every two seconds, at its own moment, what a real one says (ddl/store/pace.py). There
is no network and no thread: only the judgement is measured, on many more jobs than could be run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from ddl.bootstrap.stragglers import INTERVAL
from ddl.store.messages import Message
from ddl.store.pace import Pace

__all__ = ["HEALTHY", "SimulatedJob", "Verdicts", "judge"]

_MOST_OPERATIONS = 20_000

Chance = np.random.Generator


@dataclass(frozen=True)
class SimulatedJob:
    """ranks, period: seconds between two operations, without noise. seconds: how long it runs."""

    ranks: int
    period: float
    seconds: float
    operation: float  #: seconds of an operation when all are there

    @classmethod
    def by_chance(cls, chance: Chance, seconds: float) -> SimulatedJob:
        """2 to 64 ranks; 2 to 300 ms between operations, which take 0.1 to 30 % of that."""
        period = float(np.exp(chance.uniform(np.log(0.002), np.log(0.3))))
        share = float(np.exp(chance.uniform(np.log(0.001), np.log(0.3))))
        return cls(int(chance.integers(2, 65)), period, seconds, share * period)

    @property
    def operations(self) -> int:
        """How many operations are simulated."""
        return min(_MOST_OPERATIONS, int(self.seconds / (self.period + self.operation)) + 1)

    @property
    def shape(self) -> Tuple[int, int]:
        """Operations and ranks."""
        return self.operations, self.ranks


@dataclass(frozen=True)
class Verdicts:
    """Who was called late: rank -> when that was first said, and by how many seconds, at the last moment of it."""

    first: Dict[int, float]
    last: Dict[int, float]


def judge(job: SimulatedJob, own: np.ndarray, chance: Chance) -> Verdicts:
    """Return whom the store calls late; ``own``: seconds that each rank needs before each operation."""
    pace = Pace(job.ranks)
    first: Dict[int, float] = {}
    last: Dict[int, float] = {}
    for rank, message in _reports(job, own, chance):
        pace.received(rank, message)
        for late, seconds in pace.late.items():
            first.setdefault(late, message["now_us"] / 1e6)
            last[late] = seconds
    return Verdicts(first, last)


def _reports(job: SimulatedJob, own: np.ndarray, chance: Chance) -> Iterator[Tuple[int, Message]]:
    """Yield what the ranks say, in the order of time."""
    ends = np.cumsum(own.max(axis=1) + job.operation)
    begins = np.concatenate(([0.0], ends[:-1]))
    arrivals = begins[:, None] + own
    under_way = np.cumsum(ends[:, None] - arrivals, axis=0)
    phases = chance.uniform(0.0, INTERVAL, job.ranks)
    moments = [
        (phase + INTERVAL * number, rank)
        for rank, phase in enumerate(phases)
        for number in range(int(ends[-1] / INTERVAL) + 1)
    ]
    ended = [0] * job.ranks
    for now, rank in sorted(moments):
        count = int(np.searchsorted(ends, now, side="right"))
        if count in (ended[rank], len(ends)):  # a rank says nothing where nothing has ended
            continue
        ended[rank] = count
        total = under_way[count - 1, rank] + max(0.0, now - arrivals[count, rank])
        yield rank, {"comm": 0, "operations": count, "under_way_us": int(total * 1e6), "now_us": int(now * 1e6)}


# --- the times that ranks of healthy jobs need ---


def _quiet(job: SimulatedJob, chance: Chance) -> np.ndarray:
    return job.period * np.abs(chance.normal(1.0, 0.02, job.shape))


def _crowded(job: SimulatedJob, chance: Chance) -> np.ndarray:
    """Speeds wander: for seconds a rank is some percent slower or faster."""
    steps = chance.normal(0.0, 1.0, job.shape)
    keep = np.exp(-job.period / 1.0)
    wander = np.empty(job.shape)
    level = chance.normal(0.0, 1.0, job.ranks)
    for number in range(job.operations):
        level = keep * level + np.sqrt(1 - keep * keep) * steps[number]
        wander[number] = level
    return _quiet(job, chance) * np.exp(0.08 * wander)


def _pauses(job: SimulatedJob, chance: Chance) -> np.ndarray:
    """Each rank stands still every 20 seconds or so of its own time: it collects garbage, or writes a checkpoint."""
    pauses = chance.lognormal(np.log(0.1), 1.0, job.shape) * (chance.random(job.shape) < job.period / 20)
    return _quiet(job, chance) + np.minimum(pauses, 5.0)


def _slow_start(job: SimulatedJob, chance: Chance) -> np.ndarray:
    own = _quiet(job, chance)
    own[:3, chance.integers(job.ranks)] += 5.0
    return own


def _uneven(job: SimulatedJob, chance: Chance) -> np.ndarray:
    """Each batch takes another time on each rank, as sentences are of different lengths."""
    return job.period * chance.uniform(0.6, 1.4, job.shape)


def _neighbours(job: SimulatedJob, chance: Chance) -> np.ndarray:
    """Another program disturbs one rank, and after a second another one."""
    own = _quiet(job, chance)
    each = max(1, int(1.0 / job.period))
    for start in range(0, job.operations, each):
        own[start : start + each, chance.integers(job.ranks)] *= 1.3
    return own


#: Healthy jobs: what disturbs them passes, or meets all ranks alike.
HEALTHY: Dict[str, Callable[[SimulatedJob, Chance], np.ndarray]] = {
    "quiet": _quiet,
    "crowded": _crowded,
    "pauses": _pauses,
    "slow start": _slow_start,
    "uneven batches": _uneven,
    "moving neighbours": _neighbours,
}


def slowed(own: np.ndarray, rank: int, share: float, since: int = 0) -> np.ndarray:
    """Return times in which a rank needs more by ``share`` of all ranks' mean, from an operation on."""
    changed: np.ndarray = own.copy()
    changed[since:, rank] += share * own.mean()
    return changed


def late_after(verdicts: Verdicts, rank: int) -> Optional[float]:
    """Return the seconds after which exactly this rank was called late, and no other one ever; else None."""
    return verdicts.first[rank] if list(verdicts.first) == [rank] else None


def jobs(number: int, seconds: float, seed: int) -> List[Tuple[str, SimulatedJob, Chance]]:
    """Return so many jobs of all kinds of ``HEALTHY`` in turn, each with its own chance."""
    kinds = list(HEALTHY)
    chances = [np.random.default_rng((seed, each)) for each in range(number)]
    return [
        (kinds[each % len(kinds)], SimulatedJob.by_chance(chance, seconds), chance)
        for each, chance in enumerate(chances)
    ]
