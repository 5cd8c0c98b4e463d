"""Verify: prove that the plans of all ranks, run together, do what their collective promises.

The proof holds for any speed of ranks and links. It shows:

* Every output chunk holds every contribution exactly once and is finished once. Where nothing is reduced, it holds the
  chunk of the right rank.
* Every message is received, as the chunks that were sent. There is no deadlock.
* No rank reads or writes memory that another may be writing or that is still being sent, nor memory of a peer before
  the peer has announced it or after the peer's plan has ended.
* The channels of a plan touch different chunks.
* The canonical algorithms sum every output chunk along the canonical tree, addition by addition.

``checks`` examines the tables, ``replay`` runs them on symbolic memory. The proof does not depend on the size or the
type of the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import List, Sequence, Tuple

from ddl.plan.canonical_tree import CANONICAL, order
from ddl.plan.checks import PlanError, check_layouts, check_steps, failure, sources
from ddl.plan.counts import count
from ddl.plan.ir import Collective, Plan
from ddl.plan.layout import REDUCING
from ddl.plan.memory import Lane
from ddl.plan.replay import Replay

__all__ = ["PlanError", "Proof", "verify"]


@dataclass(frozen=True)
class Proof:
    """The costs of verified plans; tuples are indexed by rank."""

    collective: Collective
    algorithm: str
    size: int
    chunks: int  #: number of chunk ids of the whole data
    messages: Tuple[int, ...]  #: messages with data that the rank sends
    signals: Tuple[int, ...]  #: empty messages that it sends
    chunks_sent: Tuple[int, ...]  #: chunks in its messages
    chunks_read: Tuple[int, ...]  #: chunks that it reads directly from peers' memory
    chunks_written: Tuple[int, ...]  #: chunks that it writes directly into peers' memory
    steps: Tuple[int, ...]  #: steps of its plan
    rounds: Tuple[int, ...]  #: length of the longest chain of messages and meets on which its end depends
    canonical: bool  #: whether it reduces, and adds up every chunk along the canonical tree
    #: By rank, channel and step: the length of the longest chain of messages and meets before the step is done.
    depths: Tuple[Tuple[Tuple[int, ...], ...], ...]

    def bytes_sent(self, rank: int, nbytes: int) -> Fraction:
        """Return how many bytes ``rank`` sends if all chunks together have ``nbytes`` bytes and the same length."""
        return Fraction(nbytes * self.chunks_sent[rank], self.chunks) if self.chunks else Fraction(0)


def verify(plans: Sequence[Plan], *, in_place: bool = False) -> Proof:
    """Prove the plans of all ranks, ``plans[rank]``, and return their costs.

    With ``in_place``, INPUT and OUTPUT are the same memory wherever a plan allows it. Raises ``PlanError``, which names
    rank, channel and step of the first error.
    """
    check_layouts(plans, in_place)
    for plan in plans:
        check_steps(plan)
    replay = Replay(plans, in_place)
    replay.run()
    if plans[0].collective is Collective.BARRIER:
        _check_barrier(plans, replay)
    canonical = _check_outputs(plans, replay)
    return _count(plans, replay.lanes, canonical)


def _check_outputs(plans: Sequence[Plan], replay: Replay) -> bool:
    """Check the OUTPUT of every rank. Return whether all of it was summed along the canonical tree."""
    wanted = sources(plans)
    reduces = plans[0].collective in REDUCING
    tree = order(0, len(plans))
    canonical = reduces
    for plan in plans:
        for chunk in plan.output:
            value = replay.memory.value(plan.rank, chunk)
            if value.mask != wanted[chunk]:
                have, need = replay.memory.ranks(value.mask), replay.memory.ranks(wanted[chunk])
                what = f"at the end, chunk {chunk} of OUTPUT has the contributions of ranks {have} instead of {need}"
                raise failure(plan, None, None, what)
            if value.finished != reduces:
                raise failure(plan, None, None, f"chunk {chunk} of OUTPUT comes from no final step")
            if reduces and value.order != tree:
                canonical = False
                if plan.algorithm in CANONICAL:
                    what = f"chunk {chunk} of OUTPUT is summed in the order {value.order} instead of {tree}"
                    raise failure(plan, None, None, what)
    return canonical


def _check_barrier(plans: Sequence[Plan], replay: Replay) -> None:
    """Check that a plan can end only after every rank has done its first step."""
    for plan in plans:
        clock = replay.end_clock(plan.rank)
        entered = {lane.rank for lane in replay.lanes if clock[lane.number]}
        missing = sorted(set(range(plan.size)) - entered - {plan.rank})
        if missing:
            raise failure(plan, None, None, f"it may leave the barrier before ranks {missing} have entered")


def _count(plans: Sequence[Plan], lanes: Sequence[Lane], canonical: bool) -> Proof:
    counts = [count(plan) for plan in plans]
    depths: List[List[Tuple[int, ...]]] = [[] for _ in plans]
    for lane in lanes:
        depths[lane.rank].append(tuple(lane.depths))
    return Proof(
        collective=plans[0].collective,
        algorithm=plans[0].algorithm,
        size=len(plans),
        chunks=plans[0].chunks,
        messages=tuple(c.messages for c in counts),
        signals=tuple(c.signals for c in counts),
        chunks_sent=tuple(c.chunks_sent for c in counts),
        chunks_read=tuple(c.chunks_read for c in counts),
        chunks_written=tuple(c.chunks_written for c in counts),
        steps=tuple(sum(len(channel) for channel in plan.channels) for plan in plans),
        rounds=tuple(max((lane[-1] for lane in of_rank if lane), default=0) for of_rank in depths),
        canonical=canonical,
        depths=tuple(tuple(of_rank) for of_rank in depths),
    )
