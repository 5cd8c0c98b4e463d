"""Pull: a rank takes from the INPUT of a peer what that would write into its OUTPUT.

Where both arrays are private, the peer could write only into shared memory, from which the rank would copy once more.
If the kernel lets the rank read the peer's array (csrc/memory/kernel_read.h), one copy is enough. Where a large INPUT
is copied to shared memory anyway, its owner can do so for the next piece while the others copy this one. (Where the
kernel copies a large array, the peer writes its share all the same, into the rank's array: see csrc/engine/handover.h.)
So for each two ranks the native core does one of the two, and both ranks know which, by what they have posted. A plan
says only what the peer writes. ``pulled`` makes the other plan of it, for ``verify``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ddl.plan.ir import Buffer, Kind, Plan, Step

__all__ = ["pull_of", "pulled"]


def pull_of(rank: int, plans: Mapping[int, Plan]) -> Optional[Tuple[Step, Step]]:
    """Return a step of ``rank``, and the same step with the chunk before its own; None: there is nothing to pull.

    ``plans``: those of all ranks that share memory with it. A single chunk must be written into its OUTPUT, by a rank
    from whose INPUT it copies what comes next, and so for all ranks to whom that rank writes it.
    """
    pull = _pull_alone(rank, plans)
    if pull is None or any(_pull_alone(peer, plans) is None for peer in pull[0]):
        return None
    return pull[1:]


def _pull_alone(rank: int, plans: Mapping[int, Plan]) -> Optional[Tuple[Tuple[int, ...], Step, Step]]:
    """Return to whom the chunk is written, and the two steps of ``pull_of``, whatever other ranks can do."""
    written = [
        (plan.rank, step)
        for plan in plans.values()
        for steps in plan.channels
        for step in steps
        if step.kind is Kind.COPY_TO and step.dst is Buffer.OUTPUT and rank in step.peers
    ]
    if len(written) != 1:
        return None
    ((giver, given),) = written
    if given.src is not Buffer.INPUT or given.count != 1:
        return None
    for steps in plans[rank].channels:
        for step in steps:
            if (step.kind, step.peers, step.first) == (Kind.COPY_FROM, (giver,), given.first + 1) and (
                step.src,
                step.dst,
            ) == (given.src, given.dst):
                return given.peers, step, replace(step, first=given.first, count=1 + step.count)
    return None


def pulled(plans: Sequence[Plan]) -> List[Plan]:
    """Return the plans of all ranks, which share memory, where each rank takes what it can."""
    by_rank: Dict[int, Plan] = dict(enumerate(plans))
    pulls = {rank: pull_of(rank, by_rank) for rank in by_rank}

    def edited(rank: int, step: Step) -> Step:
        pull = pulls[rank]
        if pull is not None and step == pull[0]:
            return pull[1]
        if step.kind is Kind.COPY_TO:
            return replace(step, peers=tuple(peer for peer in step.peers if pulls[peer] is None))
        return step

    def is_done(step: Step) -> bool:
        return step.kind is not Kind.COPY_TO or bool(step.peers)

    return [
        replace(
            plan,
            channels=tuple(
                tuple(filter(is_done, (edited(plan.rank, step) for step in steps))) for steps in plan.channels
            ),
        )
        for plan in plans
    ]
