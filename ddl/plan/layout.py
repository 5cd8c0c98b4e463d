"""Which chunks lie in which buffer, and the few functions that all planners share.

The collective (collectives.py) determines what a rank's INPUT and OUTPUT hold. An algorithm only chooses into how many
chunks a buffer is cut, or which chunk id each rank's block has. The functions here turn that choice into the ``input``
and ``output`` lists of a ``Plan``. The ``scratch`` list follows from the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Sequence, Tuple

from ddl.plan.collectives import TRAITS, CollectiveBuffer, Content, Holders
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

#: A planner takes the topology, a rank and the root, and returns the plan of that rank.
Planner = Callable[[Topology, int, int], Plan]

#: Collectives that combine values: a ``final`` step finishes each chunk of their result.
REDUCING = frozenset(collective for collective, traits in TRAITS.items() if traits.reduces)
#: Collectives on one buffer that is cut evenly; in the others, block *i* of a buffer belongs to rank *i*.
SPLIT = frozenset(collective for collective, traits in TRAITS.items() if traits.splits)
#: Collectives with a root.
ROOTED = frozenset(collective for collective, traits in TRAITS.items() if traits.rooted)


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
    """Lay out one of SPLIT: a buffer, the same on every rank that has it, cut into ``chunks``."""
    return blocks(collective, rank, root, range(chunks))


def blocks(collective: Collective, rank: int, root: int, ids: Sequence[int]) -> BlockLayout:
    """Lay out a collective other than ALLTOALL: the block of rank *b* is chunk ``ids[b]``."""
    traits = TRAITS[collective]

    def chunks_of(buffer: CollectiveBuffer) -> Tuple[int, ...]:
        if buffer.holders is Holders.NOBODY or (buffer.holders is Holders.ROOT and rank != root):
            return ()
        return (ids[rank],) if buffer.content is Content.BLOCK else tuple(ids)

    input, output = chunks_of(traits.input), chunks_of(traits.output)
    return BlockLayout(collective, rank, root, len(ids), input, output, traits.splits and bool(input and output))


def pairs(rank: int, size: int) -> BlockLayout:
    """Lay out ALLTOALL: chunk ``source * size + target`` goes from rank ``source`` to rank ``target``."""
    sent = tuple(range(rank * size, (rank + 1) * size))
    received = tuple(range(rank, size * size, size))
    return BlockLayout(Collective.ALLTOALL, rank, 0, size * size, sent, received)


def nothing(rank: int) -> BlockLayout:
    """Lay out BARRIER, which has no data."""
    return blocks(Collective.BARRIER, rank, 0, ())


def _own_scratch(steps: Sequence[Step]) -> Tuple[int, ...]:
    """Return the chunks that this rank's steps touch in its own SCRATCH; ascending, so that a run is contiguous."""
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
    """Make a plan of one channel from its layout and steps. SCRATCH holds the chunks that the steps use there."""
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
    """Return the plan of a job of one rank, where the result is the input."""
    if collective is Collective.BARRIER:
        return finish(algorithm, 1, nothing(0), ())
    if collective is Collective.ALLTOALL:
        layout = pairs(0, 1)
    else:
        layout = blocks(collective, 0, 0, (0,))
    return finish(algorithm, 1, layout, (copy(0, 1, final=collective in REDUCING),))


def copy(first: int, count: int, *, final: bool = False) -> Step:
    """Return a copy of chunks of my INPUT to my OUTPUT. It does nothing where both are the same memory."""
    return Step(Kind.COPY, first=first, count=count, src=Buffer.INPUT, dst=Buffer.OUTPUT, final=final)


def others(size: int, rank: int) -> Tuple[int, ...]:
    """Return all other ranks, beginning after ``rank``, so that not all ranks read the same memory first."""
    return (*range(rank + 1, size), *range(rank))


def notify(phase: int) -> Step:
    """Return the step that announces that I have reached ``phase``."""
    return Step(Kind.NOTIFY, phase=phase)


def wait_for(peers: Sequence[int], phase: int) -> Step:
    """Return the step that waits until all ``peers`` have reached ``phase``."""
    return Step(Kind.AWAIT, tuple(peers), phase=phase)
