"""Tree: a binomial tree of log2(p) levels, for small buffers and for collectives with a root.

Ranks are numbered by their *distance* from the root: position minus the root's position, modulo the size. The children
of distance *d* are *d + 1, d + 2, d + 4, ...* as long as the step is smaller than the lowest set bit of *d*. The
subtree of *d* is a contiguous run of distances, so that gather and scatter move runs of chunks. Inner ranks that have
no buffer for others' data use SCRATCH.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Tuple

from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import Planner, blocks, copy, finish, nothing, split
from ddl.topology import Topology

__all__ = ["PLANNERS"]

_NAME = "tree"
_INPUT, _OUTPUT, _SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


@dataclass(frozen=True)
class _Node:
    """One rank's place in the tree: its parent, its children, and how many distances each subtree spans."""

    distance: int
    span: int
    parent: Tuple[int, ...]
    #: (rank, distance, span), the smallest subtree first: its data arrives first, and it is sent its data last.
    children: Tuple[Tuple[int, int, int], ...]


def _node(topology: Topology, rank: int, root: int) -> _Node:
    size, order, start = topology.size, topology.order, topology.position(root)
    distance = (topology.position(rank) - start) % size
    lowest = distance & -distance or size
    parent = (order[(start + distance - lowest) % size],) if distance else ()
    children = []
    step = 1
    while step < lowest and distance + step < size:
        child = distance + step
        children.append((order[(start + child) % size], child, min(step, size - child)))
        step *= 2
    return _Node(distance, min(lowest, size - distance), parent, tuple(children))


def _distances(topology: Topology, root: int) -> List[int]:
    """Return the chunk ids of the blocks of ranks 0, 1, ...: a chunk's id is the distance of its rank."""
    start = topology.position(root)
    return [(topology.position(rank) - start) % topology.size for rank in range(topology.size)]


def _up(node: _Node, target: Buffer, final: bool) -> List[Step]:
    """Reduce chunk 0 towards the root. A rank with children adds up in ``target``."""
    steps = []
    source = _INPUT
    for child, _, _ in node.children:
        last = final and child == node.children[-1][0]
        steps.append(Step(Kind.RECV_REDUCE, (child,), 0, 1, src=source, dst=target, final=last))
        source = target
    if node.parent:
        steps.append(Step(Kind.SEND, node.parent, 0, 1, src=source))
    return steps


def _down(node: _Node, source: Buffer) -> List[Step]:
    """Broadcast chunk 0 from the root, which has it in ``source``; the largest subtree is sent it first."""
    arrive = [Step(Kind.RECV, node.parent, 0, 1, dst=_OUTPUT)] if node.parent else []
    return arrive + [Step(Kind.SEND, (child,), 0, 1, src=source) for child, _, _ in reversed(node.children)]


def _broadcast(topology: Topology, rank: int, root: int) -> Plan:
    node = _node(topology, rank, root)
    steps = _down(node, _OUTPUT if node.parent else _INPUT)
    if rank == root:
        steps.append(copy(0, 1))
    return finish(_NAME, topology.size, split(Collective.BROADCAST, rank, root, 1), steps)


def _reduce(topology: Topology, rank: int, root: int) -> Plan:
    steps = _up(_node(topology, rank, root), _OUTPUT if rank == root else _SCRATCH, rank == root)
    return finish(_NAME, topology.size, split(Collective.REDUCE, rank, root, 1), steps)


def _allreduce(topology: Topology, rank: int, root: int) -> Plan:
    """Reduce to the rank at position 0, and broadcast from there."""
    top = topology.order[0]
    node = _node(topology, rank, top)
    steps = _up(node, _OUTPUT, rank == top) + _down(node, _OUTPUT)
    return finish(_NAME, topology.size, split(Collective.ALLREDUCE, rank, root, 1), steps)


def _gather(topology: Topology, rank: int, root: int) -> Plan:
    node = _node(topology, rank, root)
    target = _SCRATCH if node.parent else _OUTPUT
    steps = []
    if node.children or not node.parent:
        steps.append(Step(Kind.COPY, first=node.distance, count=1, src=_INPUT, dst=target))
    steps += [Step(Kind.RECV, (child,), first, span, dst=target) for child, first, span in node.children]
    if node.parent:
        source = _SCRATCH if node.children else _INPUT
        steps.append(Step(Kind.SEND, node.parent, node.distance, node.span, src=source))
    layout = blocks(Collective.GATHER, rank, root, _distances(topology, root))
    return finish(_NAME, topology.size, layout, steps)


def _scatter(topology: Topology, rank: int, root: int) -> Plan:
    node = _node(topology, rank, root)
    source = _SCRATCH if node.parent else _INPUT
    steps = []
    if node.parent:
        target = _SCRATCH if node.children else _OUTPUT
        steps.append(Step(Kind.RECV, node.parent, node.distance, node.span, dst=target))
    steps += [Step(Kind.SEND, (child,), first, span, src=source) for child, first, span in reversed(node.children)]
    if node.children or not node.parent:
        steps.append(Step(Kind.COPY, first=node.distance, count=1, src=source, dst=_OUTPUT))
    layout = blocks(Collective.SCATTER, rank, root, _distances(topology, root))
    return finish(_NAME, topology.size, layout, steps)


def _barrier(topology: Topology, rank: int, root: int) -> Plan:
    """Send empty messages up to the rank at position 0, and down again."""
    node = _node(topology, rank, topology.order[0])
    steps = [Step(Kind.RECV, (child,)) for child, _, _ in node.children]
    if node.parent:
        steps += [Step(Kind.SEND, node.parent), Step(Kind.RECV, node.parent)]
    steps += [Step(Kind.SEND, (child,)) for child, _, _ in reversed(node.children)]
    return finish(_NAME, topology.size, nothing(rank), steps)


PLANNERS: Dict[Collective, Planner] = {
    Collective.ALLREDUCE: _allreduce,
    Collective.BROADCAST: _broadcast,
    Collective.REDUCE: _reduce,
    Collective.GATHER: _gather,
    Collective.SCATTER: _scatter,
    Collective.BARRIER: _barrier,
}
