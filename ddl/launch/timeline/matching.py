"""Finds which calls of ranks are the same operation, and who was the last to call it. No I/O, no clock.

The number of a collective in its communicator is the same on all ranks. Of messages from one rank to another, the
n-th send is what the n-th receive takes.

A quick operation has no times: nobody has read the clock, as the other ranks were there already. If all others have
times, the one without was the last to call, at about the moment when the first of them ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from ddl.launch.timeline.tracks import RankTrack
from ddl.records.follow import CallKind, RankNews, TracedCall

__all__ = ["CallMatcher", "CallPart", "MatchedCalls", "part_of"]

_PATIENCE = 5.0  # seconds for the part of the last rank: it may have been killed, or has missed it
_MOST = 50_000  # operations whose parts have not all come
_QUICK = 1000  # nanoseconds: how long a call is drawn that has no end

#: Nobody can have the result of one of these before all ranks have called it.
ALL_WAIT = ("allreduce", "reducescatter", "allgather", "alltoall", "barrier")


@dataclass
class CallPart:
    """A rank's part in an operation. Times are nanoseconds of the timeline."""

    track: RankTrack
    place: int  #: rank in the communicator
    rank: int  #: in the job
    number: int
    kind: CallKind
    called: Optional[int]
    ended: Optional[int]
    blocking: bool  #: its caller waited in the call
    state: str
    awaited: Optional[int]
    error: int  #: of its clock, at most; nanoseconds
    taken: int  #: when it was read


@dataclass
class MatchedCalls:
    """The parts of an operation that are known, and what follows from all of them together."""

    communicator: int
    parts: List[CallPart] = field(default_factory=list)
    whole: bool = False  #: no part is missing
    last: Optional[CallPart] = None  #: who was the last to call
    late: int = 0  #: nanoseconds since the one before it

    @property
    def drawn(self) -> List[CallPart]:
        """The parts whose time is known."""
        return [part for part in self.parts if part.called is not None]

    @property
    def too_early(self) -> Optional[int]:
        """By how many nanoseconds a rank seems to have ended before the last one called; None: that may well be.

        More than the errors of the clocks: the clocks are wrong. None, too, if the last caller waited in its call: its
        clock is read when it begins to wait. By then it has taken part, and others may have ended before that.
        """
        last = self.last
        if last is None or last.called is None or last.blocking or last.kind.collective not in ALL_WAIT:
            return None
        ends = [part.ended for part in self.parts if part is not last and part.ended is not None]
        return max(0, last.called - min(ends)) if ends else None

    def conclude(self) -> None:
        """Find out who was last."""
        known = [part.called for part in self.parts if part.called is not None]
        self.last = self._last() if self.whole and len(self.parts) > 1 and known else None
        last = self.last
        if last is not None and last.called is None:
            ends = [part.ended for part in self.parts if part.ended is not None]
            last.called = max([*known, min(ends)]) if ends else max(known)
            last.ended = last.called + _QUICK
        if last is not None and last.called is not None:
            self.late = last.called - max(
                (part.called for part in self.parts if part is not last and part.called is not None),
                default=last.called,
            )
        for part in self.parts:
            if part.called is not None and part.ended is None:
                over = part.state in ("ended", "failed")
                met = max(part.called, last.called if last is not None and last.called is not None else part.called)
                part.ended = met + _QUICK if over else max(part.called + _QUICK, part.taken)

    def _last(self) -> Optional[CallPart]:
        """Return who was last: of a message always the sender, for the picture."""
        if self.parts[0].kind.collective in ("send", "recv"):
            return next(part for part in self.parts if part.kind.collective == "send")
        without = [part for part in self.parts if part.called is None]
        if not without:
            return max(self.parts, key=lambda part: part.called or 0)
        awaited = {part.awaited for part in self.parts}
        likely = [part for part in without if part.place in awaited] or without
        return likely[0] if len(likely) == 1 else None


class _PartsSoFar(NamedTuple):
    since: float
    size: int
    calls: MatchedCalls


@dataclass
class _MessageCounts:
    """The messages of a rank in a communicator, in their order: only so they can be counted."""

    next: int = 1
    counts: Dict[Tuple[int, int], int] = field(default_factory=dict)  # by sender and receiver
    early: Dict[int, CallPart] = field(default_factory=dict)


class CallMatcher:
    """Takes parts of operations as they come. ``now``: seconds of any clock."""

    def __init__(self) -> None:
        self._communicators: Dict[Tuple[int, Tuple[int, ...]], int] = {}
        self._waiting: Dict[Tuple[int, ...], _PartsSoFar] = {}  # the oldest first
        self._messages: Dict[Tuple[int, int], _MessageCounts] = {}

    def take(self, news: RankNews, parts: Iterable[CallPart], now: float) -> List[MatchedCalls]:
        """Return the operations that are known as a whole with these parts of one rank, which ``news`` told."""
        key = (news.communicator, news.ranks)
        communicator = self._communicators.setdefault(key, len(self._communicators))
        whole: List[MatchedCalls] = []
        if news.messages:
            for name, part in self._in_order(communicator, news, parts):
                self._add((communicator, *name), 2, news.communicator, part, now, whole)
        else:
            for part in parts:
                self._add((communicator, part.number), len(news.ranks), news.communicator, part, now, whole)
        return whole

    def overdue(self, now: float) -> List[MatchedCalls]:
        """Return the operations of which a part does not come."""
        calls: List[MatchedCalls] = []
        while self._waiting:
            name, oldest = next(iter(self._waiting.items()))
            if oldest.since + _PATIENCE > now and len(self._waiting) <= _MOST:
                break
            calls.append(self._waiting.pop(name).calls)
        return _concluded(calls)

    def rest(self) -> List[MatchedCalls]:
        """Return what has not been returned."""
        calls = [waiting.calls for waiting in self._waiting.values()]
        for messages in self._messages.values():
            calls += [MatchedCalls(-1, [part]) for part in messages.early.values()]
        self._waiting, self._messages = {}, {}
        return _concluded(calls)

    def _add(
        self, name: Tuple[int, ...], size: int, number: int, part: CallPart, now: float, whole: List[MatchedCalls]
    ) -> None:
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = _PartsSoFar(now, size, MatchedCalls(number))
        waiting.calls.parts.append(part)
        if len(waiting.calls.parts) == size:
            del self._waiting[name]
            waiting.calls.whole = True
            waiting.calls.conclude()
            whole.append(waiting.calls)

    def _in_order(
        self, communicator: int, news: RankNews, parts: Iterable[CallPart]
    ) -> Iterable[Tuple[Tuple[int, ...], CallPart]]:
        """Yield parts in the order of the calls, each with sender, receiver and how many there were between these.

        Once some are missing, nobody can count them any more: none is matched from then on.
        """
        for part in parts:
            known = self._messages.setdefault((communicator, part.place), _MessageCounts())
            if news.missing:
                known.next = -1
            if known.next < 0:
                yield (-1, part.place, part.number), part
                continue
            known.early[part.number] = part
            while known.next in known.early:
                this = known.early.pop(known.next)
                known.next += 1
                pair = (this.place, this.kind.peer)
                if this.kind.collective == "recv":
                    pair = pair[::-1]
                known.counts[pair] = known.counts.get(pair, 0) + 1
                yield (*pair, known.counts[pair]), this


def _concluded(calls: List[MatchedCalls]) -> List[MatchedCalls]:
    for matched in calls:
        matched.conclude()
    return calls


def part_of(news: RankNews, call: TracedCall, track: RankTrack, at: float, error: int, until: int) -> CallPart:
    """Return the part of a rank. ``at``: the time of its clock, in seconds, that is 0 of the timeline."""

    def time(seconds: Optional[float]) -> Optional[int]:
        return None if seconds is None else round(1e9 * (seconds - at))

    called = call.begun if call.submitted is None else call.submitted
    ended = time(call.ended)
    return CallPart(
        track=track,
        place=news.place,
        rank=news.rank,
        number=call.number,
        kind=call.kind,
        called=time(called),
        ended=ended,
        blocking=call.submitted is None,
        state=call.state,
        awaited=call.awaited,
        error=error,
        taken=until,
    )
