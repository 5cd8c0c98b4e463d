"""Ring: every rank sends to its right neighbour and receives from its left one; chain: a ring cut at the root.

A *ring* is a tuple of ranks in ring order; a rank's *index* is its place in it. The functions without underscore
plan one ring on one slice of the chunks, a run of ids; ``multiring`` combines them over several dimensions. The
planners at the end take all ranks as one ring, in order of position. An all-reduce moves 2(p-1)/p of the bytes, the
least possible, in 2(p-1) steps, so it suits large buffers. No part is overwritten while it is being sent: it returns
to a rank only after it has been at all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import Planner, blocks, copy, finish, pairs, split
from ddl.topology import Topology

__all__ = ["PLANNERS", "Hops", "Ring", "all_gather", "collect", "hops", "pass_on", "pieces", "reduce_scatter"]

_NAME = "ring"
_INPUT, _OUTPUT, _SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


@dataclass(frozen=True)
class Ring:
    """The ranks of one ring and this rank's index in it."""

    ranks: Tuple[int, ...]
    index: int

    def neighbour(self, distance: int) -> int:
        """Return the rank ``distance`` places to the right."""
        return self.ranks[(self.index + distance) % len(self.ranks)]


def reduce_scatter(
    ring: Ring, first: int, width: int, source: Buffer, partial: Buffer, result: Buffer, final: bool
) -> List[Step]:
    """Reduce the slice ``[first, first + width)``; this rank gets the part with its index.

    The slice is cut into one part per rank. My own contribution is read from ``source``, partial sums lie in
    ``partial``, the finished part in ``result``.
    """
    size = len(ring.ranks)
    part = width // size
    right, left = ring.neighbour(1), ring.neighbour(-1)
    steps = []
    for hop in range(size - 1):
        leaving = first + (ring.index - 1 - hop) % size * part
        coming = first + (ring.index - 2 - hop) % size * part
        last = hop == size - 2
        steps.append(Step(Kind.SEND, (right,), leaving, part, src=source if hop == 0 else partial))
        target = result if last else partial
        steps.append(Step(Kind.RECV_REDUCE, (left,), coming, part, src=source, dst=target, final=final and last))
    return steps


def all_gather(ring: Ring, first: int, width: int, source: Buffer) -> List[Step]:
    """Gather the slice ``[first, first + width)`` into OUTPUT on every rank; ``source`` has this rank's part."""
    size = len(ring.ranks)
    part = width // size
    right, left = ring.neighbour(1), ring.neighbour(-1)
    steps = []
    for hop in range(size - 1):
        leaving = first + (ring.index - hop) % size * part
        coming = first + (ring.index - 1 - hop) % size * part
        steps.append(Step(Kind.SEND, (right,), leaving, part, src=source if hop == 0 else _OUTPUT))
        steps.append(Step(Kind.RECV, (left,), coming, part, dst=_OUTPUT))
    return steps


@dataclass(frozen=True)
class Hops:
    """A rank's neighbours in a tree of chains: the one towards the root (none at the root), and those away from it."""

    parent: Tuple[int, ...]
    children: Tuple[int, ...]


def hops(rings: Sequence[Ring], starts: Sequence[int]) -> Hops:
    """Return this rank's place in the tree of chains that leave the root along ``rings``, outermost ring first.

    ``starts`` are the root's indices. The outermost chain starts at the root; every rank on it starts the chains of
    the next ring inwards, and so on. Every link is used once, so a slow outer link carries the data only once.
    """
    passed = [(ring.index - start) % len(ring.ranks) for ring, start in zip(rings, starts)]
    on = next((d for d, distance in enumerate(passed) if distance), None)
    parent = () if on is None else (rings[on].neighbour(-1),)
    innermost_first = range(len(rings) if on is None else on + 1)
    children = [rings[d].neighbour(1) for d in reversed(innermost_first) if passed[d] + 1 < len(rings[d].ranks)]
    return Hops(parent, tuple(children))


def pieces(rings: Sequence[Ring]) -> int:
    """Return into how many chunks to cut a buffer that goes through a tree of chains.

    A chain of *h* hops passes *c* pieces in *h + c - 1* rounds, each of *1/c* of the time of a hop. With twice as many
    pieces as hops this takes about 1.5 times as long as one hop. With a single hop, nothing can overlap.
    """
    depth = sum(len(ring.ranks) - 1 for ring in rings)
    return 2 * depth if depth > 1 else 1


def pass_on(neighbours: Hops, chunk: int) -> List[Step]:
    """Broadcast one chunk through a tree of chains: from the root's INPUT into the OUTPUT of all other ranks."""
    arrive = [Step(Kind.RECV, neighbours.parent, chunk, 1, dst=_OUTPUT)] if neighbours.parent else []
    source = _OUTPUT if neighbours.parent else _INPUT
    return arrive + [Step(Kind.SEND, (child,), chunk, 1, src=source) for child in neighbours.children]


def collect(neighbours: Hops, chunk: int, source: Buffer, target: Buffer) -> List[Step]:
    """Reduce one chunk through a tree of chains, towards the root.

    My own contribution is in ``source``. Partial sums, and at the root the result, lie in ``target``.
    """
    final = not neighbours.parent
    steps = []
    for child in neighbours.children:
        last = final and child == neighbours.children[-1]
        steps.append(Step(Kind.RECV_REDUCE, (child,), chunk, 1, src=source, dst=target, final=last))
        source = target
    if neighbours.parent:
        steps.append(Step(Kind.SEND, neighbours.parent, chunk, 1, src=source))
    return steps


def _whole(topology: Topology, rank: int) -> Ring:
    return Ring(topology.order, topology.position(rank))


def _positions(topology: Topology) -> List[int]:
    """Return the chunk ids of the blocks of ranks 0, 1, ...: a chunk's id is the position of its rank."""
    return [topology.position(rank) for rank in range(topology.size)]


def _allreduce(topology: Topology, rank: int, root: int) -> Plan:
    ring, size = _whole(topology, rank), topology.size
    steps = reduce_scatter(ring, 0, size, _INPUT, _OUTPUT, _OUTPUT, True) + all_gather(ring, 0, size, _OUTPUT)
    return finish(_NAME, size, split(Collective.ALLREDUCE, rank, root, size), steps)


def _reducescatter(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    steps = reduce_scatter(_whole(topology, rank), 0, size, _INPUT, _SCRATCH, _OUTPUT, True)
    return finish(_NAME, size, blocks(Collective.REDUCESCATTER, rank, root, _positions(topology)), steps)


def _allgather(topology: Topology, rank: int, root: int) -> Plan:
    ring, size = _whole(topology, rank), topology.size
    steps = [*all_gather(ring, 0, size, _INPUT), copy(ring.index, 1)]
    return finish(_NAME, size, blocks(Collective.ALLGATHER, rank, root, _positions(topology)), steps)


def _broadcast(topology: Topology, rank: int, root: int) -> Plan:
    ring, size = _whole(topology, rank), topology.size
    neighbours, chunks = hops([ring], [topology.position(root)]), pieces([ring])
    steps = [step for chunk in range(chunks) for step in pass_on(neighbours, chunk)]
    if rank == root:
        steps.append(copy(0, chunks))
    return finish(_NAME, size, split(Collective.BROADCAST, rank, root, chunks), steps)


def _reduce(topology: Topology, rank: int, root: int) -> Plan:
    ring, size = _whole(topology, rank), topology.size
    neighbours, chunks = hops([ring], [topology.position(root)]), pieces([ring])
    target = _OUTPUT if rank == root else _SCRATCH
    steps = [step for chunk in range(chunks) for step in collect(neighbours, chunk, _INPUT, target)]
    return finish(_NAME, size, split(Collective.REDUCE, rank, root, chunks), steps)


def _alltoall(topology: Topology, rank: int, root: int) -> Plan:
    """In step *i* each rank sends to the rank *i* places to the right, so no receiver has two senders at once."""
    ring, size = _whole(topology, rank), topology.size
    steps = [copy(rank * size + rank, 1)]
    for distance in range(1, size):
        to, source = ring.neighbour(distance), ring.neighbour(-distance)
        steps.append(Step(Kind.SEND, (to,), rank * size + to, 1, src=_INPUT))
        steps.append(Step(Kind.RECV, (source,), source * size + rank, 1, dst=_OUTPUT))
    return finish(_NAME, size, pairs(rank, size), steps)


PLANNERS: Dict[Collective, Planner] = {
    Collective.ALLREDUCE: _allreduce,
    Collective.REDUCESCATTER: _reducescatter,
    Collective.ALLGATHER: _allgather,
    Collective.BROADCAST: _broadcast,
    Collective.ALLTOALL: _alltoall,
    Collective.REDUCE: _reduce,
}
