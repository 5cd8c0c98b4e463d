"""A sample of a rank while its job runs: a few numbers from its record, cheap to read again and again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddl.records.layout import WORLDS, CommunicatorRecord, ProcessRecord

__all__ = ["CommunicatorSums", "RankSample", "sample_of"]

_PEERS = 64  # to which most was sent: a sample stays small where each rank sends to hundreds of others


class CommunicatorSums(NamedTuple):
    """What one communicator has done on a rank. A tuple, so that it travels as a list."""

    number: int
    operations: int  #: collectives that have ended
    under_way: float  #: seconds in which some were under way
    waited: float  #: seconds in which some were under way and nothing moved
    sent: Tuple[Tuple[int, int, int], ...]  #: the number of a process, messages to it, and their bytes; where there are


@dataclass(frozen=True)
class RankSample:
    """A rank at the moment ``taken``, in seconds of CLOCK_MONOTONIC of its host.

    Sums are of the present communicators of all ranks: that of ``ddl.init``, and those made of it, by which for
    example the gradients of Keras go. New ones begin with each change of the ranks, at zero.
    """

    rank: int
    number: int  #: of the process, which stays its own when ranks change
    host: str
    pid: int
    state: str  #: as ``process_state`` returns it
    taken: float
    communicator: int  #: the number of the one of all ranks; -1: there is none
    steps: int = 0  #: training steps that it has ended since the process began, as its adapter notes them
    operations: int = 0  #: collectives that were called
    under_way: float = 0.0  #: seconds in which some were under way
    waited: float = 0.0  #: seconds of that in which nothing moved
    sent_bytes: int = 0
    sent_to: Sequence[Tuple[int, int]] = ()  #: of that, to each other rank: its number in the job, and bytes; _PEERS
    call: str = ""  #: the last one
    call_state: str = ""
    awaited: Optional[int] = None  #: the rank for which it last went to sleep there
    failure: str = ""
    generation: int = 0  #: of the job's ranks
    paused: float = 0.0  #: seconds that the process has waited for others to agree on a new generation
    #: Own address, another rank's, and bytes that went from here to there over TCP; if that is wanted.
    rails: Sequence[Tuple[str, str, int]] = ()
    #: All that the process has, and those that have ended as long as it keeps their records.
    communicators: Tuple[CommunicatorSums, ...] = ()

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> RankSample:
        """Return the sample whose ``vars`` have travelled here."""
        each = (CommunicatorSums._make([*sums, tuple(map(tuple, sent))]) for *sums, sent in message["communicators"])
        return cls(**{**message, "communicators": tuple(each)})


def sample_of(record: ProcessRecord, state: str, taken: float) -> RankSample:
    """Return the sample of a rank, whose last operation at least is in ``record``."""
    identity = record.identity
    whole = max((each for each in record.communicators if each.of_all_ranks), key=_number, default=None)
    rank = RankSample(
        rank=int(identity.get("rank", -1)),
        number=int(identity.get("number", -1)),
        host=str(identity.get("host", "")),
        pid=record.pid,
        state=state,
        taken=taken,
        communicator=-1 if whole is None else whole.number,
        steps=record.steps.count,
        generation=int(identity.get("generation", 0)),
        paused=float(identity.get("paused_seconds", 0.0)),
        communicators=tuple(_sums(each, taken) for each in record.communicators),
    )
    if whole is None:
        return rank
    others = (each for each in record.communicators if each is not whole and _has_the_ranks_of(each, whole))
    return _with_present(rank, [whole, *others])


def _sums(record: CommunicatorRecord, taken: float) -> CommunicatorSums:
    lanes = [record.lanes[name] for name in ("small", "large")]
    until = taken if record.closed is None else record.closed
    now = sum(until - lane.busy_since for lane in lanes if lane.busy_since is not None)
    waits = sum(until - lane.waiting_since for lane in lanes if lane.waiting_since is not None)
    return CommunicatorSums(
        number=record.number,
        operations=sum(lane.operations for lane in lanes),
        under_way=sum(lane.under_way for lane in lanes) + max(0.0, now),
        waited=sum(lane.waited for lane in lanes) + max(0.0, waits),
        sent=tuple((to, messages, size) for to, (messages, size) in zip(record.ranks, record.sent) if messages),
    )


def _has_the_ranks_of(record: CommunicatorRecord, whole: CommunicatorRecord) -> bool:
    """Return whether it was made of ``whole``, and has all of its ranks."""
    return record.number // WORLDS == whole.number // WORLDS and set(record.ranks) == set(whole.ranks)


def _with_present(rank: RankSample, records: Sequence[CommunicatorRecord]) -> RankSample:
    each = [_sums(record, rank.taken) for record in records]
    sent: Dict[int, int] = {}
    for to, _, size in (entry for sums in each for entry in sums.sent):
        sent[to] = sent.get(to, 0) + size
    # The last operation of the one that has work to do, else of the one that has done most.
    shown = max(records, key=lambda record: (_is_under_way(record), record.submitted))
    last = shown.collectives[-1] if shown.collectives else None
    awaited = None if last is None or last.awaited is None else last.awaited
    return dataclasses.replace(
        rank,
        operations=sum(record.submitted for record in records),
        under_way=sum(sums.under_way for sums in each),
        waited=sum(sums.waited for sums in each),
        sent_bytes=sum(sent.values()),
        sent_to=sorted(sent.items(), key=lambda entry: (-entry[1], entry[0]))[:_PEERS],
        call="" if last is None else last.numbered,
        call_state="" if last is None else last.state,
        awaited=shown.ranks[awaited] if awaited is not None and awaited < len(shown.ranks) else None,
        failure=next((record.failure for record in records if record.failure), ""),
    )


def _is_under_way(record: CommunicatorRecord) -> bool:
    return bool(record.collectives) and record.collectives[-1].state in ("submitted", "begun")


def _number(record: CommunicatorRecord) -> int:
    return record.number
