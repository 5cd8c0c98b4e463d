"""Direct: ranks that all share memory read and write one another's buffers, without copies in between.

The ranks meet twice: phase 1 says "my buffers are there", phase 2 "I no longer touch yours". Between the two, every
rank moves about the same amount: rank *r* works on chunk *r*, which it reads directly from every peer's INPUT and
stores directly into every peer's OUTPUT. For large buffers; ``eager`` is for small ones.

If some ranks are always late (``Topology.late``), the others do their work in an all-reduce: they add up their own data
while they wait, and add that of the late ranks when these come. Then less is left to do. Source of the idea: StragglAR
(arXiv 2505.23523), for GPUs and messages.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import Planner, blocks, copy, finish, nothing, notify, others, pairs, split, wait_for
from ddl.topology import Topology

__all__ = ["PLANNERS"]

_NAME = "direct"
_INPUT, _OUTPUT, _SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def _meet_twice(peers: Tuple[int, ...], work: List[Step], *alone: Step) -> List[Step]:
    """Put ``work`` between the two meets of all ranks. ``alone`` touches no peer: it is done while their words come."""
    return [notify(1), *alone, wait_for(peers, 1), *work, notify(2), wait_for(peers, 2)]


def _allreduce(topology: Topology, rank: int, root: int) -> Plan:
    if topology.late:
        return _allreduce_without_late(topology, rank)
    size = topology.size
    peers = others(size, rank)
    work = [
        Step(Kind.REDUCE_FROM, tuple(sorted(peers)), rank, 1, src=_INPUT, dst=_OUTPUT, final=True),
        Step(Kind.COPY_TO, peers, rank, 1, src=_OUTPUT, dst=_OUTPUT),
    ]
    return finish(_NAME, size, split(Collective.ALLREDUCE, rank, root, size), _meet_twice(peers, work))


def _allreduce_without_late(topology: Topology, rank: int) -> Plan:
    """Only ranks in time work: each on one of as many chunks. A late rank touches nobody's memory."""
    size, late = topology.size, topology.late
    in_time = [other for other in range(size) if other not in late]
    layout = split(Collective.ALLREDUCE, rank, 0, len(in_time))
    peers = tuple(other for other in others(size, rank) if other not in late)
    steps = [notify(1)]
    if rank not in late:
        chunk = in_time.index(rank)
        if peers:
            steps.append(wait_for(peers, 1))
            steps.append(Step(Kind.REDUCE_FROM, tuple(sorted(peers)), chunk, 1, src=_INPUT, dst=_OUTPUT))
        steps.append(wait_for(late, 1))
        onto = bool(peers)
        steps.append(Step(Kind.REDUCE_FROM, late, chunk, 1, src=_INPUT, dst=_OUTPUT, final=True, onto=onto))
        steps.append(Step(Kind.COPY_TO, others(size, rank), chunk, 1, src=_OUTPUT, dst=_OUTPUT))
        steps.append(notify(2))
    if peers:
        steps.append(wait_for(peers, 2))
    return finish(_NAME, size, layout, steps)


def _reducescatter(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    peers = others(size, rank)
    work = [Step(Kind.REDUCE_FROM, tuple(sorted(peers)), rank, 1, src=_INPUT, dst=_OUTPUT, final=True)]
    layout = blocks(Collective.REDUCESCATTER, rank, root, range(size))
    return finish(_NAME, size, layout, _meet_twice(peers, work))


def _allgather(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    peers = others(size, rank)
    # Each rank reads from its peers instead of writing to them, so an OUTPUT in private memory needs no copy.
    work = [Step(Kind.COPY_FROM, (peer,), peer, 1, src=_INPUT, dst=_OUTPUT) for peer in peers]
    layout = blocks(Collective.ALLGATHER, rank, root, range(size))
    return finish(_NAME, size, layout, _meet_twice(peers, work, copy(rank, 1)))


def _broadcast(topology: Topology, rank: int, root: int) -> Plan:
    """The root writes chunk 0 to the others, and they read the rest: each rank moves (p-1)/p of the buffer."""
    size = topology.size
    peers = others(size, rank)
    if rank == root:
        work = [Step(Kind.COPY_TO, peers, 0, 1, src=_INPUT, dst=_OUTPUT)]
        steps = _meet_twice(peers, work, copy(0, size))
    else:
        work = [Step(Kind.COPY_FROM, (root,), 1, size - 1, src=_INPUT, dst=_OUTPUT)]
        steps = _meet_twice((root,), work)
    return finish(_NAME, size, split(Collective.BROADCAST, rank, root, size), steps)


def _reduce(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    peers = others(size, rank)
    target = _OUTPUT if rank == root else _SCRATCH
    work = [Step(Kind.REDUCE_FROM, tuple(sorted(peers)), rank, 1, src=_INPUT, dst=target, final=True)]
    if rank != root:
        work.append(Step(Kind.COPY_TO, (root,), rank, 1, src=_SCRATCH, dst=_OUTPUT))
    return finish(_NAME, size, split(Collective.REDUCE, rank, root, size), _meet_twice(peers, work))


def _gather(topology: Topology, rank: int, root: int) -> Plan:
    """Each rank writes its block to the root. Only the root's buffer is touched, so only the root announces it."""
    size = topology.size
    if rank == root:
        steps = [notify(1), copy(rank, 1), wait_for(others(size, rank), 1)]
    else:
        steps = [wait_for((root,), 1), Step(Kind.COPY_TO, (root,), rank, 1, src=_INPUT, dst=_OUTPUT), notify(1)]
    return finish(_NAME, size, blocks(Collective.GATHER, rank, root, range(size)), steps)


def _scatter(topology: Topology, rank: int, root: int) -> Plan:
    """Each rank reads its block from the root."""
    size = topology.size
    if rank == root:
        steps = [notify(1), copy(rank, 1), wait_for(others(size, rank), 1)]
    else:
        steps = [wait_for((root,), 1), Step(Kind.COPY_FROM, (root,), rank, 1, src=_INPUT, dst=_OUTPUT), notify(1)]
    return finish(_NAME, size, blocks(Collective.SCATTER, rank, root, range(size)), steps)


def _alltoall(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    peers = others(size, rank)
    work = [Step(Kind.COPY_FROM, (peer,), peer * size + rank, 1, src=_INPUT, dst=_OUTPUT) for peer in peers]
    return finish(_NAME, size, pairs(rank, size), _meet_twice(peers, work, copy(rank * size + rank, 1)))


def _barrier(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    return finish(_NAME, size, nothing(rank), [notify(1), wait_for(others(size, rank), 1)])


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
