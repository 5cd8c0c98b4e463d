"""What a rank has done since the last look: ``RecordFollower`` reads each operation and each step once.

The ring of operations wraps around while nobody looks. Entries that were overwritten before they were read are counted
as missing. ``RankNews`` holds the result; it can go over a connection (``news_message``, ``parse_news``).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ddl.errors import ProtocolError
from ddl.records.layout import (
    ITEM_BYTES,
    CommunicatorRecord,
    ProcessRecord,
    RecordedOperation,
    RingRecord,
    StepsRecord,
)
from ddl.records.memory import ProcessMemory

__all__ = ["CallKind", "RankNews", "RecordFollower", "TracedCall", "news_message", "news_pieces", "parse_news"]

_RING_OF_STEPS = 60  # of the 64 steps that are remembered; some may be overwritten while they are read
_PIECE = 1000  # calls of one message: some 100 bytes each, and a frame has at most a megabyte


class CallKind(NamedTuple):
    """What the calls of an operation share."""

    collective: str
    text: str  #: as ``RecordedOperation.text``
    label: str
    lane: str
    plan: str
    size: int  #: bytes of the elements; 0 where ranks may differ
    peer: int  #: of a send or receive: the other rank of the communicator; else -1


class TracedCall(NamedTuple):
    """A call of an operation. Times as in ``RecordedOperation``, in seconds."""

    number: int
    kind: CallKind
    submitted: Optional[float]  #: None: the caller waited for the result in the call, or nobody has read the clock
    begun: Optional[float]
    ended: Optional[float]
    state: str
    awaited: Optional[int]  #: rank of the communicator


@dataclass(frozen=True)
class RankNews:
    """What a rank has done in a communicator since the last look; ``messages``: sends and receives of it.

    News with ``communicator`` -1 are of its training steps: ``step_ends`` are seconds, of step ``first_step`` and those
    that follow; ``step_begin`` is the end of the step before, None if nobody knows.
    """

    number: int  #: of the process, which stays its own when ranks change
    rank: int  #: in the job, then; of operations of other communicators than that of all ranks, now
    host: str
    taken: float  #: seconds of CLOCK_MONOTONIC of its host
    communicator: int
    ranks: Tuple[int, ...] = ()  #: the processes of the communicator, by their numbers
    place: int = 0  #: which of them it is
    messages: bool = False
    missing: int = 0  #: operations or steps that were overwritten before they were read
    calls: Tuple[TracedCall, ...] = ()
    first_step: int = 0
    step_begin: Optional[float] = None
    step_ends: Tuple[float, ...] = ()


class _ReadSoFar:
    """How far a ring has been read."""

    def __init__(self) -> None:
        self.next = 1  # all operations before this number have been told, or are missing
        self.told: Set[int] = set()  # those after it that have ended earlier than it
        self.missing = 0  # since the last news
        self.fill = 0.0

    def want(self, ring: RingRecord) -> int:
        oldest = ring.submitted - ring.length + 1
        if self.next < oldest:
            early = {number for number in self.told if number < oldest}
            self.missing += oldest - self.next - len(early)
            self.told -= early
            self._go_to(oldest)
        wanted = max(0, ring.submitted - self.next + 1)
        self.fill = wanted / max(1, ring.length)
        return wanted

    def take(self, operation: RecordedOperation, last: bool) -> bool:
        """Return whether an operation is to be told: it is over, or this is the last look; and it is new."""
        if operation.number < self.next or operation.number in self.told or not (operation.over or last):
            return False
        self.told.add(operation.number)
        return True

    def settle(self) -> None:
        self._go_to(self.next)

    def _go_to(self, number: int) -> None:
        self.next = number
        while self.next in self.told:
            self.told.remove(self.next)
            self.next += 1


class RecordFollower:
    """Reads the record of one process again and again. Not thread-safe."""

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self._places: Dict[Tuple[int, Tuple[int, ...], bool], _ReadSoFar] = {}
        self._steps = 0  # that have been told, or are missing
        self._last_end: Optional[float] = None
        self.fill = 0.0  #: the part of the fullest ring that has been written since the look before the last one

    def news(self, taken: float, last: bool = False) -> List[RankNews]:
        """Return what has ended since the last call. The ``last`` one also returns what has begun.

        ``taken``: the time, seconds of CLOCK_MONOTONIC. ``ProtocolError`` if there is no record any more.
        """
        record = self._memory.record(last=self._want)
        news = [told for each in record.communicators for told in self._of_communicator(record, each, taken, last)]
        known = {(each.number, each.ranks) for each in record.communicators}
        self._places = {key: place for key, place in self._places.items() if key[:2] in known}
        self.fill = max((place.fill for place in self._places.values()), default=0.0)
        steps = self._of_steps(record, taken)
        self.fill = max(self.fill, 0 if steps is None else len(steps.step_ends) / _RING_OF_STEPS)
        return news if steps is None else [*news, steps]

    def _want(self, ring: RingRecord) -> int:
        return self._places.setdefault((ring.communicator, ring.ranks, ring.messages), _ReadSoFar()).want(ring)

    def _of_communicator(
        self, record: ProcessRecord, communicator: CommunicatorRecord, taken: float, last: bool
    ) -> Iterator[RankNews]:
        for messages, operations in ((False, communicator.collectives), (True, communicator.messages)):
            read = self._places[communicator.number, communicator.ranks, messages]
            calls = tuple(_call(operation) for operation in operations if read.take(operation, last))
            read.settle()
            missing, read.missing = read.missing, 0
            if calls or missing:
                place = communicator.rank
                rank = place if communicator.of_all_ranks else int(record.identity.get("rank", -1))
                told = _about(record, rank, taken, communicator.number)
                yield dataclasses.replace(
                    told, ranks=communicator.ranks, place=place, messages=messages, missing=missing, calls=calls
                )

    def _of_steps(self, record: ProcessRecord, taken: float) -> Optional[RankNews]:
        steps: StepsRecord = record.steps
        begin = self._last_end
        ends = tuple(end for end in steps.ended if begin is None or end > begin)
        if not ends:
            return None
        missing = max(0, steps.count - self._steps - len(ends)) if len(ends) >= _RING_OF_STEPS else 0
        first = self._steps + missing + 1
        self._steps, self._last_end = first + len(ends) - 1, ends[-1]
        told = _about(record, int(record.identity.get("rank", -1)), taken, -1)
        begin = None if missing else begin
        return dataclasses.replace(told, missing=missing, first_step=first, step_begin=begin, step_ends=ends)


def _about(record: ProcessRecord, rank: int, taken: float, communicator: int) -> RankNews:
    identity = record.identity
    return RankNews(int(identity.get("number", rank)), rank, str(identity.get("host", "")), taken, communicator)


def _call(operation: RecordedOperation) -> TracedCall:
    message = operation.collective in ("send", "recv")
    kind = CallKind(
        collective=operation.collective,
        text=operation.text,
        label=operation.label,
        lane=operation.lane,
        plan=operation.plan,
        size=0 if operation.sizes_for else operation.count * ITEM_BYTES.get(operation.dtype, 0),
        peer=operation.root if message else -1,
    )
    times = (operation.submitted, operation.begun, operation.ended)
    return TracedCall(operation.number, kind, *times, operation.state, operation.awaited)


def news_pieces(news: Sequence[RankNews]) -> List[List[RankNews]]:
    """Return ``news`` in pieces that are short enough for a message each."""
    pieces: List[List[RankNews]] = []
    room = 0
    for told in news:
        calls = told.calls
        for start in range(0, max(1, len(calls)), _PIECE):
            part = calls[start : start + _PIECE]
            if room < max(1, len(part)):
                pieces.append([])
                room = _PIECE
            room -= max(1, len(part))
            pieces[-1].append(dataclasses.replace(told, calls=part, missing=0 if start else told.missing))
    return pieces


def news_message(news: RankNews) -> Dict[str, Any]:
    """Return ``news`` as JSON takes it. A kind is written once, calls have its place in the list of kinds."""
    places = {kind: place for place, kind in enumerate(dict.fromkeys(call.kind for call in news.calls))}
    calls = [(call.number, places[call.kind], *call[2:]) for call in news.calls]
    return {**vars(news), "calls": calls, "kinds": list(places)}


def parse_news(message: Mapping[str, Any]) -> RankNews:
    """Return what ``news_message`` has made a message of; ``ProtocolError`` if it is none."""
    try:
        fields = dict(message)
        kinds = [CallKind(*kind) for kind in fields.pop("kinds")]
        calls = [TracedCall(call[0], kinds[call[1]], *call[2:]) for call in fields["calls"]]
        fields.update(calls=tuple(calls), ranks=tuple(fields["ranks"]), step_ends=tuple(fields["step_ends"]))
        return RankNews(**fields)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ProtocolError(f"this is no news of a rank: {type(error).__name__}: {error}") from error
