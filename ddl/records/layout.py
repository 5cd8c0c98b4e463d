"""The bytes of a process's record: csrc/engine/record.h has the same layout, and docs/record.md explains it.

``read_process`` takes a function that reads the memory at an offset, and returns what is there. The process may be
writing at the same moment. An entry that changes while it is read is left out; other numbers are those of some moment.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from ddl.errors import ProtocolError

__all__ = [
    *("ITEM_BYTES", "MOST", "ROOT_BYTES", "VERSION", "WORLDS", "CommunicatorRecord", "LaneRecord", "ProcessRecord"),
    *("RecordedOperation", "RingRecord", "StepsRecord", "Wanted", "read_process"),
]

VERSION = 4
ROOT_BYTES = 4096
MAGIC = b"ddl-rec\0"

#: The fields, as struct describes them. A test holds the offsets against those of the core.
_ROOT = struct.Struct("<8sIIqqII1024s")
_RECORDS, _RECORDS_AT = struct.Struct("<256Q"), 1064
_STEPS, _STEPS_AT = struct.Struct("<Q64q"), 3112
_RECORD = struct.Struct("<QQ48x" + 3 * "Qqqqq24x" + "IIQqQQQQIIII512s")
_PLAN_NAMES_AT, _PLAN_NAME_BYTES, _RECORD_BYTES = 840, 32, 2880
_TRAFFIC = struct.Struct("<QQ")
_ENTRY = struct.Struct("<QQQqqqIIQ64s")
_LANES = 3
#: Numbers of the communicators of init number k, or of generation k, begin at k * WORLDS, with that of all ranks.
WORLDS = 1 << 40
MOST = 1 << 20  #: ranks, or entries of a ring: what a broken process says must not take all memory

#: By their numbers on the wire.
COLLECTIVES = (
    *("none", "allreduce", "reducescatter", "allgather", "broadcast", "alltoall", "reduce", "gather", "scatter"),
    *("barrier", "send", "recv"),
)
DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
)
#: Bytes of an element.
ITEM_BYTES = dict(zip(DTYPES, (2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1)))
_COMPLEX = {name: f"complex{16 * ITEM_BYTES[name]}" for name in ("float16", "float32", "float64")}
ITEM_BYTES.update((name, 2 * ITEM_BYTES[part]) for part, name in _COMPLEX.items())
OPS = ("sum", "min", "max", "product", "average")
STATES = ("none", "submitted", "begun", "ended", "failed")
LANES = ("small", "large", "messages")

Read = Callable[[int, int], bytes]  #: offset, number of bytes -> so many bytes of the process's arena


@dataclass(frozen=True)
class RecordedOperation:
    """One collective, or one send or receive. Times are seconds of CLOCK_MONOTONIC of its host.

    A time is None if the operation is not so far, or if nobody has read the clock: that is not done for an operation
    whose peers were there already, and which took some microseconds. ``awaited``: the rank of the communicator for
    which a thread has last gone to sleep.
    """

    number: int
    collective: str
    dtype: str
    op: str
    sizes_for: str  #: not empty: it exchanges the sizes before that collective
    root: int  #: of a send or receive: the other rank
    count: int  #: elements; 0 where ranks may differ
    submitted: Optional[float]
    begun: Optional[float]
    ended: Optional[float]
    state: str
    awaited: Optional[int]
    pieces: int
    pieces_ended: int
    plan: str
    lane: str
    label: str

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state in ("ended", "failed")

    @property
    def text(self) -> str:
        """``allreduce(1024 x float32, average)``, as the core's errors say it."""
        if self.sizes_for:
            return f"{self.sizes_for}(sizes)"
        details: List[str] = []
        if self.collective != "barrier":
            details.append(f"{self.count} x {self.dtype}" if self.count else self.dtype)
        if self.collective in ("allreduce", "reducescatter", "reduce"):
            details.append(self.op)
        if self.collective in ("broadcast", "reduce", "gather", "scatter"):
            details.append(f"root {self.root}")
        if self.collective in ("send", "recv"):
            details.append(f"{'to' if self.collective == 'send' else 'from'} rank {self.root}")
        return f"{self.collective}({', '.join(details)})"

    @property
    def numbered(self) -> str:
        """``allreduce #417 "bucket.4" (1024 x float32, average)``."""
        verb, _, details = self.text.partition("(")
        label = f' "{self.label}"' if self.label else ""
        return f"{verb} #{self.number}{label}" + (f" ({details}" if details != ")" else "")


@dataclass(frozen=True)
class LaneRecord:
    """What a lane has done so far; seconds. ``busy_since``: since when operations are under way, None if none is.

    ``waiting_since``: since when it waits and sleeps, which is not in ``waited`` yet; None if it does not.
    """

    operations: int
    waited: float
    under_way: float
    busy_since: Optional[float]
    waiting_since: Optional[float] = None


@dataclass(frozen=True)
class CommunicatorRecord:
    """One communicator of the process. ``ranks``: the number in the job of each of its ranks."""

    number: int
    rank: int
    ranks: Tuple[int, ...]
    submitted: int  #: collectives
    submitted_messages: int
    closed: Optional[float]
    failure: str
    lanes: Mapping[str, LaneRecord]
    sent: Tuple[Tuple[int, int], ...]  #: messages and bytes to each rank
    collectives: Tuple[RecordedOperation, ...]  #: the last ones, the oldest first
    messages: Tuple[RecordedOperation, ...]

    @property
    def of_all_ranks(self) -> bool:
        """Whether init, or a new generation, has made it of all ranks; communicators made of that do not count."""
        return self.number % WORLDS == 0

    @property
    def title(self) -> str:
        """``all ranks``, or ``communicator 7 of 2 ranks``."""
        return "all ranks" if self.of_all_ranks else f"communicator {self.number} of {len(self.ranks)} ranks"


@dataclass(frozen=True)
class StepsRecord:
    """The training steps of the process, as its adapter notes them: docs/record.md says when a step has ended.

    The two may be of different moments: ``ended`` may have a step less or more than there were at ``count``.
    """

    count: int = 0  #: since the process began
    ended: Tuple[float, ...] = ()  #: when each of the last 64 or fewer ended, the oldest first; seconds


@dataclass(frozen=True)
class ProcessRecord:
    """All that a process has recorded."""

    pid: int
    identity: Mapping[str, Any]  #: what Python said of it: Job.introduction in ddl/_comm/job.py; {} before init
    monotonic: float  #: a moment by CLOCK_MONOTONIC, in seconds
    wall: float  #: the same moment by CLOCK_REALTIME
    unlisted: int  #: communicators that are not here, as there are too many
    communicators: Tuple[CommunicatorRecord, ...]
    steps: StepsRecord = StepsRecord()


@dataclass(frozen=True)
class RingRecord:
    """A ring of a communicator, before its operations are read."""

    communicator: int
    ranks: Tuple[int, ...]  #: with ``communicator`` they say which one it is: parts of a split have one number
    messages: bool  #: whether it holds messages; else collectives
    length: int  #: operations that it holds at most
    submitted: int  #: operations so far; the last one's number


Wanted = Callable[[RingRecord], int]  #: how many of the last operations of a ring to read


def read_process(read: Read, *, last: Union[int, Wanted] = MOST) -> ProcessRecord:
    """Return what the memory holds, with the ``last`` operations of each ring. ``ProtocolError`` if it is no record."""
    wanted = _always(last) if isinstance(last, int) else last
    root = read(0, ROOT_BYTES)
    magic, version, pid, monotonic, wall, unlisted, text_bytes, text = _ROOT.unpack_from(root)
    if magic != MAGIC:
        raise ProtocolError("there is no record: the process has not made a communicator yet")
    if version != VERSION:
        raise ProtocolError(f"the record has version {version}, this DDL reads version {VERSION}")
    offsets = [offset for offset in _RECORDS.unpack_from(root, _RECORDS_AT) if offset]
    return ProcessRecord(
        pid=pid,
        identity=_identity(text[:text_bytes]),
        monotonic=monotonic / 1e9,
        wall=wall / 1e9,
        unlisted=unlisted,
        communicators=tuple(sorted(_communicators(read, offsets, wanted), key=lambda record: record.number)),
        steps=_steps(root),
    )


def _always(last: int) -> Wanted:
    return lambda _: last


def _steps(root: bytes) -> StepsRecord:
    """Return the steps. The ring holds times that follow one another, from whichever place: see note_step."""
    count, *ends = _STEPS.unpack_from(root, _STEPS_AT)
    return StepsRecord(count, tuple(end / 1e9 for end in sorted(ends) if end))


def _identity(text: bytes) -> Dict[str, Any]:
    try:
        identity = json.loads(text or b"{}")
    except ValueError:  # it is being written, or is longer than there is room
        return {}
    if not isinstance(identity, dict):
        return {}
    return {key: _text(value.encode()) if isinstance(value, str) else value for key, value in identity.items()}


def _communicators(read: Read, offsets: List[int], wanted: Wanted) -> Iterator[CommunicatorRecord]:
    for offset in offsets:
        data = read(offset, _RECORD_BYTES)
        fields = _RECORD.unpack_from(data)
        submitted, submitted_messages = fields[:2]
        lanes = {name: _lane(fields[2 + 5 * i : 7 + 5 * i]) for i, name in enumerate(LANES)}
        rank, size, number, closed, ranks_at, traffic_at, collectives_at, messages_at = fields[17:25]
        collectives, messages, plans, failure_bytes, failure = fields[25:]
        if max(size, collectives, messages) > MOST or rank >= size:
            raise ProtocolError(f"the record at byte {offset} makes no sense: rank {rank} of {size}")
        names = [_name(data, plan) for plan in range(min(plans, 63))]
        ranks: Tuple[int, ...] = struct.unpack(f"<{size}I", read(ranks_at, 4 * size))
        last_collectives = wanted(RingRecord(number, ranks, False, collectives, submitted))
        last_messages = wanted(RingRecord(number, ranks, True, messages, submitted_messages))
        yield CommunicatorRecord(
            number=number,
            rank=rank,
            ranks=ranks,
            submitted=submitted,
            submitted_messages=submitted_messages,
            closed=closed / 1e9 if closed else None,
            failure=_text(failure[:failure_bytes]),
            lanes=lanes,
            sent=_sent(read(traffic_at, _LANES * size * _TRAFFIC.size), size),
            collectives=_ring(read, collectives_at, collectives, submitted, names, last_collectives),
            messages=_ring(read, messages_at, messages, submitted_messages, names, last_messages),
        )


def _lane(fields: Tuple[int, ...]) -> LaneRecord:
    operations, waited, under_way, busy, waiting = fields
    since = (moment / 1e9 if moment else None for moment in (busy, waiting))
    return LaneRecord(operations, waited / 1e9, under_way / 1e9, *since)


def _name(data: bytes, plan: int) -> str:
    begin = _PLAN_NAMES_AT + plan * _PLAN_NAME_BYTES
    return _text(data[begin : begin + _PLAN_NAME_BYTES].split(b"\0")[0])


def _sent(data: bytes, size: int) -> Tuple[Tuple[int, int], ...]:
    counts = list(_TRAFFIC.iter_unpack(data))  # by lane and rank
    by_rank = [counts[rank::size] for rank in range(size)]
    return tuple((sum(messages for messages, _ in lanes), sum(sent for _, sent in lanes)) for lanes in by_rank)


def _ring(
    read: Read, at: int, length: int, submitted: int, names: List[str], last: int
) -> Tuple[RecordedOperation, ...]:
    """Return the last entries of a ring. Two looks: what differs between them was being written."""
    used = min(length, submitted, last)
    begin = (submitted - used + 1) % max(1, length)  # entry number 1 is at place 1
    parts = [(begin, min(length, begin + used)), (0, max(0, begin + used - length))]

    def look() -> List[Tuple[Any, ...]]:
        data = b"".join(read(at + _ENTRY.size * a, _ENTRY.size * (b - a)) for a, b in parts if b > a)
        return list(_ENTRY.iter_unpack(data))

    whole = [entry for entry, again in zip(look(), look()) if entry[0] and entry[0] == again[0]]
    return tuple(_operation(entry, names) for entry in sorted(whole))


def _operation(fields: Tuple[Any, ...], names: List[str]) -> RecordedOperation:
    number, signature, count, submitted, begun, ended, pieces_ended, awaited, packed, label = fields
    sizes_for = signature >> 24 & 0xFF
    root = signature >> 32
    plan = packed >> 8 & 0xFF
    dtype, is_complex = _of(DTYPES, signature >> 8 & 0x7F), bool(signature >> 15 & 1)
    if is_complex:  # the core counts its real and imaginary parts
        dtype = _COMPLEX.get(dtype, dtype)
    return RecordedOperation(
        number=number,
        collective=_of(COLLECTIVES, signature & 0xFF),
        dtype=dtype,
        op=_of(OPS, signature >> 16 & 0x7F),
        sizes_for=_of(COLLECTIVES, sizes_for) if sizes_for else "",
        root=root - (1 << 32) if root >> 31 else root,
        count=count // 2 if is_complex else count,
        submitted=submitted / 1e9 if submitted else None,
        begun=begun / 1e9 if begun else None,
        ended=ended / 1e9 if ended else None,
        state=_of(STATES, packed & 0xFF),
        awaited=awaited - 1 if awaited else None,
        pieces=packed >> 32,
        pieces_ended=packed >> 32 if _of(STATES, packed & 0xFF) == "ended" else pieces_ended,
        plan=names[plan - 1] if 0 < plan <= len(names) else "",
        lane=_of(LANES, packed >> 16 & 0xFF),
        label=_text(label[: packed >> 24 & 0xFF]),
    )


def _text(data: bytes) -> str:
    """Return what a terminal may show of it: it may be anybody's."""
    return "".join(c if c.isprintable() else "?" for c in data.decode(errors="replace"))


def _of(names: Tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"number {number}"
