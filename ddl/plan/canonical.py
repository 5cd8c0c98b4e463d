"""Canonical: the same bits on every machine. Sums go up the canonical tree; all-reduce then goes down again.

Every addition has two operands and is stored in the data's type, so that it rounds at the same place on every machine;
the last addition also divides for an average. The way up is recursive halving with distances 1, 2, 4, …: each rank
holds an even share of the sum of its part of the tree. The way down moves the finished chunks back along the same
edges. For powers of two this moves 2(p-1)/p of the bytes, the least possible, in 2 log2(p) rounds; for other numbers of
ranks, a little more.

The largest part around a rank whose ranks all share memory is its *block*. Inside a block, a rank reads sums directly
from its peers' memory and writes the result to all of them; phase *k* + 1 says that *k* merges are done. All other
edges are messages. ``canonical_small``, for little data, uses a single chunk: fewer and larger messages.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import DefaultDict, Dict, Iterable, List, Tuple

from ddl.plan.canonical_tree import Merge, Shares, depth, even_shares, merges, shares_of_one
from ddl.plan.doubling import doubling_steps
from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import Planner, blocks, finish, notify, others, split, wait_for
from ddl.topology import Topology

__all__ = ["PLANNERS", "SMALL_PLANNERS"]

_NAME, _SMALL = "canonical", "canonical_small"
_INPUT, _OUTPUT, _SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


@dataclass(frozen=True)
class _MergePath:
    """A rank's path from its leaf to the root; the first ``inside`` of its merges are in its block."""

    rank: int
    chunks: int
    merges: Tuple[Merge, ...]
    inside: int

    @property
    def block(self) -> Merge:
        """The last merge inside the block, which has two ranks or more."""
        return self.merges[self.inside - 1]


def _place(topology: Topology, rank: int, shares: Shares) -> _MergePath:
    path = tuple(merges(shares, rank))
    near = set(topology.local_group(rank))
    inside = sum(near.issuperset(range(merge.first, merge.end)) for merge in path)
    return _MergePath(rank, max(run.stop for run in shares.values()), path, inside)


def _waits(phases: Iterable[Tuple[int, int]]) -> List[Step]:
    """Return the steps that wait for ranks, given as (rank, phase)."""
    ranks_of: DefaultDict[int, List[int]] = defaultdict(list)
    for rank, phase in phases:
        ranks_of[phase].append(rank)
    return [wait_for(ranks, phase) for phase, ranks in sorted(ranks_of.items())]


def _last_phase(place: _MergePath, down: bool) -> int:
    """Return the last phase of this rank that others of its block wait for; ``down``: it writes results to them."""
    if down and place.inside and place.block.merged[place.rank]:
        return place.inside + 1
    phases = [number + 1 for number, merge in enumerate(place.merges[: place.inside]) if merge.gives(place.rank)]
    if place.inside and len(place.merges[0].theirs) == 1 and place.merges[0].takes(place.rank):
        phases.append(2)  # I have read its INPUT
    return max(phases, default=0)


def _sum_up(place: _MergePath, last_phase: int) -> List[Step]:
    """Add up along the tree, through SCRATCH into OUTPUT."""
    steps: List[Step] = []
    source = _INPUT
    for number, merge in enumerate(place.merges):
        last = number == len(place.merges) - 1
        target = _OUTPUT if last else _SCRATCH
        takes = merge.takes(place.rank)
        if number < place.inside:
            if number == 0 and len(merge.theirs) > 1:
                # The peers have their sums in SCRATCH, and a reduction reads the same buffer on all ranks.
                steps.append(Step(Kind.COPY, first=0, count=place.chunks, src=_INPUT, dst=_SCRATCH))
                source = _SCRATCH
            if number < last_phase:
                steps.append(notify(number + 1))
            steps += _waits((peer, 1 + depth(peer, min(merge.theirs), max(merge.theirs) + 1)) for peer, _ in takes)
            kind = Kind.REDUCE_FROM
        else:
            for peer, run in merge.gives(place.rank):
                steps.append(Step(Kind.SEND, (peer,), run.start, len(run), src=source))
            kind = Kind.RECV_REDUCE
        for peer, run in takes:
            steps.append(Step(kind, (peer,), run.start, len(run), src=source, dst=target, final=last))
        source = _SCRATCH
    return steps


def _hand_down(place: _MergePath) -> List[Step]:
    """Bring the finished chunks, which lie in OUTPUT, to the OUTPUT of all ranks."""
    steps: List[Step] = []
    for merge in reversed(place.merges[place.inside :]):
        for peer, run in merge.takes(place.rank):
            steps.append(Step(Kind.SEND, (peer,), run.start, len(run), src=_OUTPUT))
        for peer, run in merge.gives(place.rank):
            steps.append(Step(Kind.RECV, (peer,), run.start, len(run), dst=_OUTPUT))
    if not place.inside:
        return steps
    block = place.block
    peers = tuple(block.first + i for i in others(block.end - block.first, place.rank - block.first))
    run = block.merged[place.rank]
    if run:
        steps.append(Step(Kind.COPY_TO, peers, run.start, len(run), src=_OUTPUT, dst=_OUTPUT))
        steps.append(notify(place.inside + 1))
    # A chunk is finished only after the INPUT of all ranks of the block was read. So when I have waited for all
    # writers, nobody reads my INPUT any more.
    writers = [peer for peer in sorted(peers) if block.merged[peer]]
    return steps + _waits((peer, 1 + depth(peer, block.first, block.end)) for peer in writers)


def _up_only(place: _MergePath) -> List[Step]:
    """Add up, and end only when nobody reads my INPUT any more."""
    last_phase = _last_phase(place, down=False)
    steps = _sum_up(place, last_phase)
    first = place.merges[0]
    if place.inside and len(first.theirs) == 1:
        if last_phase > place.inside:  # else it was announced before a merge
            steps.append(notify(last_phase))
        steps += [wait_for((reader,), 2) for reader, _ in first.gives(place.rank)]
    return steps


def _up_and_down(place: _MergePath) -> List[Step]:
    return _sum_up(place, _last_phase(place, down=True)) + _hand_down(place)


def _allreduce(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    steps = _up_and_down(_place(topology, rank, even_shares(size)))
    return finish(_NAME, size, split(Collective.ALLREDUCE, rank, root, size), steps)


def _reducescatter(topology: Topology, rank: int, root: int) -> Plan:
    size, shares = topology.size, even_shares(topology.size)
    layout = blocks(Collective.REDUCESCATTER, rank, root, [shares[r].start for r in range(size)])
    return finish(_NAME, size, layout, _up_only(_place(topology, rank, shares)))


def _reduce(topology: Topology, rank: int, root: int) -> Plan:
    steps = _up_only(_place(topology, rank, shares_of_one(topology.size, root)))
    return finish(_NAME, topology.size, split(Collective.REDUCE, rank, root, 1), steps)


def _small_allreduce(topology: Topology, rank: int, root: int) -> Plan:
    size = topology.size
    if topology.local_size == 1 and size & (size - 1) == 0:
        # Recursive doubling over rank numbers adds along the canonical tree, and needs no way down.
        steps = doubling_steps(range(size), rank)
    else:
        steps = _up_and_down(_place(topology, rank, shares_of_one(size, 0)))
    return finish(_SMALL, size, split(Collective.ALLREDUCE, rank, root, 1), steps)


PLANNERS: Dict[Collective, Planner] = {
    Collective.ALLREDUCE: _allreduce,
    Collective.REDUCESCATTER: _reducescatter,
    Collective.REDUCE: _reduce,
}
SMALL_PLANNERS: Dict[Collective, Planner] = {Collective.ALLREDUCE: _small_allreduce}
