"""Which chunks lie in which buffer, and the last handful of code that every planner shares.

A collective fixes what a rank's INPUT and OUTPUT hold; an algorithm only chooses how many chunks a buffer is cut
into, or which chunk id each rank's block has. The functions here turn that choice into the ``input`` and ``output``
lists of a ``Plan``, so that no planner writes them by hand; SCRATCH follows from the steps themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Sequence, Tuple

from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.topology import Topology

__all__ = [
    "REDUCING",
    "ROOTED",
    "SPLIT",
    "BlockLayout",
    "Planner",
    "alone",
    "blocks",
    "copy",
    "finish",
    "nothing",
    "notify",
    "others",
    "pairs",
    "split",
    "wait_for",
]

#: What a planner is: the plan of one rank from the topology, that rank and the root.
Planner = Callable[[Topology, int, int], Plan]

#: Collectives that combine values, so that their result is finished by a ``final`` step.
REDUCING = frozenset({Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCESCATTER})
#: Collectives on one buffer that is cut evenly; in the others, block *i* of a buffer belongs to rank *i*.
SPLIT = frozenset({Collective.ALLREDUCE, Collective.REDUCE, Collective.BROADCAST})
#: Collectives with a root.
ROOTED = frozenset({Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER})


@dataclass(frozen=True)
class BlockLayout:
    """The chunks of one rank's INPUT and OUTPUT, in block order, for one collective with one root."""

    collective: Collective
    rank: int
    root: int
    chunks: int
    input: Tuple[int, ...]
    output: Tuple[int, ...]
    in_place: bool = False


def split(collective: Collective, rank: int, root: int, chunks: int) -> BlockLayout:
    """ALLREDUCE, REDUCE, BROADCAST: one buffer, the same on every rank that has it, cut evenly into ``chunks``."""
    every = tuple(range(chunks))
    at_root = every if rank == root else ()
    return {
        Collective.ALLREDUCE: BlockLayout(collective, rank, root, chunks, every, every, True),
        Collective.REDUCE: BlockLayout(collective, rank, root, chunks, every, at_root, rank == root),
        Collective.BROADCAST: BlockLayout(collective, rank, root, chunks, at_root, every, rank == root),
    }[collective]


def blocks(collective: Collective, rank: int, root: int, ids: Sequence[int]) -> BlockLayout:
    """REDUCESCATTER, ALLGATHER, GATHER, SCATTER: the block of rank *b* is chunk ``ids[b]``."""
    every, own = tuple(ids), (ids[rank],)
    at_root = every if rank == root else ()
    contents = {
        Collective.REDUCESCATTER: (every, own),
        Collective.ALLGATHER: (own, every),
        Collective.GATHER: (own, at_root),
        Collective.SCATTER: (at_root, own),
    }[collective]
    return BlockLayout(collective, rank, root, len(every), *contents)


def pairs(rank: int, size: int) -> BlockLayout:
    """ALLTOALL: chunk ``source * size + target`` goes from rank ``source`` to rank ``target``."""
    sent = tuple(range(rank * size, (rank + 1) * size))
    received = tuple(range(rank, size * size, size))
    return BlockLayout(Collective.ALLTOALL, rank, 0, size * size, sent, received)


def nothing(rank: int) -> BlockLayout:
    """BARRIER: no data at all."""
    return BlockLayout(Collective.BARRIER, rank, 0, 0, (), ())


def _own_scratch(steps: Sequence[Step]) -> Tuple[int, ...]:
    """Ids that the steps of this rank touch in its own SCRATCH; ascending, so that a run of ids lies in one piece."""
    far_source = (Kind.RECV, Kind.COPY_FROM)
    far_target = (Kind.SEND, Kind.COPY_TO)
    touched: Dict[int, None] = {}
    for step in steps:
        reads = step.src is Buffer.SCRATCH and step.kind not in far_source
        writes = step.dst is Buffer.SCRATCH and step.kind not in far_target
        if reads or writes:
            touched.update(dict.fromkeys(range(step.first, step.first + step.count)))
    return tuple(sorted(touched))


def finish(algorithm: str, size: int, layout: BlockLayout, steps: Sequence[Step]) -> Plan:
    """Make the plan of one channel from its layout and steps; SCRATCH is what the steps need."""
    return Plan(
        collective=layout.collective,
        algorithm=algorithm,
        rank=layout.rank,
        size=size,
        root=layout.root,
        chunks=layout.chunks,
        input=layout.input,
        output=layout.output,
        scratch=_own_scratch(steps),
        channels=(tuple(steps),),
        in_place=layout.in_place,
    )


def alone(collective: Collective, algorithm: str) -> Plan:
    """Return the plan of a job of one rank: the result is the input."""
    if collective is Collective.BARRIER:
        return finish(algorithm, 1, nothing(0), ())
    if collective is Collective.ALLTOALL:
        layout = pairs(0, 1)
    elif collective in SPLIT:
        layout = split(collective, 0, 0, 1)
    else:
        layout = blocks(collective, 0, 0, (0,))
    return finish(algorithm, 1, layout, (copy(0, 1, final=collective in REDUCING),))


def copy(first: int, count: int, *, final: bool = False) -> Step:
    """Move chunks of my INPUT to my OUTPUT; nothing to do where both are the same memory."""
    return Step(Kind.COPY, first=first, count=count, src=Buffer.INPUT, dst=Buffer.OUTPUT, final=final)


def others(size: int, rank: int) -> Tuple[int, ...]:
    """All other ranks, starting behind ``rank``: so that the ranks do not all begin with the same memory."""
    return (*range(rank + 1, size), *range(rank))


def notify(phase: int) -> Step:
    """Tell every rank that looks that I have reached ``phase``."""
    return Step(Kind.NOTIFY, phase=phase)


def wait_for(peers: Sequence[int], phase: int) -> Step:
    """Wait until all ``peers`` have reached ``phase``."""
    return Step(Kind.AWAIT, tuple(peers), phase=phase)
