"""The checks of plans that need no order of events: ``verify`` makes them first.

All ranks plan the same collective; the buffers hold the chunks that the collective requires; each step has the fields
of its kind; the channels of a plan touch different chunks. ``replay`` checks values, messages and races.
"""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, Optional, Sequence, Set, Tuple

from ddl.errors import InternalError
from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import REDUCING

__all__ = ["PlanError", "check_layouts", "check_steps", "failure", "sources"]


class PlanError(InternalError):
    """A plan is wrong, which is a bug in its planner; the message names rank, channel and step."""


def failure(plan: Plan, channel: Optional[int], index: Optional[int], what: str) -> PlanError:
    """Return an error that says ``what`` is wrong and where. ``None`` omits that part of the place."""
    place = f"rank {plan.rank}"
    if channel is not None:
        place += f" channel {channel}"
    if channel is not None and index is not None:
        place += f" step {index}"
        if index < len(plan.channels[channel]):
            place += f" {plan.channels[channel][index].kind.name}"
    name = f"{plan.collective.name.lower()} by {plan.algorithm!r}, {plan.size} ranks, root {plan.root}"
    return PlanError(
        f"[{place}] {name}: {what}; "
        "this is a bug in the planner: please report it, and use another algorithm until it is fixed"
    )


#: These fields must be the same on all ranks.
_AGREED: Tuple[str, ...] = ("collective", "algorithm", "size", "root", "chunks")


def check_layouts(plans: Sequence[Plan], in_place: bool) -> None:
    """Check that all plans are for the same collective, and that INPUT and OUTPUT hold the chunks that it requires."""
    if not plans:
        raise PlanError("there are no plans; give one plan per rank, in rank order")
    lead = plans[0]
    for rank, plan in enumerate(plans):
        if plan.rank != rank or plan.size != len(plans):
            what = f"given as the plan of rank {rank} of {len(plans)}, but it is for rank {plan.rank} of {plan.size}"
            raise failure(plan, None, None, what)
        for name in _AGREED:
            own, theirs = getattr(plan, name), getattr(lead, name)
            if own != theirs:
                raise failure(plan, None, None, f"its {name} is {own!r}, but on rank 0 it is {theirs!r}")
        for buffer in (plan.input, plan.output, plan.scratch):
            if len(set(buffer)) != len(buffer) or not all(0 <= chunk < plan.chunks for chunk in buffer):
                raise failure(plan, None, None, f"a buffer lists {buffer}: not distinct chunks below {plan.chunks}")
        if in_place and plan.in_place and plan.input != plan.output:
            raise failure(plan, None, None, f"it is in place, but INPUT {plan.input} and OUTPUT {plan.output} differ")
    if not 0 <= lead.root < lead.size:
        raise failure(lead, None, None, f"its root is not a rank below {lead.size}")
    if lead.collective not in _LAYOUTS:
        raise failure(lead, None, None, "this collective has no plans")
    inputs, outputs = _LAYOUTS[lead.collective](plans)
    for plan, expected_input, expected_output in zip(plans, inputs, outputs):
        for buffer_name, given, expected in (
            ("INPUT", plan.input, expected_input),
            ("OUTPUT", plan.output, expected_output),
        ):
            if given != expected:
                raise failure(plan, None, None, f"{buffer_name} holds chunks {given}, but should hold {expected}")


_Lists = Sequence[Tuple[int, ...]]


def _complete(plan: Plan, chunks: Tuple[int, ...], count: Optional[int] = None) -> Tuple[int, ...]:
    """Check that ``chunks`` are all chunks of the plan, and ``count`` of them; return them."""
    if len(chunks) != plan.chunks or (count is not None and len(chunks) != count):
        wanted = plan.chunks if count is None else count
        raise failure(plan, None, None, f"a buffer with chunks {chunks} should hold all {wanted} of {plan.chunks}")
    return chunks


def _only_at(root: int, size: int, chunks: Tuple[int, ...]) -> _Lists:
    return [chunks if rank == root else () for rank in range(size)]


def _own_blocks(plan: Plan, blocks: Tuple[int, ...]) -> _Lists:
    return [(chunk,) for chunk in _complete(plan, blocks, plan.size)]


def _of_allreduce(plans: Sequence[Plan]) -> Tuple[_Lists, _Lists]:
    every = _complete(plans[0], plans[0].input)
    return [every] * len(plans), [every] * len(plans)


def _of_reduce(plans: Sequence[Plan]) -> Tuple[_Lists, _Lists]:
    every = _complete(plans[0], plans[0].input)
    return [every] * len(plans), _only_at(plans[0].root, len(plans), every)


def _of_broadcast(plans: Sequence[Plan]) -> Tuple[_Lists, _Lists]:
    every = _complete(plans[0], plans[0].output)
    return _only_at(plans[0].root, len(plans), every), [every] * len(plans)


def _of_reducescatter(plans: Sequence[Plan]) -> Tuple[_Lists, _Lists]:
    return [plans[0].input] * len(plans), _own_blocks(plans[0], plans[0].input)


def _of_allgather(plans: Sequence[Plan]) -> Tuple[_Lists, _Lists]:
    return _own_blocks(plans[0], plans[0].output), [plans[0].output] * len(plans)


def _of_gather(plans: Sequence[Plan]) -> Tuple[_Lists, _Lists]:
    root = plans[plans[0].root]
    return _own_blocks(root, root.output), _only_at(root.rank, len(plans), root.output)


def _of_scatter(plans: Sequence[Plan]) -> Tuple[_Lists, _Lists]:
    root = plans[plans[0].root]
    return _only_at(root.rank, len(plans), root.input), _own_blocks(root, root.input)


def _of_alltoall(plans: Sequence[Plan]) -> Tuple[_Lists, _Lists]:
    sent = [plan.input for plan in plans]
    for plan in plans:
        if len(plan.input) != plan.size or plan.chunks != plan.size**2:
            raise failure(plan, None, None, f"INPUT holds chunks {plan.input}, but should hold one for each rank")
    distinct = tuple(sorted({chunk for chunks in sent for chunk in chunks}))
    _complete(plans[0], distinct)
    return sent, [tuple(chunks[plan.rank] for chunks in sent) for plan in plans]


def _of_barrier(plans: Sequence[Plan]) -> Tuple[_Lists, _Lists]:
    _complete(plans[0], (), 0)
    return [()] * len(plans), [()] * len(plans)


_LAYOUTS: Dict[Collective, Callable[[Sequence[Plan]], Tuple[_Lists, _Lists]]] = {
    Collective.ALLREDUCE: _of_allreduce,
    Collective.REDUCESCATTER: _of_reducescatter,
    Collective.ALLGATHER: _of_allgather,
    Collective.BROADCAST: _of_broadcast,
    Collective.ALLTOALL: _of_alltoall,
    Collective.REDUCE: _of_reduce,
    Collective.GATHER: _of_gather,
    Collective.SCATTER: _of_scatter,
    Collective.BARRIER: _of_barrier,
}


def sources(plans: Sequence[Plan]) -> Dict[int, int]:
    """Return for each chunk the bit mask of the ranks whose INPUT has it. The output must have their contributions."""
    masks: Dict[int, int] = {}
    for plan in plans:
        for chunk in plan.input:
            masks[chunk] = masks.get(chunk, 0) | 1 << plan.rank
    return masks


_ONE_PEER: FrozenSet[Kind] = frozenset({Kind.SEND, Kind.RECV, Kind.RECV_REDUCE, Kind.COPY_FROM})
_NO_PEER: FrozenSet[Kind] = frozenset({Kind.COPY, Kind.NOTIFY})
#: Kinds that write to ``dst``, on this rank or on a peer.
_WRITES: FrozenSet[Kind] = frozenset(
    {Kind.RECV, Kind.RECV_REDUCE, Kind.REDUCE_FROM, Kind.COPY_FROM, Kind.COPY_TO, Kind.COPY}
)
_MEETS: FrozenSet[Kind] = frozenset({Kind.NOTIFY, Kind.AWAIT})
_REDUCES: FrozenSet[Kind] = frozenset({Kind.RECV_REDUCE, Kind.REDUCE_FROM})


def check_steps(plan: Plan) -> None:
    """Check that each step has the fields of its kind, and that channels touch different chunks."""
    taken: Dict[int, int] = {}
    for channel, steps in enumerate(plan.channels):
        touched: Set[int] = set()
        phase = 0
        for index, step in enumerate(steps):
            what = _fault(plan, step, phase)
            if what:
                raise failure(plan, channel, index, what)
            if step.kind is Kind.NOTIFY:
                phase = step.phase
            touched.update(range(step.first, step.first + step.count))
        for chunk in sorted(touched):
            if chunk in taken:
                raise failure(plan, channel, None, f"chunk {chunk} is also touched by channel {taken[chunk]}")
        taken.update(dict.fromkeys(touched, channel))


def _fault(plan: Plan, step: Step, phase: int) -> str:
    """Return what is wrong with a single step, or an empty string. ``phase`` is the last one that was announced."""
    kind, peers = step.kind, step.peers
    if len(set(peers)) != len(peers) or plan.rank in peers or not all(0 <= p < plan.size for p in peers):
        return f"peers {peers} are not distinct other ranks below {plan.size}"
    if (kind in _ONE_PEER and len(peers) != 1) or (kind in _NO_PEER and peers):
        return f"has {len(peers)} peers"
    if kind not in _ONE_PEER and kind not in _NO_PEER and not peers:
        return "has no peers"
    if kind in _MEETS:
        if kind is Kind.NOTIFY and step.phase != phase + 1:
            return f"announces phase {step.phase} after phase {phase}: phases grow by one"
        return "" if step.phase >= 1 and step.count == 0 else f"phase is {step.phase} with {step.count} chunks"
    if step.count < 0 or (step.count == 0 and kind not in (Kind.SEND, Kind.RECV)):
        return f"moves {step.count} chunks"
    if kind in _WRITES and step.dst is Buffer.INPUT and step.count:
        return "writes to INPUT, which must not change"
    if step.onto and kind is not Kind.REDUCE_FROM:
        return "adds onto what its target holds, which only REDUCE_FROM does"
    if kind in _REDUCES and plan.collective not in REDUCING:
        return "reduces in a collective that does not reduce"
    if step.final:
        if plan.collective not in REDUCING:
            return "is final in a collective that does not reduce"
        # A copy between buffers that are the same memory does nothing, so it must not be the step that divides.
        if kind not in _REDUCES and not (kind is Kind.COPY and plan.size == 1):
            return "is final but does not reduce"
    return ""
