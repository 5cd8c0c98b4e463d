"""What happens in which round: a proved collective as data that can be drawn.

A step's *depth* is the length of the longest chain of messages and meets that must be over before the step is done
(``Proof.depths``). It says in which order things happen, not how long they take: a round may be one small message or
many large ones, and steps that do not wait for one another are in the same round. Work in shared memory takes no round
of its own. The works of one rank at the same depth are in *layers*, one after the other.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import DefaultDict, Deque, Iterator, List, Sequence, Set, Tuple

from ddl.plan.ir import Kind, Plan, Step
from ddl.plan.verify import Proof

__all__ = ["LocalWork", "Meet", "Message", "Schedule", "schedule"]

#: A run of chunk ids: the first one, and how many.
Run = Tuple[int, int]


@dataclass(frozen=True)
class Message:
    """What goes through a transport from one rank to another. Messages that leave and arrive together are joined."""

    source: int
    target: int
    leaves: int  #: depth at which it is sent
    arrives: int  #: the round in which it is received, and the depth after it
    reduces: bool  #: the receiver reduces it with what it has
    runs: Tuple[Run, ...]  #: its chunks; empty where it carries none


@dataclass(frozen=True)
class LocalWork:
    """A step in memory: a reduction from peers, or a copy."""

    rank: int
    depth: int
    layer: int
    step: Step


@dataclass(frozen=True)
class Meet:
    """In ``round``, the ``waiting`` ranks continue, because all of ``ranks`` have reached the phase."""

    round: int
    ranks: Tuple[int, ...]
    waiting: Tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """All events of a collective."""

    rounds: int
    messages: Tuple[Message, ...]
    works: Tuple[LocalWork, ...]
    meets: Tuple[Meet, ...]


#: Rank, channel, step, and the depth after it.
_Event = Tuple[int, int, Step, int]


def schedule(plans: Sequence[Plan], proof: Proof) -> Schedule:
    """Arrange the plans of all ranks by the rounds that their ``proof`` found."""
    events = list(_events(plans, proof))
    return Schedule(max(proof.rounds), tuple(_messages(events)), tuple(_works(events)), tuple(_meets(events)))


def _events(plans: Sequence[Plan], proof: Proof) -> Iterator[_Event]:
    for plan, depths in zip(plans, proof.depths):
        for channel, steps in enumerate(plan.channels):
            for step, depth in zip(steps, depths[channel]):
                yield plan.rank, channel, step, depth


def _messages(events: Sequence[_Event]) -> Iterator[Message]:
    """Match each receive with its send: messages between two ranks stay in order."""
    sent: DefaultDict[Tuple[int, int, int], Deque[int]] = defaultdict(deque)
    for rank, channel, step, depth in events:
        if step.kind is Kind.SEND:
            sent[rank, step.peers[0], channel].append(depth)
    # The key: source, target, leaves, arrives, reduces, and whether the message carries data.
    runs_of: DefaultDict[Tuple[int, int, int, int, bool, bool], List[Run]] = defaultdict(list)
    for rank, channel, step, depth in events:
        if step.kind in (Kind.RECV, Kind.RECV_REDUCE):
            source = step.peers[0]
            leaves = sent[source, rank, channel].popleft()
            key = (source, rank, leaves, depth, step.kind is Kind.RECV_REDUCE, step.count > 0)
            runs_of[key] += [(step.first, step.count)] if step.count else []
    for (source, target, leaves, arrives, reduces, _), runs in runs_of.items():
        yield Message(source, target, leaves, arrives, reduces, _joined(runs))


def _joined(runs: Sequence[Run]) -> Tuple[Run, ...]:
    """Join adjacent runs."""
    joined: List[Run] = []
    for first, count in sorted(runs):
        if joined and sum(joined[-1]) == first:
            joined[-1] = (joined[-1][0], joined[-1][1] + count)
        else:
            joined.append((first, count))
    return tuple(joined)


def _works(events: Sequence[_Event]) -> Iterator[LocalWork]:
    """Number the works of each rank at each depth. Works on adjacent chunks that are otherwise equal become one."""
    at: DefaultDict[Tuple[int, int], List[Step]] = defaultdict(list)
    for rank, _, step, depth in events:
        if step.kind not in (Kind.REDUCE_FROM, Kind.COPY_FROM, Kind.COPY_TO, Kind.COPY):
            continue
        layers = at[rank, depth]
        last = layers[-1] if layers else None
        if last and replace(step, first=last.first, count=last.count) == last and step.first == last.first + last.count:
            layers[-1] = replace(last, count=last.count + step.count)
        else:
            layers.append(step)
    for (rank, depth), layers in at.items():
        for layer, step in enumerate(layers):
            yield LocalWork(rank, depth, layer, step)


def _meets(events: Sequence[_Event]) -> Iterator[Meet]:
    """Join the waits for the same phase in the same round if they have a rank in common."""
    groups_at: DefaultDict[Tuple[int, int], List[Set[int]]] = defaultdict(list)
    waiting: DefaultDict[Tuple[int, int], Set[int]] = defaultdict(set)
    for rank, _, step, depth in events:
        if step.kind is Kind.AWAIT:
            groups = groups_at[depth, step.phase]
            members = {rank, *step.peers}
            joined = members.union(*(group for group in groups if group & members))
            groups[:] = [group for group in groups if not group & members] + [joined]
            waiting[depth, step.phase].add(rank)
    for (depth, phase), groups in groups_at.items():
        for group in groups:
            yield Meet(depth, tuple(sorted(group)), tuple(sorted(group & waiting[depth, phase])))
