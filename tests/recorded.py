"""Records of ranks that were never there, for tests of what reads records."""

from __future__ import annotations

from typing import Optional, Sequence

from ddl.records.layout import CommunicatorRecord, ProcessRecord, RecordedOperation

MONOTONIC, WALL = 1000.0, 5000.0


def call(number: int, collective: str = "allreduce", **changes) -> RecordedOperation:
    """Return operation ``number``: 8 float32 that are summed up, ended after a millisecond."""
    fields = dict(
        number=number,
        collective=collective,
        dtype="float32",
        op="sum",
        sizes_for="",
        root=0,
        count=8,
        submitted=MONOTONIC + number,
        begun=MONOTONIC + number,
        ended=MONOTONIC + number + 0.001,
        state="ended",
        awaited=None,
        pieces=1,
        pieces_ended=1,
        plan="ring",
        lane="small",
        label="",
    )
    return RecordedOperation(**{**fields, **changes})


def last_calls(submitted: int, kept: int) -> Sequence[RecordedOperation]:
    """Return the last ``kept`` of so many calls."""
    return [call(number) for number in range(max(1, submitted - kept + 1), submitted + 1)]


def communicator(
    number: int,
    rank: int,
    ranks: Sequence[int],
    collectives: Sequence[RecordedOperation] = (),
    messages: Sequence[RecordedOperation] = (),
    submitted_messages: Optional[int] = None,
) -> CommunicatorRecord:
    """Return what ``rank`` of it has recorded; ``submitted_messages``: default those that are there."""
    return CommunicatorRecord(
        number=number,
        rank=rank,
        ranks=tuple(ranks),
        submitted=collectives[-1].number if collectives else 0,
        submitted_messages=len(messages) if submitted_messages is None else submitted_messages,
        closed=None,
        failure="",
        lanes={},
        sent=(),
        collectives=tuple(collectives),
        messages=tuple(messages),
    )


def process(rank: int, *communicators: CommunicatorRecord, store: str = "10.0.0.1:4000") -> ProcessRecord:
    """Return the record of the rank's process."""
    return ProcessRecord(
        pid=4000 + rank,
        identity={"rank": rank, "size": 3, "store": store, "job": store},
        monotonic=MONOTONIC,
        wall=WALL,
        unlisted=0,
        communicators=communicators,
    )
