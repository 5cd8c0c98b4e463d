"""What the store answers: set, get (which waits), counters, the check-in of all ranks, meetings of several. No I/O.

The server (server.py) brings requests and the time, and sends the frames that come back. Every request gets exactly
one answer (a check-in: its last part), with the number that the request had; so a rank that waits is never forgotten.
A check-in that failed has failed for every rank, even for those that come later: no rank goes on without the others.
It fails at once when a rank that has not come is ``gone``: its process has ended.
A meeting that failed has failed for the ranks that waited. A rank that comes later begins a new one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set, Tuple

from ddl.errors import ProtocolError
from ddl.net.auth import encode_frame
from ddl.store.messages import Message
from ddl.text.rank_names import name_ranks

__all__ = ["KEY_LIMIT", "KEYS_LIMIT", "VALUE_LIMIT", "Requests"]

VALUE_LIMIT = 64 << 10  #: bytes of one value in UTF-8
KEY_LIMIT = 1 << 10  #: bytes of one key in UTF-8
KEYS_LIMIT = 100_000  #: keys in one store
_PART = 256 << 10  #: bytes of values in one part of a check-in's answer
_ROUNDS_KEPT = 64  #: finished check-ins that are remembered, to tell ranks that come late

Replies = List[Tuple[int, bytes]]  #: (to which rank, the frame)


@dataclass
class _PendingRequest:
    """A request that is answered later."""

    number: int
    timeout: float
    deadline: float


@dataclass
class _CheckIn:
    """One check-in of all ranks."""

    values: Dict[int, str] = field(default_factory=dict)
    waiters: Dict[int, _PendingRequest] = field(default_factory=dict)
    problem: Dict[str, str] = field(default_factory=dict)  # why it failed: "missing" or "gone", and what to say


@dataclass
class _Meeting:
    """``ranks`` of which some wait for the others."""

    ranks: Dict[int, None]  # in their order
    values: Dict[int, str] = field(default_factory=dict)
    waiters: Dict[int, _PendingRequest] = field(default_factory=dict)


class Requests:
    """The keys and the check-ins of a job of ``size`` ranks. Used by one thread."""

    def __init__(self, size: int, first_count: int = 0) -> None:
        self._size = size
        self._processes = size  # numbers below this may belong to processes
        self._first_count = first_count  # a successor begins where its predecessor cannot have come
        self._values: Dict[str, str] = {}
        self._counters: Dict[str, int] = {}
        self._gets: Dict[int, Tuple[str, _PendingRequest]] = {}  # by rank: a rank asks one thing at a time
        self._rounds: Dict[int, _CheckIn] = {}
        self._meetings: Dict[Tuple[str, str], _Meeting] = {}  # by their counters and ranks, as text
        self._gone: Dict[int, str] = {}  # how ranks ended that will not come any more
        self._last_round: Dict[int, int] = {}  # by rank: the round of its last check-in
        self._first_round: Dict[int, int] = {}  # by rank: what its program of now calls round 0
        self._disconnected: Set[int] = set()  # ranks whose connection has gone since they checked in

    def handle(self, rank: int, message: Message, now: float, refused: str = "") -> Replies:
        """Answer a request of a rank; ProtocolError if it is not one. ``refused``: why the rank is answered no more."""
        asked = message.get("ask")
        number = message.get("number")
        if type(number) is not int:
            raise ProtocolError(f"rank {rank} sent the store a request without a number")
        if refused:
            return [(rank, encode_frame({"number": number, "left_out": refused}))]
        if asked == "count":
            return self._count(rank, number, _text(rank, message, "key"))
        if asked == "set":
            return self._set(rank, number, _text(rank, message, "key"), _text(rank, message, "value"))
        timeout = _seconds(rank, message)
        waiter = _PendingRequest(number, timeout, now + timeout)
        if asked == "get":
            return self._get(rank, _text(rank, message, "key"), waiter)
        if asked == "check_in":
            round_number = message.get("round")
            if type(round_number) is not int:
                raise ProtocolError(f"rank {rank} checked in to round {round_number!r:.100}, which is no number")
            round_number = self._round_of(rank, round_number)
            return self._check_in(rank, round_number, _text(rank, message, "value"), waiter)
        if asked == "meet":
            meeting = _text(rank, message, "key"), _text(rank, message, "ranks")
            return self._meet(rank, meeting, _text(rank, message, "value"), waiter)
        raise ProtocolError(f"rank {rank} asked the store for {asked!r:.100}, which it does not know")

    def admit(self, rank: int) -> None:
        """A process whose number is beyond those of the job's first ranks has come."""
        self._processes = max(self._processes, rank + 1)

    def dropped(self, rank: int) -> None:
        """Forget what a rank waits for: its connection is gone. What it has checked in stays."""
        self._gets.pop(rank, None)
        self._disconnected.add(rank)
        for checking in self._rounds.values():
            checking.waiters.pop(rank, None)
        for key, meeting in list(self._meetings.items()):
            meeting.waiters.pop(rank, None)
            meeting.values.pop(rank, None)
            if not meeting.values:
                del self._meetings[key]

    def gone(self, rank: int, how: str) -> Replies:
        """Answer the requests that wait for ``rank``: its process has ended, as ``how`` tells, and it will not come."""
        self._gone[rank] = how
        out: Replies = []
        for number, checking in list(self._rounds.items()):
            if checking.waiters and rank not in checking.values:
                out += self._finish(number, gone=how)
        for key, meeting in list(self._meetings.items()):
            if rank in meeting.ranks and rank not in meeting.values:
                out += self._give_up(key, gone=how)
        return out

    def back(self, rank: int) -> None:
        """``rank`` is there: another process than the one that ended speaks for it."""
        self._gone.pop(rank, None)

    def tick(self, now: float) -> Replies:
        """Answer the requests that have waited long enough."""
        out: Replies = []
        for rank, (_, waiter) in list(self._gets.items()):
            if waiter.deadline <= now:
                del self._gets[rank]
                out.append((rank, encode_frame({"number": waiter.number, "timeout": True})))
        for number, checking in list(self._rounds.items()):
            late = [w for w in checking.waiters.values() if w.deadline <= now]
            if late:
                missing = name_ranks(r for r in range(self._size) if r not in checking.values)
                reason = f"{missing} of {self._size} never came within {min(w.timeout for w in late):g} s"
                out += self._finish(number, missing=reason)
        for key, meeting in list(self._meetings.items()):
            if any(waiter.deadline <= now for waiter in meeting.waiters.values()):
                out += self._give_up(key, missing=name_ranks(sorted(meeting.ranks.keys() - meeting.values.keys())))
        return out

    def next_deadline(self) -> Optional[float]:
        """When ``tick`` has something to do; None if nobody is waiting."""
        deadlines = [waiter.deadline for _, waiter in self._gets.values()]
        deadlines += [w.deadline for checking in self._rounds.values() for w in checking.waiters.values()]
        deadlines += [w.deadline for meeting in self._meetings.values() for w in meeting.waiters.values()]
        return min(deadlines, default=None)

    def _set(self, rank: int, number: int, key: str, value: str) -> Replies:
        problem = _too_long("key", key, KEY_LIMIT) or _too_long(f"value of {key!r:.100}", value, VALUE_LIMIT)
        if not problem and key not in self._values and len(self._values) >= KEYS_LIMIT:
            problem = f"the store is full: it holds {KEYS_LIMIT} keys; {key!r:.100} was not set"
        if problem:
            return [(rank, encode_frame({"number": number, "error": problem}))]
        self._values[key] = value
        out: Replies = [(rank, encode_frame({"number": number}))]
        for waiting, (wanted, waiter) in list(self._gets.items()):
            if wanted == key:
                del self._gets[waiting]
                out.append((waiting, encode_frame({"number": waiter.number, "value": value})))
        return out

    def _count(self, rank: int, number: int, key: str) -> Replies:
        problem = self._no_counter(key)
        if problem:
            return [(rank, encode_frame({"number": number, "error": problem}))]
        return [(rank, encode_frame({"number": number, "value": self._counted(key)}))]

    def _no_counter(self, key: str) -> str:
        """Return why there can be no counter ``key``, "" if there can."""
        problem = _too_long("key", key, KEY_LIMIT)
        if not problem and key not in self._counters and len(self._counters) >= KEYS_LIMIT:
            problem = f"the store is full: it holds {KEYS_LIMIT} counters"
        return problem

    def _counted(self, key: str) -> int:
        self._counters[key] = self._counters.get(key, self._first_count - 1) + 1
        return self._counters[key]

    def _get(self, rank: int, key: str, waiter: _PendingRequest) -> Replies:
        if key in self._values:
            return [(rank, encode_frame({"number": waiter.number, "value": self._values[key]}))]
        self._gets[rank] = (key, waiter)
        return []

    def _round_of(self, rank: int, number: int) -> int:
        """Return the round that a rank calls ``number``.

        A rank may run one program after the other, and each counts from 0. (A second process beside one that is still
        there does not get this far: the store lets nobody else in as this rank.)
        """
        last, own = self._last_round.get(rank, -1), number + self._first_round.get(rank, 0)
        if own <= last and rank in self._disconnected:
            self._first_round[rank], own = last + 1 - number, last + 1
        return own

    def _check_in(self, rank: int, number: int, value: str, waiter: _PendingRequest) -> Replies:
        checking = self._rounds.setdefault(number, _CheckIn())
        problem = _too_long(f"check-in value of rank {rank}", value, VALUE_LIMIT)
        if rank in checking.values:
            problem = f"rank {rank} has already checked in to round {number}; a later check-in needs a new round"
        elif "missing" in checking.problem:
            return [
                (rank, encode_frame({"number": waiter.number, "missing": f"too late: {checking.problem['missing']}"}))
            ]
        elif checking.problem:
            return [(rank, encode_frame({"number": waiter.number, **checking.problem}))]
        if problem:
            return [(rank, encode_frame({"number": waiter.number, "error": problem}))]
        checking.values[rank] = value
        checking.waiters[rank] = waiter
        self._last_round[rank] = number
        self._disconnected.discard(rank)
        how = next((how for absent, how in self._gone.items() if absent not in checking.values), None)
        if how is not None:
            return self._finish(number, gone=how)
        return self._finish(number) if len(checking.values) == self._size else []

    def _meet(self, rank: int, key: Tuple[str, str], value: str, waiter: _PendingRequest) -> Replies:
        counter, text = key
        problem = self._no_counter(counter) or _too_long(f"value of rank {rank}", value, VALUE_LIMIT)
        if problem:
            return [(rank, encode_frame({"number": waiter.number, "error": problem}))]
        meeting = self._meetings.get(key) or _Meeting(self._ranks(text))
        if rank not in meeting.ranks:
            raise ProtocolError(f"rank {rank} wants to meet {text!r:.100}: not itself and other ranks of {self._size}")
        self._meetings[key] = meeting
        meeting.values[rank] = value
        meeting.waiters[rank] = waiter
        how = next((self._gone[r] for r in meeting.ranks if r in self._gone and r not in meeting.values), None)
        if how is not None:
            return self._give_up(key, gone=how)
        if len(meeting.values) < len(meeting.ranks):
            return []
        del self._meetings[key]
        parts = _parts([meeting.values[rank] for rank in meeting.ranks], count=self._counted(counter))
        return [(rank, part) for rank in meeting.ranks for part in parts]

    def _ranks(self, text: str) -> Dict[int, None]:
        """Return the ranks of a text such as ``3,0``; none if they are not some of the job's, each once."""
        numbers = [int(part) for part in text.split(",") if part.isdecimal() and len(part) < 10]
        ranks = dict.fromkeys(number for number in numbers if number < self._processes)
        return ranks if len(ranks) == text.count(",") + 1 else {}

    def _give_up(self, key: Tuple[str, str], **problem: str) -> Replies:
        meeting = self._meetings.pop(key)
        return [(rank, encode_frame({"number": w.number, **problem})) for rank, w in meeting.waiters.items()]

    def _finish(self, number: int, **problem: str) -> Replies:
        """End a check-in; ``problem``, if it failed: why."""
        checking = self._rounds[number]
        checking.problem = problem
        waiters, checking.waiters = checking.waiters, {}
        out: Replies = []
        if problem:
            out = [(rank, encode_frame({"number": waiter.number, **problem})) for rank, waiter in waiters.items()]
        else:
            parts = _parts([checking.values[rank] for rank in range(self._size)])
            out = [(rank, part) for rank in waiters for part in parts]
        checking.values = dict.fromkeys(checking.values, "")  # who came is kept, what they said is not
        while len(self._rounds) > _ROUNDS_KEPT:
            oldest = next(iter(self._rounds))
            if self._rounds[oldest].waiters:
                break
            del self._rounds[oldest]
        return out


def _parts(values: List[str], **more: int) -> List[bytes]:
    """Cut an answer to many ranks into frames that stay below the limit; all ranks are sent the same bytes."""
    parts: List[bytes] = []
    first, length = 0, 0
    for index, value in enumerate(values):
        length += len(json.dumps(value)) + 1
        if length > _PART or index == len(values) - 1:
            last = index == len(values) - 1
            parts.append(encode_frame({"values": values[first : index + 1], "last": last, **more}))
            first, length = index + 1, 0
    return parts


def _too_long(what: str, text: str, limit: int) -> str:
    size = len(text.encode("utf-8", "surrogatepass"))
    return f"the {what} has {size} bytes; at most {limit} are allowed" if size > limit else ""


def _text(rank: int, message: Message, key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str):
        raise ProtocolError(f"rank {rank}: the {key} of a request is {value!r:.100}, not text")
    return value


def _seconds(rank: int, message: Dict[str, Any]) -> float:
    value = message.get("timeout")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ProtocolError(f"rank {rank}: the timeout of a request is {value!r:.100}, not seconds")
    return float(value)
