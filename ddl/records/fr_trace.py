"""What ranks have recorded, in the form of PyTorch's flight recorder: its analyser ``torchfrtrace`` reads it. No I/O.

docs/record.md says how to use it. The analyser compares what ranks have under the same number of the same process
group. It reports a rank that has nothing there as missing. So an operation must be in the dumps of all ranks that have
called it, or in none, although the ranks have kept different numbers of old ones. Three rules see to that:

* Collectives of all ranks: ``record_id`` is their number. The analyser takes the largest first ``record_id`` of all
  ranks, and drops what comes before, in every dump. There is one such limit for all process groups, so this can be
  done for one communicator only. Whatever else there is has larger ids.
* Collectives of other communicators: they begin with the first one that all given records still have. The records of
  other hosts are not given. So that their dumps begin alike, the first one has a round number, usually the same on all
  hosts.
* Messages: the analyser wants all ranks of a process group in each operation, with the same number, and a rank numbers
  all its messages together. So the messages from one rank to another form a group of their own, and are counted there.
  That takes the records of both ranks, from the first message on.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, DefaultDict, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddl.records.layout import DTYPES, CommunicatorRecord, ProcessRecord, RecordedOperation

__all__ = ["FORMAT", "fr_traces"]

FORMAT = "2.10"  #: of PyTorch's dumps
_NEVER_DROPPED = 10**12  #: no ``record_id`` of a collective of all ranks is as large
_ROUND = 32  #: half as many as a communicator of some ranks remembers: ddl/_comm/group.py
#: Torch's names of collectives; the others are called alike.
_NAMES = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
}
_SCALAR_TYPES = dict(
    zip(
        DTYPES,
        "Half BFloat16 Float Double Char Short Int Long Byte UInt16 UInt32 UInt64 Bool".split(),
    ),
    complex32="ComplexHalf",
    complex64="ComplexFloat",
    complex128="ComplexDouble",
)
#: What has failed is not over for the analyser, and on all ranks alike.
_PROGRESS = {"submitted": "scheduled", "begun": "started", "ended": "completed", "failed": "started"}
_SHARED_INPUT = {"reduce_scatter", "scatter", "all_to_all"}  #: a block for each rank is in it
_SHARED_OUTPUT = {"all_gather", "gather", "all_to_all"}

Parts = Dict[int, CommunicatorRecord]  #: communicators of a rank, by number


class _NamedCall(NamedTuple):
    number: int
    name: str
    call: RecordedOperation


class _CallsOfGroup(NamedTuple):
    """A process group of the dump, with what the rank has called there."""

    id: str
    description: str
    ranks: Sequence[int]  #: of the job
    calls: Sequence[_NamedCall]


def fr_traces(records: Sequence[ProcessRecord], *, library: str = "gloo") -> Dict[int, Dict[str, Any]]:
    """Return what the file of each rank holds, by its rank in the job: dicts, lists, text and numbers, to be pickled.

    records: of as many ranks of one job as possible: what one of them lacks is left out of all (see above). Processes
        that are not in the job's newest communicator of all ranks are left out, and so is what is older than that.
    library: what the analyser shows before the names of operations. "gloo" is a name that each analyser knows; that
        of torch below 2.15 refuses names that it does not know.
    """
    worlds = [(world, record) for record in records for world in (_world(record),) if world is not None]
    newest = max((world.number for world, _ in worlds), default=0)
    members = {world.rank: (world, record) for world, record in worlds if world.number == newest}
    parts = {rank: _parts(world, record) for rank, (world, record) in members.items()}
    return {rank: _trace(rank, record, newest, parts, library) for rank, (_, record) in sorted(members.items())}


def _world(record: ProcessRecord) -> Optional[CommunicatorRecord]:
    """Return the newest communicator of all ranks. One that is being made has no number yet, and no calls."""
    worlds = [each for each in record.communicators if each.of_all_ranks]
    return max(worlds, key=lambda each: (each.number, each.submitted > 0, len(each.ranks)), default=None)


def _parts(world: CommunicatorRecord, record: ProcessRecord) -> Parts:
    """Return ``world`` and the communicators that were made of it; their ``ranks`` are the job's present ranks."""
    ranks = {number: rank for rank, number in enumerate(world.ranks)}
    return {
        each.number: replace(each, ranks=tuple(ranks[number] for number in each.ranks))
        for each in record.communicators
        if each is world or (each.number > world.number and set(each.ranks) <= set(ranks))
    }


def _trace(rank: int, record: ProcessRecord, world: int, parts: Mapping[int, Parts], library: str) -> Dict[str, Any]:
    clock = record.wall - record.monotonic
    groups = [group for part in parts[rank].values() for group in _groups(part, world, rank, parts)]
    entries = [_entry(group, named, library, clock) for group in groups for named in group.calls]
    # Ids of all ranks' collectives come first. A rank without any must not have a larger first one than the others.
    other_ids = _NEVER_DROPPED if parts[rank][world].collectives else 1
    for place, entry in enumerate(entries):
        entry["record_id"] = entry["op_id"] if entry["process_group"][0] == str(world) else other_ids + place
    return {
        "version": FORMAT,
        "pg_config": {
            group.id: {"name": group.id, "desc": group.description, "ranks": str(list(group.ranks))} for group in groups
        },
        "pg_status": {group.id: _status(group) for group in groups},
        "entries": entries,
    }


def _groups(
    communicator: CommunicatorRecord, world: int, rank: int, parts: Mapping[int, Parts]
) -> Iterator[_CallsOfGroup]:
    """Yield what ``rank`` has called there and all can compare: collectives first, then messages by their ends."""
    number = communicator.number
    first = 1 if number == world else _first_of_all(communicator, parts)
    if first is None:
        return
    description = "all ranks" if number == world else f"communicator of {len(communicator.ranks)} ranks"
    calls = [_NamedCall(call.number, _name(call), call) for call in communicator.collectives if call.number >= first]
    yield _CallsOfGroup(str(number), description, communicator.ranks, calls)
    messages: DefaultDict[Tuple[int, int], List[RecordedOperation]] = defaultdict(list)
    for call in communicator.messages:
        peer = communicator.ranks[call.root]
        messages[(rank, peer) if call.collective == "send" else (peer, rank)].append(call)
    for (sender, receiver), sent in messages.items():
        if all(_has_all_messages(parts.get(end, {}).get(number)) for end in (sender, receiver)):
            low, high = (0, 1) if sender < receiver else (1, 0)  # the analyser counts in the order of ranks
            names = {"send": f"send {low}->{high}", "recv": f"recv {high}<-{low}"}
            yield _CallsOfGroup(
                id=f"{number}.{sender}->{receiver}",
                description=f"messages from rank {sender} to rank {receiver}",
                ranks=sorted((sender, receiver)),
                calls=[_NamedCall(place, names[call.collective], call) for place, call in enumerate(sent, 1)],
            )


def _first_of_all(communicator: CommunicatorRecord, parts: Mapping[int, Parts]) -> Optional[int]:
    """Return the number of the first collective that all its ranks still have; None if one has left, or not come."""
    known = [parts[rank].get(communicator.number) for rank in communicator.ranks if rank in parts]
    firsts = [_first(each) for each in known if each is not None]
    if len(firsts) < len(known):
        return None
    first = max(firsts)
    if len(known) == len(communicator.ranks):
        return first
    return -(-(first - 1) // _ROUND) * _ROUND + 1


def _first(communicator: CommunicatorRecord) -> int:
    return communicator.collectives[0].number if communicator.collectives else communicator.submitted + 1


def _has_all_messages(communicator: Optional[CommunicatorRecord]) -> bool:
    """Whether each message since the communicator was made is still recorded."""
    if communicator is None:
        return False
    numbers = [call.number for call in communicator.messages]
    return numbers == list(range(1, communicator.submitted_messages + 1))


def _name(call: RecordedOperation) -> str:
    """Return torch's name; of an exchange of sizes, that of the collective for which it is."""
    collective = call.sizes_for or call.collective
    return _NAMES.get(collective, collective)


def _entry(group: _CallsOfGroup, named: _NamedCall, library: str, clock: float) -> Dict[str, Any]:
    """Return an entry, without its ``record_id``. ``clock``: added to a record's time gives the wall clock's."""
    number, name, call = named
    message = call.collective in ("send", "recv")
    block, all_blocks = [call.count], [call.count * len(group.ranks)]
    types = [] if name == "barrier" else [_SCALAR_TYPES.get(call.dtype, call.dtype)]
    return {
        "process_group": (group.id, group.description),
        "collective_seq_id": number,  # the analyser looks for it, of messages, too
        "p2p_seq_id": number if message else 0,
        "op_id": call.number,
        "is_p2p": message,
        "profiling_name": f"{library}:{name}",
        "input_sizes": [all_blocks if name in _SHARED_INPUT else block] if types else [],
        "output_sizes": [all_blocks if name in _SHARED_OUTPUT else block] if types else [],
        "input_dtypes": types,
        "output_dtypes": types,
        "state": _PROGRESS.get(call.state, "scheduled"),
        "retired": call.over,
        "time_created_ns": _nanoseconds(call.submitted or call.begun or call.ended, clock) or 0,
        "time_discovered_started_ns": _nanoseconds(call.begun, clock),
        "time_discovered_completed_ns": _nanoseconds(call.ended, clock),
        "duration_ms": (call.ended - call.begun) * 1e3 if call.begun and call.ended else None,
        "frames": [],
    }


def _nanoseconds(moment: Optional[float], clock: float) -> Optional[int]:
    return None if moment is None else round((moment + clock) * 1e9)


def _status(group: _CallsOfGroup) -> Dict[str, str]:
    """Return the last numbers, -1 if there is none, as torch does."""
    last = {"enqueued": -1, "started": -1, "completed": -1}
    for number, _, call in group.calls:
        last["enqueued"] = number
        if call.state != "submitted":
            last["started"] = number
        if call.state == "ended":
            last["completed"] = number
    return {f"last_{step}_collective": str(number) for step, number in last.items()}
