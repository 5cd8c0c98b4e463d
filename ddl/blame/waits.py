"""Who waits for whom, in which operation, and for how long.

Rank A waits for rank B if B has not called an operation that A is in, or its part of a message. This is certain. If all
ranks have called an operation, the rank for which a thread last went to sleep is awaited *inside* of it: that may take
microseconds, or be due to a slow wire. A rank that has lost another one names it.

Dumps are taken one after the other, while the job runs. So a wait counts only if it is longer than what was usual, and
if the other rank's dump was taken after the wait began. A rank that computes while operations are under way does not
wait.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator, List, Optional

from ddl.blame.stacks import in_user_code
from ddl.blame.view import JobView
from ddl.records.dump import RankDump
from ddl.records.layout import CommunicatorRecord, RecordedOperation

__all__ = ["INSIDE", "LOST", "NOT_CALLED", "NOT_MET", "NO_DUMP", "OLD_DUMP", "WaitEdge", "lost_rank", "waits"]

NOT_CALLED = "has not called it"
NOT_MET = "has not called its part of it"  #: of a message
INSIDE = "is in it, too"
LOST = "was lost"
NO_DUMP = "has no dump"
OLD_DUMP = "has a dump from before this wait"  #: so it says nothing

_INSIDE = 6.0  # times as long must a wait for a rank be that is in the operation, too: large data takes its time
_USUAL = 3.0  # times the longest operation that has ended well: shorter waits are usual
_LOST_RANK = re.compile(r"\b(?:lost|Timed out waiting for|failed because of) rank (\d+)")


@dataclass(frozen=True)
class WaitEdge:
    """A process waits for another one. Both are numbers of processes."""

    waiter: int
    awaited: int
    why: str  #: what the awaited one has not done: one of the constants of this file
    communicator: CommunicatorRecord  #: the waiter's
    call: Optional[RecordedOperation]  #: in which it waits; None: not known which
    seconds: float  #: by the waiter's own clock

    @property
    def sure(self) -> bool:
        """Whether the other rank itself has to do something."""
        return self.why in (NOT_CALLED, NOT_MET)


def waits(view: JobView, patience: float) -> List[WaitEdge]:
    """Return the waits of all ranks that are longer than ``patience`` seconds, and than what was usual in the job."""
    edges: List[WaitEdge] = []
    for number in view.dumps:
        longest = max(map(_longest, view.communicators(number)), default=0.0)
        for communicator in view.communicators(number):
            edges += _Side(view, number, communicator).edges(max(patience, _USUAL * longest))
    return edges


def lost_rank(failure: str) -> Optional[int]:
    """Return the rank that the text of a failure names as its cause, None if it names none."""
    named = _LOST_RANK.search(failure)
    return int(named[1]) if named is not None else None


class _Side:
    """One rank's side of one communicator."""

    def __init__(self, view: JobView, number: int, communicator: CommunicatorRecord) -> None:
        self._view = view
        self._number = number
        self._dump: RankDump = view.dumps[number]
        self._communicator = communicator
        self._sides = view.sides(communicator)
        self._failure = communicator.failure.partition(":")[0]
        self._waits = view.exit(number) is None and not in_user_code(self._dump.stacks)

    def edges(self, limit: float) -> Iterator[WaitEdge]:
        if self._failure and self._failure != "CollectiveTimeout":
            yield from self._of_failure()
            return
        if not self._failure and not self._waits:
            return
        if self._communicator.closed is not None and not self._failure:
            return
        if self._failure:  # then nothing has moved for the whole deadline
            limit = 0.0
        first = next(filter(_is_open, self._communicator.collectives), None)
        if first is not None and self._seconds(first) > limit:
            yield from self._of_collective(first, _INSIDE * limit)
        for call in self._communicator.messages:
            if _is_open(call) and self._seconds(call) > limit:
                yield from self._of_message(call, _INSIDE * limit)

    def _seconds(self, call: RecordedOperation) -> float:
        begun = _begin(call)
        end = call.ended if call.ended is not None else self._dump.taken
        return max(0.0, end - begun) if begun is not None else 0.0

    def _edge(self, awaited: int, why: str, call: Optional[RecordedOperation]) -> WaitEdge:
        seconds = self._seconds(call) if call is not None else 0.0
        return WaitEdge(self._number, awaited, why, self._communicator, call, seconds)

    def _of_failure(self) -> Iterator[WaitEdge]:
        """Say whom the failure names. Others that have not called what has failed had no time for it."""
        rank = lost_rank(self._communicator.failure)
        if rank is None or self._view.number(rank) == self._number:
            return
        failed = next((call for call in self._communicator.collectives if call.state == "failed"), None)
        lost = self._view.number(rank)
        yield self._edge(lost, NOT_CALLED if self._has_waited(lost, failed) else LOST, failed)

    def _has_waited(self, lost: int, call: Optional[RecordedOperation]) -> bool:
        """Return whether a process that was lost in ``call`` had waited in another communicator until its deadline.

        Then it had not called this one because of that, and has ended since. Of a communicator that it has never used,
        nothing may be left.
        """
        theirs, dump = self._sides.get(lost), self._view.dumps.get(lost)
        if call is None or dump is None or (theirs is None and dump.record.unlisted):
            return False
        behind = theirs is None or theirs.submitted < call.number
        others = (record for record in self._view.communicators(lost) if record is not theirs)
        return behind and any(record.failure.startswith("CollectiveTimeout") for record in others)

    def _of_collective(self, call: RecordedOperation, limit_inside: float) -> Iterator[WaitEdge]:
        behind: List[WaitEdge] = []
        for member in self._communicator.ranks:
            if member == self._number or member not in self._view.dumps:
                continue
            theirs = self._sides.get(member)
            if theirs is None and self._view.dumps[member].record.unlisted:
                continue
            if theirs is None or theirs.submitted < call.number:
                behind.append(self._edge(member, self._if_new(member, NOT_CALLED, call), call))
        awaited = self._awaited(call)
        if awaited is not None and awaited not in self._view.dumps:
            behind.append(self._edge(awaited, NO_DUMP, call))
        yield from behind
        if not behind and self._seconds(call) > limit_inside and awaited is not None and self._is_in(awaited, call):
            yield self._edge(awaited, INSIDE, call)

    def _of_message(self, call: RecordedOperation, limit_inside: float) -> Iterator[WaitEdge]:
        if not 0 <= call.root < len(self._communicator.ranks):
            return
        other = self._communicator.ranks[call.root]
        if other == self._number:
            return
        if other not in self._view.dumps:
            yield self._edge(other, NO_DUMP, call)
            return
        theirs = self._sides.get(other)
        part = "recv" if call.collective == "send" else "send"
        met = theirs is not None and any(
            message.collective == part and message.root == self._communicator.rank and _is_open(message)
            for message in theirs.messages
        )
        if not met:
            yield self._edge(other, self._if_new(other, NOT_MET, call), call)
        elif self._seconds(call) > limit_inside:
            yield self._edge(other, INSIDE, call)

    def _if_new(self, member: int, why: str, call: RecordedOperation) -> str:
        begun = _begin(call)
        return why if begun is None or self._view.is_after(member, self._number, begun) else OLD_DUMP

    def _awaited(self, call: RecordedOperation) -> Optional[int]:
        """Return the process that a thread has last gone to sleep for."""
        ranks = self._communicator.ranks
        return ranks[call.awaited] if call.awaited is not None and call.awaited < len(ranks) else None

    def _is_in(self, member: int, call: RecordedOperation) -> bool:
        theirs = self._sides.get(member)
        return theirs is not None and any(
            other.number == call.number and _is_open(other) for other in theirs.collectives
        )


def _is_open(call: RecordedOperation) -> bool:
    return call.state != "ended"


def _begin(call: RecordedOperation) -> Optional[float]:
    return call.begun if call.begun is not None else call.submitted


def _longest(communicator: CommunicatorRecord) -> float:
    """Return the seconds of the longest operation that has ended well."""
    return max(
        (
            call.ended - (_begin(call) or call.ended)
            for call in (*communicator.collectives, *communicator.messages)
            if call.state == "ended" and call.ended is not None
        ),
        default=0.0,
    )
