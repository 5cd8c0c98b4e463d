"""Finds the ranks of a job that come late, from what each rank says of its pace.

All ranks take the same time from one collective to the next, since they wait for one another. A rank spends some of
it *in* operations (they are under way) and the rest on its own. So the rank that others wait for is not the one that
waits long, but the one that is in operations for a shorter time than the others, and the difference is how late it
comes to each. A slow network or a large buffer keeps all of them in the operation alike and makes nobody late.

This state machine does no I/O and has no clock: the store's server (ddl/store/server.py, its only thread) brings
what ranks say of the world communicator, and delivers the messages that come back. What the ranks do with it:
ddl/bootstrap/stragglers.py.

A rank sends ``pace`` comm, operations, under_way_us, now_us: how many collectives have ended, how long some were under
way, and its clock; the first three only grow. While there are late ranks, and when there are none any more, all ranks
are sent ``late`` (comm, late: a list of [rank, seconds per operation, share of the time]).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Dict, List, Tuple

from ddl.errors import ProtocolError
from ddl.store.messages import Message, Outgoing, integer

__all__ = ["FLOOR", "OPERATIONS", "SHARE", "WINDOWS", "Pace"]

OPERATIONS = 20  #: that a window has at least: one slow operation is no pace
WINDOWS = 3  #: so many late windows in a row make a rank late; so many windows in time clear it
SHARE = 0.15  #: of the time per operation that a rank is late at least; healthy crowded machines come to 0.1 at times
FLOOR = 100e-6  #: seconds that a rank is late at least: less may be what its part of small operations costs it
_MOST = 16  #: ranks named at a time, the first ones: the news goes to all ranks


@dataclass(frozen=True)
class _PaceReport:
    """What a rank has said, or would have said at another operation; times in seconds."""

    operations: int
    under_way: float
    now: float

    def at(self, operations: int, since: _PaceReport) -> _PaceReport:
        """Between ``since`` and this one all operations count as equally long."""
        part = (operations - since.operations) / (self.operations - since.operations)
        under_way = since.under_way + part * (self.under_way - since.under_way)
        return _PaceReport(operations, under_way, since.now + part * (self.now - since.now))


class Pace:
    """The pace of the ranks of a job of ``size``. Messages go in, messages to ranks come out. Used by one thread.

    Messages of ranks have been authenticated but not checked: a malformed one raises ProtocolError and has no effect.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._begin(-1)

    def _begin(self, comm: int) -> None:
        self._comm = comm
        self._starts: Dict[int, _PaceReport] = {}  # where the window began, by rank
        self._ends: Dict[int, _PaceReport] = {}  # the last samples in it
        self._streaks: Dict[int, int] = {}  # windows in which a rank was late, up to WINDOWS
        self._late: Dict[int, Tuple[float, float]] = {}  # rank -> seconds per operation, share of the time

    def received(self, rank: int, message: Message) -> Outgoing:
        """A rank told its pace; ProtocolError if that is none."""
        comm = integer(rank, message, "comm", low=0)
        operations = integer(rank, message, "operations", low=0)
        under_way, now = (integer(rank, message, key, low=0) / 1e6 for key in ("under_way_us", "now_us"))
        if comm < self._comm:
            return []  # from before the job's last init
        sample = _PaceReport(operations, under_way, now)
        last = self._ends.get(rank) or self._starts.get(rank) if comm == self._comm else None
        if last is not None and not (operations > last.operations and under_way >= last.under_way and now > last.now):
            raise ProtocolError(f"rank {rank} told its pace again, but nothing has ended since: {message!r:.200}")
        if comm > self._comm:
            self._begin(comm)
        if rank not in self._starts:
            self._starts[rank] = sample
            return []
        self._ends[rank] = sample
        return self._end_window() if len(self._ends) == self._size else []

    def _end_window(self) -> Outgoing:
        """Every rank has been heard again: compare them up to the operation that all have ended."""
        end = min(sample.operations for sample in self._ends.values())
        ends, self._ends = self._ends, {}
        if any(end - start.operations < OPERATIONS for start in self._starts.values()):
            return []
        starts = self._starts
        self._starts = {rank: sample.at(end, starts[rank]) for rank, sample in ends.items()}
        in_operation: Dict[int, float] = {}  # seconds per operation
        period: List[float] = []
        for rank, sample in self._starts.items():
            count = end - starts[rank].operations
            in_operation[rank] = (sample.under_way - starts[rank].under_way) / count
            period.append((sample.now - starts[rank].now) / count)
        return self._judge(in_operation, statistics.median(period))

    def _judge(self, in_operation: Dict[int, float], period: float) -> Outgoing:
        had_late = self._late
        # Of an even number the higher: half of the ranks are enough to wait for the other half.
        usual = statistics.median_high(in_operation.values())
        limit = max(FLOOR, SHARE * period)
        late = {rank: usual - seconds for rank, seconds in in_operation.items()}
        self._streaks = {rank: self._streak(rank, late[rank], limit) for rank in late}
        named = [
            rank for rank, streak in self._streaks.items() if streak == WINDOWS or (streak > 0 and rank in had_late)
        ]
        self._late = {rank: (max(late[rank], 0.0), max(late[rank] / period, 0.0)) for rank in sorted(named)}
        if not self._late and not had_late:
            return []
        told = [[rank, *values] for rank, values in self._late.items()][:_MOST]
        message = {"type": "late", "comm": self._comm, "late": told}
        return [(rank, message) for rank in range(self._size)]

    def _streak(self, rank: int, late: float, limit: float) -> int:
        streak = self._streaks.get(rank, 0)
        if late >= limit:
            return min(streak + 1, WINDOWS)
        if rank not in self._late:
            return 0
        return streak if late >= limit / 2 else streak - 1  # at the limit it would come and go
