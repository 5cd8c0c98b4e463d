"""Verify: prove that the plans of all ranks, run together, do what their collective says.

Proved, for any speed of ranks and links: every output chunk holds every contribution exactly once and is finished
once (or is the right rank's chunk, where nothing is reduced); every message is received, as what it was sent; nobody
waits for ever; nobody reads or writes memory that another may be writing, that is still being sent, or that its
owner has not announced or has left; channels touch different chunks. Of algorithms that promise it, also that every
output chunk is summed along the canonical tree, addition by addition. ``checks`` looks at the tables, ``replay`` runs
them on symbols. The counts of the proof are those of the plans; no size or type of data comes in.
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
    """What verified plans cost; tuples are indexed by rank."""

    collective: Collective
    algorithm: str
    size: int
    chunks: int  #: number of chunk ids of the whole data
    messages: Tuple[int, ...]  #: messages with data that the rank sends
    signals: Tuple[int, ...]  #: empty messages that it sends
    chunks_sent: Tuple[int, ...]  #: chunks in its messages
    chunks_read: Tuple[int, ...]  #: chunks that it reads directly from peers' memory
    chunks_written: Tuple[int, ...]  #: chunks that it writes directly into peers' memory
    steps: Tuple[int, ...]  #: lines of its plan
    rounds: Tuple[int, ...]  #: longest chain of messages and meets that its end depends on
    canonical: bool  #: it reduces, and adds up every chunk along the canonical tree
    #: By rank, channel and step: how many rounds are over, at the earliest, when the step is done.
    depths: Tuple[Tuple[Tuple[int, ...], ...], ...]

    def bytes_sent(self, rank: int, nbytes: int) -> Fraction:
        """Return how many bytes ``rank`` sends if all chunks together have ``nbytes``, evenly cut."""
        return Fraction(nbytes * self.chunks_sent[rank], self.chunks) if self.chunks else Fraction(0)


def verify(plans: Sequence[Plan], *, in_place: bool = False) -> Proof:
    """Prove the plans of all ranks, ``plans[rank]``; raises ``PlanError`` that says where they are wrong.

    With ``in_place``, INPUT and OUTPUT are the same memory wherever a plan allows it.
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
    """Check what every rank ends with; return whether all of it was summed along the canonical tree."""
    wanted = sources(plans)
    reduces = plans[0].collective in REDUCING
    along = order(0, len(plans))
    canonical = reduces
    for plan in plans:
        for chunk in plan.output:
            value = replay.memory.value(plan.rank, chunk)
            if value.mask != wanted[chunk]:
                have, need = replay.memory.ranks(value.mask), replay.memory.ranks(wanted[chunk])
                what = f"chunk {chunk} of OUTPUT ends with the contributions of ranks {have} instead of {need}"
                raise failure(plan, None, None, what)
            if value.finished != reduces:
                raise failure(plan, None, None, f"chunk {chunk} of OUTPUT comes from no step that is final")
            if reduces and value.order != along:
                canonical = False
                if plan.algorithm in CANONICAL:
                    what = f"chunk {chunk} of OUTPUT is summed in the order {value.order} instead of {along}"
                    raise failure(plan, None, None, what)
    return canonical


def _check_barrier(plans: Sequence[Plan], replay: Replay) -> None:
    """Check that no plan can end before every rank has done its first step."""
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
