"""Recursive doubling and halving: log2(p) rounds between ever more distant partners, for small buffers.

Ranks are numbered by position. All-reduce exchanges the whole buffer with ``position ^ 1, ^ 2, ^ 4, ...``;
reduce-scatter exchanges halves, quarters, ...; all-gather and barrier are *disseminations*: their distances double,
and the number of ranks need not be a power of two. Where it must be one, the ranks beyond the largest power of two
first *fold* their data into a partner, which does the work for both and sends the result back.

All ranks compute the same tree of sums, and addition is commutative, so all ranks get the same bits.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import Planner, blocks, copy, finish, nothing, split
from ddl.topology import Topology

__all__ = ["PLANNERS", "doubling_steps"]

_NAME = "recursive_doubling"
_INPUT, _OUTPUT, _SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def _rounds_within(size: int) -> int:
    """Return the number of rounds among the largest power of two of ranks that is not above ``size``."""
    return size.bit_length() - 1


def _exchange_whole(partners: List[int], source: Buffer) -> List[Step]:
    """All-reduce the whole buffer with each partner in turn, from ``source`` into OUTPUT.

    A round must not write to the buffer that it sends from, so the sums alternate between SCRATCH and OUTPUT. A round
    writes to the buffer that the round before sent from, so it first waits until that send is complete.
    """
    steps: List[Step] = []
    for number, partner in enumerate(partners):
        remaining = len(partners) - 1 - number
        target = _SCRATCH if remaining % 2 else _OUTPUT
        steps.append(Step(Kind.SEND, (partner,), 0, 1, src=source, after_sends=number > 0))
        steps.append(Step(Kind.RECV_REDUCE, (partner,), 0, 1, src=source, dst=target, final=remaining == 0))
        source = target
    return steps


def doubling_steps(
    ranks: Sequence[int], index: int, prepare: Optional[Callable[[Buffer], List[Step]]] = None
) -> List[Step]:
    """Return the steps by which rank ``ranks[index]`` all-reduces chunk 0 with the others of ``ranks``, into OUTPUT.

    Its contribution lies in INPUT. With ``prepare``, the steps that ``prepare(buffer)`` returns produce it in
    ``buffer``, OUTPUT or SCRATCH.
    """
    rounds = _rounds_within(len(ranks))
    power = 1 << rounds
    if index >= power:
        partner = (ranks[index - power],)
        steps = prepare(_SCRATCH) if prepare else []
        source = _SCRATCH if prepare else _INPUT
        return [*steps, Step(Kind.SEND, partner, 0, 1, src=source), Step(Kind.RECV, partner, 0, 1, dst=_OUTPUT)]
    # The first round must not write to the buffer that it sends from. With an odd number of rounds it writes to
    # OUTPUT, which may be the same memory as INPUT, so then the data starts in SCRATCH.
    start = _SCRATCH if rounds % 2 else _OUTPUT
    steps = prepare(start) if prepare else []
    source = start if prepare else _INPUT
    extra = (ranks[index + power],) if index + power < len(ranks) else ()
    if extra:
        steps.append(Step(Kind.RECV_REDUCE, extra, 0, 1, src=source, dst=start))
        source = start
    elif source is _INPUT and start is _SCRATCH:
        steps.append(Step(Kind.COPY, first=0, count=1, src=_INPUT, dst=_SCRATCH))
        source = _SCRATCH
    steps += _exchange_whole([ranks[index ^ (1 << k)] for k in range(rounds)], source)
    if extra:
        steps.append(Step(Kind.SEND, extra, 0, 1, src=_OUTPUT))
    return steps


def _allreduce(topology: Topology, rank: int, root: int) -> Plan:
    steps = doubling_steps(topology.order, topology.position(rank))
    return finish(_NAME, topology.size, split(Collective.ALLREDUCE, rank, root, 1), steps)


def _fold_ids(size: int) -> List[int]:
    """Return the chunk id of each position's block. The blocks of a rank and of its folded partner are adjacent."""
    power = 1 << _rounds_within(size)
    extra = size - power
    return [2 * p if p < extra else p + extra if p < power else 2 * (p - power) + 1 for p in range(size)]


def _reducescatter(topology: Topology, rank: int, root: int) -> Plan:
    size, order, position = topology.size, topology.order, topology.position(rank)
    power = 1 << _rounds_within(size)
    extra = size - power
    ids = _fold_ids(size)
    layout = blocks(Collective.REDUCESCATTER, rank, root, [ids[topology.position(r)] for r in range(size)])
    own = ids[position]
    if position >= power:
        partner = order[position - power]
        steps = [Step(Kind.SEND, (partner,), 0, size, src=_INPUT), Step(Kind.RECV, (partner,), own, 1, dst=_OUTPUT)]
        return finish(_NAME, size, layout, steps)
    folded = position < extra
    steps = []
    source = _INPUT
    if folded:
        steps.append(Step(Kind.RECV_REDUCE, (order[position + power],), 0, size, src=_INPUT, dst=_SCRATCH))
        source = _SCRATCH
    half = power // 2
    while half:
        # My partner and I share a block of 2 * half positions. Each of us keeps the half that contains its position.
        own_half, theirs = position // half * half, (position ^ half) // half * half
        last = half == 1
        target = _OUTPUT if last and not folded else _SCRATCH
        partner = order[position ^ half]
        steps.append(Step(Kind.SEND, (partner,), *_folded_run(theirs, half, extra), src=source))
        run = _folded_run(own_half, half, extra)
        steps.append(Step(Kind.RECV_REDUCE, (partner,), *run, src=source, dst=target, final=last))
        source = _SCRATCH
        half //= 2
    if folded:
        steps.append(Step(Kind.SEND, (order[position + power],), own + 1, 1, src=_SCRATCH))
        steps.append(Step(Kind.COPY, first=own, count=1, src=_SCRATCH, dst=_OUTPUT))
    return finish(_NAME, size, layout, steps)


def _folded_run(start: int, count: int, extra: int) -> Tuple[int, int]:
    """Return the first chunk id and the number of chunks of positions ``[start, start + count)`` after the fold."""
    first, end = start + min(start, extra), start + count + min(start + count, extra)
    return first, end - first


def _runs(start: int, count: int, size: int) -> Iterator[Tuple[int, int]]:
    """Yield ``count`` ids from ``start`` on, modulo ``size``, as one or two contiguous runs."""
    start %= size
    straight = min(count, size - start)
    yield start, straight
    if count > straight:
        yield 0, count - straight


def _allgather(topology: Topology, rank: int, root: int) -> Plan:
    """After each round a rank has twice as many blocks: its own and those of the ranks that follow it."""
    size, order, position = topology.size, topology.order, topology.position(rank)
    steps = [copy(position, 1)]
    have = 1
    while have < size:
        count = min(have, size - have)
        to, source = order[(position - have) % size], order[(position + have) % size]
        steps += [Step(Kind.SEND, (to,), *run, src=_OUTPUT) for run in _runs(position, count, size)]
        steps += [Step(Kind.RECV, (source,), *run, dst=_OUTPUT) for run in _runs(position + have, count, size)]
        have *= 2
    layout = blocks(Collective.ALLGATHER, rank, root, [topology.position(r) for r in range(size)])
    return finish(_NAME, size, layout, steps)


def _barrier(topology: Topology, rank: int, root: int) -> Plan:
    size, order, position = topology.size, topology.order, topology.position(rank)
    steps = []
    heard = 1
    while heard < size:
        steps.append(Step(Kind.SEND, (order[(position + heard) % size],)))
        steps.append(Step(Kind.RECV, (order[(position - heard) % size],)))
        heard *= 2
    return finish(_NAME, size, nothing(rank), steps)


PLANNERS: Dict[Collective, Planner] = {
    Collective.ALLREDUCE: _allreduce,
    Collective.REDUCESCATTER: _reducescatter,
    Collective.ALLGATHER: _allgather,
    Collective.BARRIER: _barrier,
}
