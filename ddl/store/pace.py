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
from collections import deque
from dataclasses import dataclass
from typing import Deque, Dict, List, Sequence, Set, Tuple

from ddl.errors import ProtocolError
from ddl.store.messages import Message, Outgoing, integer

__all__ = ["FLOOR", "OPERATIONS", "SHARE", "WINDOWS", "Pace"]

OPERATIONS = 20  #: that a window has at least: one slow operation is no pace
WINDOWS = 3  #: so many late windows in a row make a rank late, if it is very late; so many windows in time clear it
MORE_WINDOWS = 6  #: so many in a row are needed if it is less late: disturbances that move about last for some
VERY_LATE = 2.0  #: times the limit
SHARE = 0.15  #: of the time per operation that a rank is late at least; healthy crowded machines come to 0.1 at times
FLOOR = 100e-6  #: seconds that a rank is late at least: less may be what its part of small operations costs it
STEADY = 0.4  #: in these windows a rank is late by no less than so much of the most
_MOST = 16  #: ranks named at a time, the first ones: the news goes to all ranks


@dataclass(frozen=True)
class _PaceReport:
    """What a rank has said, or would have said at another operation; times in seconds."""

    operations: int
    under_way: float
    now: float

    def at(self, operations: int, since: _PaceReport) -> _PaceReport:
        """Return what it would have said then. Between ``since`` and this one all operations count as equally long."""
        part = (operations - since.operations) / (self.operations - since.operations)
        under_way = since.under_way + part * (self.under_way - since.under_way)
        return _PaceReport(operations, under_way, since.now + part * (self.now - since.now))


def _at(heard: Sequence[_PaceReport], operations: int) -> _PaceReport:
    """Return what a rank would have said at an operation.

    The reports around it tell, not those at the ends of the window: a pause somewhere in it would count for the next
    window, too, and for the one after that.
    """
    after = next(number for number, report in enumerate(heard) if report.operations >= operations)
    return heard[after].at(operations, heard[after - 1])


class Pace:
    """The pace of the ranks of a job of ``size``. Messages go in, messages to ranks come out. Used by one thread.

    Messages of ranks have been authenticated but not checked: a malformed one raises ProtocolError and has no effect.
    """

    def __init__(self, size: int) -> None:
        self._ranks: Tuple[int, ...] = tuple(range(size))
        self._begin(-1)

    @property
    def late(self) -> Dict[int, float]:
        """The ranks that come late now, and by how many seconds to each operation. Any thread may ask."""
        return {rank: seconds for rank, (seconds, _) in self._late.items()}

    def renumber(self, ranks: Sequence[int]) -> None:
        """These are the ranks from now on, by the numbers of their processes."""
        self._ranks = tuple(ranks)

    def _begin(self, comm: int) -> None:
        self._comm = comm
        self._heard: Dict[int, List[_PaceReport]] = {}  # by rank: where the window began, and what was said since
        self._again: Set[int] = set()  # ranks that have said something since the others were compared last
        self._patience: Dict[int, int] = {}  # of late ranks: windows in time until they are cleared
        self._recent: Dict[int, Deque[Tuple[float, float]]] = {}  # in the last windows: seconds late, times the limit
        self._late: Dict[int, Tuple[float, float]] = {}  # rank -> seconds per operation, share of the time

    def received(self, rank: int, message: Message) -> Outgoing:
        """A rank told its pace; ProtocolError if that is none."""
        comm = integer(rank, message, "comm", low=0)
        operations = integer(rank, message, "operations", low=0)
        under_way, now = (integer(rank, message, key, low=0) / 1e6 for key in ("under_way_us", "now_us"))
        if comm < self._comm:
            return []  # from before the job's last init
        sample = _PaceReport(operations, under_way, now)
        heard = self._heard.get(rank) if comm == self._comm else None
        last = heard[-1] if heard else None
        if last is not None and not (operations > last.operations and under_way >= last.under_way and now > last.now):
            raise ProtocolError(f"rank {rank} told its pace again, but nothing has ended since: {message!r:.200}")
        if comm > self._comm:
            self._begin(comm)
        if rank not in self._heard:
            self._heard[rank] = [sample]
            return []
        self._heard[rank].append(sample)
        self._again.add(rank)
        return self._end_window() if self._again >= set(self._ranks) else []

    def _end_window(self) -> Outgoing:
        """Every rank has been heard again: compare them up to the operation that all have ended."""
        self._again.clear()
        end = min(heard[-1].operations for heard in self._heard.values())
        if any(end - heard[0].operations < OPERATIONS for heard in self._heard.values()):
            return []
        in_operation: Dict[int, float] = {}  # seconds per operation
        period: List[float] = []
        for rank, heard in self._heard.items():
            sample, count = _at(heard, end), end - heard[0].operations
            in_operation[rank] = (sample.under_way - heard[0].under_way) / count
            period.append((sample.now - heard[0].now) / count)
            self._heard[rank] = [sample, *(later for later in heard if later.operations > end)]
        return self._judge(in_operation, statistics.median(period))

    def _judge(self, in_operation: Dict[int, float], period: float) -> Outgoing:
        had_late = self._late
        # Of an even number the higher: half of the ranks are enough to wait for the other half.
        usual = statistics.median_high(in_operation.values())
        limit = max(FLOOR, SHARE * period)
        late = {rank: usual - seconds for rank, seconds in in_operation.items()}
        for rank, seconds in late.items():
            self._recent.setdefault(rank, deque(maxlen=MORE_WINDOWS)).append((seconds, seconds / limit))
        named = [rank for rank in late if self._stays_late(rank, late[rank], limit) or self._becomes_late(rank)]
        self._late = {rank: (max(late[rank], 0.0), max(late[rank] / period, 0.0)) for rank in sorted(named)}
        if not self._late and not had_late:
            return []
        told = [[rank, *values] for rank, values in self._late.items()][:_MOST]
        message = {"type": "late", "comm": self._comm, "late": told}
        return [(rank, message) for rank in self._ranks]

    def _stays_late(self, rank: int, late: float, limit: float) -> bool:
        """Return whether a late rank is not cleared yet. At the limit it would come and go."""
        if rank not in self._late:
            return False
        if late >= limit:
            self._patience[rank] = WINDOWS
        elif late < limit / 2:
            self._patience[rank] -= 1
        return self._patience[rank] > 0

    def _becomes_late(self, rank: int) -> bool:
        """Return whether a rank that was in time has been late for long enough."""
        windows = list(self._recent[rank])
        becomes = rank not in self._late and (_agree(windows, WINDOWS, VERY_LATE) or _agree(windows, MORE_WINDOWS, 1.0))
        if becomes:
            self._patience[rank] = WINDOWS
        return becomes


def _agree(windows: Sequence[Tuple[float, float]], number: int, least: float) -> bool:
    """Return whether the last windows are late by so many times the limit, and about equally: pauses are not."""
    last = windows[-number:]
    seconds = [each for each, _ in last]
    return len(last) == number and all(times >= least for _, times in last) and min(seconds) >= STEADY * max(seconds)
