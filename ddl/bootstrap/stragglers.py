"""A rank's side of the search for late ranks: it tells the store its own pace, and hears which ranks are late.

The store's side, which finds them, is ddl/store/pace.py. Only the agent's thread uses this, except that the thread that
makes and closes communicators calls ``watch``, ``also_watch`` and ``forget``, and that any thread may read ``late``.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

from ddl import _core, clock

__all__ = ["INTERVAL", "Stragglers"]

log = logging.getLogger("ddl")

INTERVAL = 2.0  #: seconds between two reports of a rank, in jobs that are not very large
_RATE = 256  #: reports a second that the store gets of all ranks together, at most


@dataclass(frozen=True)
class _WatchedSums:
    """Communicators of all ranks, and the sums of those that have ended: collectives, and seconds."""

    cores: Tuple[_core.Communicator, ...]
    operations: int = 0
    under_way: float = 0.0


class Stragglers:
    """The late ranks of a job of ``size``, as rank ``rank`` knows them. ``label_of`` names a rank for people."""

    def __init__(self, rank: int, size: int, label_of: Callable[[int], str]) -> None:
        self.late: Dict[int, float] = {}  #: rank -> seconds that it comes late to each operation; replaced as a whole
        self._rank = rank
        self._label_of = label_of
        self._interval = max(INTERVAL, size / _RATE)
        self._comm = -1
        self._watched: Optional[_WatchedSums] = None
        self._told = 0  # operations
        self._next = 0.0  # when the next report is due

    def watch(self, comm: int, world: _core.Communicator) -> None:
        """Report on ``world``, the communicator number ``comm``, from now on."""
        self._comm, self._watched = comm, _WatchedSums((world,))

    def also_watch(self, core: _core.Communicator) -> None:
        """Report on another communicator of all ranks, too."""
        watched = self._watched
        if watched is not None:
            self._watched = dataclasses.replace(watched, cores=(*watched.cores, core))

    def forget(self, core: _core.Communicator) -> None:
        """Report on it no more, if it was reported on. What it has done until now still counts."""
        watched = self._watched
        if watched is None or core not in watched.cores:
            return
        totals = core.collectives()
        self._watched = _WatchedSums(
            tuple(other for other in watched.cores if other is not core),
            watched.operations + totals.operations,
            watched.under_way + totals.under_way,
        )

    def patience(self) -> float:
        """Return in how many seconds the next report is due."""
        return max(0.0, self._next - clock.now())

    def report(self) -> Optional[Dict[str, Any]]:
        """Return what to tell the store, if it is time to and collectives have ended since the last time."""
        now = clock.now()
        if now < self._next:
            return None
        self._next = now + self._interval
        watched = self._watched
        if watched is None:
            return None
        totals = [core.collectives() for core in watched.cores]
        operations = watched.operations + sum(each.operations for each in totals)
        under_way = watched.under_way + sum(each.under_way for each in totals)
        if operations == self._told:
            return None
        self._told = operations
        times = {"under_way_us": int(under_way * 1e6), "now_us": int(now * 1e6)}
        return {"type": "pace", "comm": self._comm, "operations": operations, **times}

    def heard(self, message: Dict[str, Any]) -> None:
        """Take in what the store says; tell people of ranks that have become late, or are not late any more."""
        if message["comm"] != self._comm:
            return
        before, self.late = self.late, {rank: seconds for rank, seconds, _ in message["late"]}
        level = logging.WARNING if self._rank == 0 else logging.INFO  # once for the job is enough
        for rank, seconds, share in message["late"]:
            if rank not in before:
                log.log(
                    level,
                    "rank %d: %s comes %.3g ms late to each operation, on average; the others wait for it %.0f %% of "
                    "the time",
                    self._rank,
                    self._label_of(rank),
                    1e3 * seconds,
                    100 * share,
                )
        for rank in before.keys() - self.late.keys():
            log.log(level, "rank %d: %s does not come late any more", self._rank, self._label_of(rank))

    def stop(self) -> None:
        """Report no more: the store is gone, or the job ends."""
        self._watched = None
