"""Dumps of ranks that never were. Times are seconds of a clock that reads 100 when all dumps are taken."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddl.records.dump import ProcessView, RankDump
from ddl.records.layout import CommunicatorRecord, LaneRecord, ProcessRecord, RecordedOperation

TAKEN = 100.0
#: Stacks as faulthandler writes them: of a program that loads data, and of one that waits in DDL.
THREAD = 'Thread 0x00007f01 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 320 in wait\n\n'
LOADING = (
    THREAD + "Current thread 0x00007f02 (most recent call first):\n"
    '  File "/usr/lib/python3.11/queue.py", line 171 in get\n'
    '  File "/home/me/train.py", line 12 in load\n'
    '  File "/home/me/train.py", line 40 in <module>\n'
)
IN_DDL = (
    THREAD + "Current thread 0x00007f02 (most recent call first):\n"
    '  File "/usr/lib/python3.11/site-packages/ddl/_comm/verbs.py", line 88 in allreduce_\n'
    '  File "/home/me/train.py", line 41 in <module>\n'
)


def call(number: int, state: str = "ended", **changes: Any) -> RecordedOperation:
    """Return an all-reduce, of which the clock was not read; ``begun`` and others change it."""
    fields: Dict[str, Any] = {
        **{"number": number, "collective": "allreduce", "dtype": "float32", "op": "sum", "sizes_for": ""},
        **{"root": 0, "count": 4096, "submitted": None, "begun": None, "ended": None, "state": state},
        **{"awaited": None, "pieces": 1, "pieces_ended": 0, "plan": "eager", "lane": "small", "label": ""},
    }
    return RecordedOperation(**{**fields, **changes})


def open_call(number: int, since: float, awaited: Optional[int] = None, **changes: Any) -> RecordedOperation:
    """Return a call that has been under way for ``since`` seconds."""
    return call(number, "begun", begun=TAKEN - since, awaited=awaited, **changes)


def message(number: int, collective: str, other: int, since: float) -> RecordedOperation:
    """Return a send to, or a receive from, the rank ``other`` of the communicator, under way for ``since`` seconds."""
    return open_call(number, since, other, collective=collective, root=other, lane="messages")


def communicator(
    rank: int, ranks: Sequence[int], calls: Sequence[RecordedOperation] = (), **changes: Any
) -> CommunicatorRecord:
    """Return what a rank of a communicator has recorded, whose last calls are these."""
    messages = tuple(each for each in calls if each.collective in ("send", "recv"))
    collectives = tuple(each for each in calls if each not in messages)
    fields: Dict[str, Any] = {
        **{"number": 0, "rank": rank, "ranks": tuple(ranks), "closed": None, "failure": ""},
        **{"submitted": collectives[-1].number if collectives else 0, "submitted_messages": len(messages)},
        **{"lanes": {"small": LaneRecord(0, 0.0, 0.0, None)}, "sent": ((0, 0),) * len(ranks)},
        **{"collectives": collectives, "messages": messages},
    }
    return CommunicatorRecord(**{**fields, **changes})


def dump(
    rank: int,
    communicators: Sequence[CommunicatorRecord],
    *,
    size: int = 4,
    host: str = "a",
    state: str = "sleeps",
    view: Optional[Dict[str, Any]] = None,
    taken: float = TAKEN,
    clock: Tuple[float, float] = (0.0, 1e9),
    **changes: Any,
) -> RankDump:
    """Return the dump of a rank. ``clock``: the same moment by the host's clock and by wall time."""
    identity = {"rank": rank, "size": size, "number": rank, "host": host, "generation": 0, "job": "a"}
    record = ProcessRecord(
        pid=1000 + rank,
        identity=identity,
        monotonic=clock[0],
        wall=clock[1],
        unlisted=0,
        communicators=tuple(communicators),
    )
    return RankDump(taken, ProcessView(1000 + rank, state, **(view or {})), record, **changes)


def job(calls: Sequence[Sequence[RecordedOperation]], **changes: Dict[int, Dict[str, Any]]) -> List[RankDump]:
    """Return a job's dumps; ``calls[r]``: the last calls of rank r. ``dumps={2: {...}}`` changes that of rank 2."""
    size = len(calls)
    return [
        dump(
            rank,
            [communicator(rank, range(size), own, **changes.get("records", {}).get(rank, {}))],
            size=size,
            **changes.get("dumps", {}).get(rank, {}),
        )
        for rank, own in enumerate(calls)
    ]


def all_wait_for(culprit: int, size: int = 4, since: float = 30.0) -> List[List[RecordedOperation]]:
    """Return the calls of ranks that are in #7, which ``culprit`` has not called."""
    return [[call(6)] if rank == culprit else [call(6), open_call(7, since, culprit)] for rank in range(size)]
