"""Multi-ring: reduce-scatter along dimensions 1, 2, .., k, then all-gather k, .., 2, 1, many rings at once.

In dimension *d*, N/p_d rings run side by side, and the data of a rank shrinks by p_d. So a slow outer link carries
1/(inner size) of the buffer, in 2*sum(p_d - 1) messages instead of 2(N - 1). All dimensions that share memory are taken
as one; there, ranks read and write their peers' memory directly, between two meets. A chunk id is made of coordinates,
the innermost dimension most significant, so that after each dimension the chunks of a rank are a run of ids. Broadcast
and reduce cut the buffer into one slice for each rank of a host, and send each slice through a tree of chains along the
other dimensions.

Source: IBM PowerAI DDL (arXiv 1708.02188) and BlueConnect (MLSys 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, List, Tuple

from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import Planner, blocks, copy, finish, notify, split, wait_for
from ddl.plan.ring import Ring, all_gather, collect, hops, pass_on, pieces, reduce_scatter
from ddl.topology import Topology

__all__ = ["PLANNERS"]

_NAME = "multiring"
_INPUT, _OUTPUT, _SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


@dataclass(frozen=True)
class _Position:
    """A rank's peers in shared memory (there may be none), and its ring in every other dimension."""

    index: int  #: among the ranks that share memory
    peers: Tuple[int, ...]  #: the other ranks that share memory, ascending
    rings: Tuple[Ring, ...]  #: innermost first; dimensions of size 1 are left out


def _place(topology: Topology, rank: int) -> _Position:
    local = topology.local_group(rank)
    rings = tuple(
        Ring(topology.group(rank, d), coordinate)
        for d, (dimension, coordinate) in enumerate(zip(topology.dimensions, topology.coordinates(rank)))
        if not dimension.shared and dimension.size > 1
    )
    return _Position(local.index(rank), tuple(sorted(r for r in local if r != rank)), rings)


@lru_cache(maxsize=64)
def _chunk_ids(topology: Topology) -> Tuple[int, ...]:
    """Return the chunk ids of the blocks of ranks 0, 1, ..."""
    radices = [topology.local_size] + [d.size for d in topology.dimensions if not d.shared]
    ids = [0] * topology.size
    for position, rank in enumerate(topology.order):
        chunk, rest = 0, position
        for radix in radices:
            rest, coordinate = divmod(rest, radix)
            chunk = chunk * radix + coordinate
        ids[rank] = chunk
    return tuple(ids)


def _meets(place: _Position) -> Tuple[List[Step], List[Step]]:
    """Return the steps of the two meets with the ranks that share memory; no steps if there are none."""
    if not place.peers:
        return [], []
    return [notify(1), wait_for(place.peers, 1)], [notify(2), wait_for(place.peers, 2)]


def _reduce_inside(place: _Position, first: int, count: int, target: Buffer, final: bool) -> Step:
    return Step(Kind.REDUCE_FROM, place.peers, first, count, src=_INPUT, dst=target, final=final)


def _scatter_sums(place: _Position, size: int, partial: Buffer) -> Tuple[List[Step], int]:
    """Reduce-scatter along all dimensions, innermost first. Return the steps, and the id of my finished chunk.

    This chunk lies in OUTPUT. The first dimension reads INPUT; each later one reads ``partial``, where the one before
    wrote.
    """
    steps: List[Step] = []
    source, first, width = _INPUT, 0, size
    if place.peers:
        width //= len(place.peers) + 1
        first = place.index * width
        target = partial if place.rings else _OUTPUT
        steps.append(_reduce_inside(place, first, width, target, not place.rings))
        source = target
    for ring in place.rings:
        last = ring is place.rings[-1]
        steps += reduce_scatter(ring, first, width, source, partial, _OUTPUT if last else partial, last)
        source = partial
        width //= len(ring.ranks)
        first += ring.index * width
    return steps, first


def _gather_all(place: _Position, first: int, source: Buffer) -> List[Step]:
    """All-gather along all dimensions, outermost first, from chunk ``first``, which lies in ``source``."""
    steps: List[Step] = []
    width = 1
    for ring in reversed(place.rings):
        first -= ring.index * width
        width *= len(ring.ranks)
        steps += all_gather(ring, first, width, source)
        source = _OUTPUT
    if place.peers:
        steps.append(Step(Kind.COPY_TO, place.peers, first, width, src=source, dst=_OUTPUT))
    return steps


def _allreduce(topology: Topology, rank: int, root: int) -> Plan:
    place, size = _place(topology, rank), topology.size
    arrive, leave = _meets(place)
    sums, own = _scatter_sums(place, size, _OUTPUT)
    steps = [*arrive, *sums, *_gather_all(place, own, _OUTPUT), *leave]
    return finish(_NAME, size, split(Collective.ALLREDUCE, rank, root, size), steps)


def _reducescatter(topology: Topology, rank: int, root: int) -> Plan:
    place, size = _place(topology, rank), topology.size
    arrive, leave = _meets(place)
    sums, _ = _scatter_sums(place, size, _SCRATCH)
    if place.peers:
        # My first step reads the peers' INPUT. As soon as it is done, they may continue.
        steps = [*arrive, sums[0], leave[0], *sums[1:], leave[1]]
    else:
        steps = sums
    return finish(_NAME, size, blocks(Collective.REDUCESCATTER, rank, root, _chunk_ids(topology)), steps)


def _allgather(topology: Topology, rank: int, root: int) -> Plan:
    place, size, ids = _place(topology, rank), topology.size, _chunk_ids(topology)
    arrive, leave = _meets(place)
    # My own chunk must be in OUTPUT before a later dimension sends it as part of a run.
    steps = [copy(ids[rank], 1), *arrive, *_gather_all(place, ids[rank], _INPUT), *leave]
    return finish(_NAME, size, blocks(Collective.ALLGATHER, rank, root, ids), steps)


def _tree(topology: Topology, place: _Position, root: int) -> Tuple[List[int], int, range]:
    """Return the root's index in each of my rings, the number of chunks, and the ids of my slice."""
    coordinates = topology.coordinates(root)
    starts = [c for c, d in zip(coordinates, topology.dimensions) if not d.shared and d.size > 1]
    width = pieces(place.rings)
    return starts, width * topology.local_size, range(place.index * width, (place.index + 1) * width)


def _broadcast(topology: Topology, rank: int, root: int) -> Plan:
    """Each rank of the root's host sends its slice along the other dimensions; each receiver copies it to its peers."""
    place, size = _place(topology, rank), topology.size
    starts, chunks, own = _tree(topology, place, root)
    neighbours = hops(place.rings, starts)
    layout = split(Collective.BROADCAST, rank, root, chunks)
    if rank != root and root in place.peers:
        return finish(_NAME, size, layout, _pull(topology, place, root, own, neighbours.children))
    arrive, leave = _meets(place)
    source = _OUTPUT if neighbours.parent else _INPUT
    steps = arrive
    for chunk in own:
        steps += pass_on(neighbours, chunk)
        if place.peers:
            steps.append(Step(Kind.COPY_TO, place.peers, chunk, 1, src=source, dst=_OUTPUT))
    if rank == root:
        steps.append(copy(0, chunks))
    return finish(_NAME, size, layout, steps + leave)


def _pull(topology: Topology, place: _Position, root: int, own: range, children: Tuple[int, ...]) -> List[Step]:
    """Plan a broadcast for a rank that shares memory with the root.

    It reads its slice from the root and sends it on, then reads the other slices. The root writes its own slice to all.
    """
    width = len(own)
    steps = [notify(1), wait_for((root,), 1)]
    steps.append(Step(Kind.COPY_FROM, (root,), own.start, width, src=_INPUT, dst=_OUTPUT))
    steps += [Step(Kind.SEND, (child,), chunk, 1, src=_OUTPUT) for chunk in own for child in children]
    skip = {place.index, topology.local_group(root).index(root)}
    for index in range(topology.local_size):
        if index not in skip:
            steps.append(Step(Kind.COPY_FROM, (root,), index * width, width, src=_INPUT, dst=_OUTPUT))
    return [*steps, notify(2), wait_for((root,), 2)]


def _reduce(topology: Topology, rank: int, root: int) -> Plan:
    """Each rank reduces its slice inside its host, then along the other dimensions; the root gets its peers' slices."""
    place, size = _place(topology, rank), topology.size
    starts, chunks, own = _tree(topology, place, root)
    neighbours = hops(place.rings, starts)
    target = _OUTPUT if rank == root else _SCRATCH
    arrive, leave = _meets(place)
    steps = arrive
    for chunk in own:
        source = _INPUT
        if place.peers:
            steps.append(_reduce_inside(place, chunk, 1, target, not place.rings))
            source = target
        steps += collect(neighbours, chunk, source, target)
    if root in place.peers:
        steps.append(Step(Kind.COPY_TO, (root,), own.start, len(own), src=_SCRATCH, dst=_OUTPUT))
    return finish(_NAME, size, split(Collective.REDUCE, rank, root, chunks), steps + leave)


PLANNERS: Dict[Collective, Planner] = {
    Collective.ALLREDUCE: _allreduce,
    Collective.REDUCESCATTER: _reducescatter,
    Collective.ALLGATHER: _allgather,
    Collective.BROADCAST: _broadcast,
    Collective.REDUCE: _reduce,
}
