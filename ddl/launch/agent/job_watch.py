"""What a job does now, as samples of its ranks show it: how fast it is, and how long ranks wait. No I/O, no clock."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Deque, Dict, Iterable, List, Mapping, Optional

from ddl.records.sample import RankSample
from ddl.text.units import counted, duration

__all__ = ["INTERVAL", "JobNow", "JobWatch", "RankNow", "elapsed_text", "status_text"]

INTERVAL = 1.0  #: seconds between two samples of a rank
_WINDOW = 10  # samples that rates are made of


@dataclass(frozen=True)
class JobNow:
    """The job over the last seconds. Before there are two samples of a rank, rates are None."""

    ranks: int  #: that run
    unit: str  #: what is counted: "step", or "operation" where no adapter notes steps
    count: int  #: of the rank that is ahead
    per_second: Optional[float]  #: the median of ranks
    waiting: Optional[float]  #: part of the time in which nothing moved in an operation; the mean of ranks
    slowest: Optional[int]  #: the rank that others wait for, if there is one
    late: float = 0.0  #: seconds that it comes late to each operation


@dataclass(frozen=True)
class RankNow:
    """A rank over the last seconds. Before there are two samples of it, rates are None."""

    sample: RankSample  #: the last one
    per_second: Optional[float]  #: of what ``JobNow.unit`` says
    waiting: Optional[float]  #: part of the time
    late: float  #: seconds that it comes late to each operation; 0: it does not


class JobWatch:
    """The last samples of all ranks."""

    def __init__(self) -> None:
        self._ranks: Dict[int, Deque[RankSample]] = {}  # by the number of the process

    def take(self, samples: Iterable[RankSample]) -> None:
        """Take the next samples. Those of another communicator begin anew."""
        for sample in samples:
            known = self._ranks.setdefault(sample.number, deque(maxlen=_WINDOW))
            if known and known[-1].communicator != sample.communicator:
                known.clear()
            known.append(sample)

    def forget(self, number: int) -> None:
        """The process with this number has ended."""
        self._ranks.pop(number, None)

    def now(self, ranks: int, late: Mapping[int, float]) -> JobNow:
        """Return how the job is, of which ``ranks`` processes run.

        ``late``: ranks that come late, by the store's judgement, and by how many seconds.
        """
        each = self.ranks(late)
        rates = [rank.per_second for rank in each if rank.per_second is not None]
        waits = [rank.waiting for rank in each if rank.waiting is not None]
        slowest = max(late, key=lambda rank: (late[rank], -rank), default=None)
        return JobNow(
            ranks=ranks,
            unit=self._unit,
            count=max((_count(rank.sample, self._unit) for rank in each), default=0),
            per_second=statistics.median(rates) if rates else None,
            waiting=statistics.mean(waits) if waits else None,
            slowest=slowest,
            late=late[slowest] if slowest is not None else 0.0,
        )

    def ranks(self, late: Mapping[int, float]) -> List[RankNow]:
        """Return how each rank is, by rank; ``late`` as for ``now``."""
        each = [self._rank(samples, late) for samples in self._ranks.values()]
        return sorted(each, key=lambda rank: rank.sample.rank)

    @property
    def _unit(self) -> str:
        return "step" if any(samples[-1].steps for samples in self._ranks.values()) else "operation"

    def _rank(self, samples: Deque[RankSample], late: Mapping[int, float]) -> RankNow:
        first, last = samples[0], samples[-1]
        time = last.taken - first.taken
        known = len(samples) > 1 and time > 0
        return RankNow(
            sample=last,
            per_second=(_count(last, self._unit) - _count(first, self._unit)) / time if known else None,
            waiting=min(1.0, max(0.0, (last.waited - first.waited) / time)) if known else None,
            late=late.get(last.rank, 0.0),
        )


def _count(sample: RankSample, unit: str) -> int:
    return sample.steps if unit == "step" else sample.operations


def elapsed_text(seconds: float) -> str:
    """Return ``1:02:03``, of hours, minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def status_text(now: JobNow, elapsed: float) -> str:
    """Return the line about a job that has run for ``elapsed`` seconds."""
    parts = [counted(now.ranks, "rank"), elapsed_text(elapsed)]
    if now.count:
        parts.append(f"{now.unit} {now.count}")
    if now.per_second is not None:
        parts.append(f"{now.per_second:.3g} {now.unit}s/s")
    if now.waiting is not None:
        parts.append(f"waiting {100 * now.waiting:.0f} %")
    if now.slowest is not None:
        parts.append(f"rank {now.slowest} comes {duration(now.late)} late to each operation")
    return ", ".join(parts)
