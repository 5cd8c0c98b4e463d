"""Eager: for ranks that all share memory, and for small data; the ranks meet once.

Each rank copies what others need of its INPUT to its SCRATCH and announces it (phase 1). Then each rank takes what it
needs from the others' SCRATCH. No rank touches a peer's INPUT or OUTPUT, so none has to wait at the end. All ranks that
need the same chunk reduce it themselves, in rank order, and so get the same bits. For data that is larger than the
cache, ``direct`` moves less.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import BlockLayout, Planner, blocks, copy, finish, nothing, notify, others, pairs, split, wait_for
from ddl.topology import Topology

__all__ = ["PLANNERS"]

_NAME = "eager"
_INPUT, _OUTPUT, _SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def _publish(first: int, count: int) -> List[Step]:
    """Copy chunks of my INPUT to my SCRATCH and announce them."""
    return [Step(Kind.COPY, first=first, count=count, src=_INPUT, dst=_SCRATCH), notify(1)]


def _take(peer: int, first: int, count: int = 1) -> Step:
    """Copy chunks that ``peer`` has published to my OUTPUT."""
    return Step(Kind.COPY_FROM, (peer,), first, count, src=_SCRATCH, dst=_OUTPUT)


def _reduce_published(peers: Tuple[int, ...], chunk: int) -> List[Step]:
    """Wait for all peers and reduce one published chunk into my OUTPUT."""
    reduce = Step(Kind.REDUCE_FROM, tuple(sorted(peers)), chunk, 1, src=_SCRATCH, dst=_OUTPUT, final=True)
    return [wait_for(peers, 1), reduce]


def _finish(size: int, layout: BlockLayout, steps: List[Step]) -> Plan:
    return finish(_NAME, size, layout, steps)


def _allreduce(topology: Topology, rank: int, root: int) -> Plan:
    peers = others(topology.size, rank)
    steps = _publish(0, 1) + _reduce_published(peers, 0)
    return _finish(topology.size, split(Collective.ALLREDUCE, rank, root, 1), steps)


def _reduce(topology: Topology, rank: int, root: int) -> Plan:
    """The root publishes nothing, because nobody reads from it."""
    steps = _publish(0, 1)
    if rank == root:
        steps = [steps[0], *_reduce_published(others(topology.size, rank), 0)]
    return _finish(topology.size, split(Collective.REDUCE, rank, root, 1), steps)


def _reducescatter(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    steps = _publish(0, size) + _reduce_published(others(size, rank), rank)
    return _finish(size, blocks(Collective.REDUCESCATTER, rank, root, range(size)), steps)


def _allgather(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    peers = others(size, rank)
    steps = [*_publish(rank, 1), copy(rank, 1), wait_for(peers, 1), *(_take(peer, peer) for peer in peers)]
    return _finish(size, blocks(Collective.ALLGATHER, rank, root, range(size)), steps)


def _broadcast(topology: Topology, rank: int, root: int) -> Plan:
    """The root does not wait for anybody."""
    steps = [*_publish(0, 1), copy(0, 1)] if rank == root else [wait_for((root,), 1), _take(root, 0)]
    return _finish(topology.size, split(Collective.BROADCAST, rank, root, 1), steps)


def _gather(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    peers = others(size, rank)
    if rank == root:
        steps = [copy(rank, 1), wait_for(peers, 1), *(_take(peer, peer) for peer in peers)]
    else:
        steps = _publish(rank, 1)
    return _finish(size, blocks(Collective.GATHER, rank, root, range(size)), steps)


def _scatter(topology: Topology, rank: int, root: int) -> Plan:
    """The root does not wait for anybody."""
    size = topology.size
    steps = [*_publish(0, size), copy(rank, 1)] if rank == root else [wait_for((root,), 1), _take(root, rank)]
    return _finish(size, blocks(Collective.SCATTER, rank, root, range(size)), steps)


def _alltoall(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    peers = others(size, rank)
    steps = [*_publish(rank * size, size), copy(rank * size + rank, 1), wait_for(peers, 1)]
    steps += [_take(peer, peer * size + rank) for peer in peers]
    return _finish(size, pairs(rank, size), steps)


def _barrier(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    return _finish(size, nothing(rank), [notify(1), wait_for(others(size, rank), 1)])


PLANNERS: Dict[Collective, Planner] = {
    Collective.ALLREDUCE: _allreduce,
    Collective.REDUCESCATTER: _reducescatter,
    Collective.ALLGATHER: _allgather,
    Collective.BROADCAST: _broadcast,
    Collective.ALLTOALL: _alltoall,
    Collective.REDUCE: _reduce,
    Collective.GATHER: _gather,
    Collective.SCATTER: _scatter,
    Collective.BARRIER: _barrier,
}
