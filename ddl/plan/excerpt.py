"""Chooses the ranks and rounds of a large plan that are drawn; the others are like them.

If there are too many ranks, only one rank and those in line with it along a dimension are shown: its host, its rings.
If there are too many rounds, the middle of each run of similar rounds is omitted.
"""

from __future__ import annotations

from typing import FrozenSet, Hashable, Iterable, List, Sequence, Set, Tuple

from ddl.plan.schedule import Schedule
from ddl.topology import Topology

__all__ = ["hidden_rounds", "shown_ranks"]

_MOST_RANKS, _MOST_SHARING = 32, 8  # up to so many ranks, and so many that share memory, all are drawn
_MOST_IN_LINE = 8  # of one dimension, if not all ranks are drawn
_MOST_ROUNDS = 12
_KEPT = 2  # rounds that stay at the beginning of a shortened run; at its end, one stays


def shown_ranks(topology: Topology, focus: int) -> Tuple[int, ...]:
    """Return the ranks to draw, by position: all, or ``focus`` and those in line with it."""
    if topology.size <= _MOST_RANKS and topology.local_size <= _MOST_SHARING:
        return topology.order
    lines = (topology.group(focus, dimension) for dimension in range(len(topology.dimensions)))
    shown = {rank for line in lines for rank in _thinned(line, line.index(focus))}
    return tuple(sorted(shown, key=topology.position))


def _thinned(line: Sequence[int], focus: int) -> Iterable[int]:
    """Keep the rank before ``focus``, itself and those after it; after the last comes the first."""
    if len(line) <= _MOST_IN_LINE:
        return line
    return [line[(focus - 1 + step) % len(line)] for step in range(_MOST_IN_LINE)]


def hidden_rounds(events: Schedule, shown: Iterable[int]) -> FrozenSet[int]:
    """Return the rounds that are not drawn; nothing that is drawn happens between two of them."""
    if events.rounds <= _MOST_ROUNDS:
        return frozenset()
    looks = _looks(events, set(shown))
    hidden: Set[int] = set()
    first = 1
    for number in range(2, events.rounds + 2):
        if number > events.rounds or looks[number] != looks[first]:
            hidden.update(range(first + _KEPT, number - 1) if number - first > _KEPT + 2 else ())
            first = number
    kept = [number for number in range(1, events.rounds + 1) if number not in hidden]
    if len(kept) > 2 * _MOST_ROUNDS:
        hidden.update(range(kept[_MOST_ROUNDS], kept[-_MOST_ROUNDS]))
    return frozenset(hidden)


def _looks(events: Schedule, shown: Set[int]) -> List[Hashable]:
    """Describe each round so that similar rounds are equal; round 0 is what happens before the first."""
    looks: List[Set[Hashable]] = [set() for _ in range(events.rounds + 1)]
    for message in events.messages:
        if message.source in shown or message.target in shown:
            length = message.arrives - message.leaves
            looks[message.arrives].add((message.source, message.target, length, message.reduces, not message.runs))
    for work in events.works:
        if work.rank in shown:
            looks[work.depth].add(work)
    for meet in events.meets:
        if shown.intersection(meet.ranks):
            looks[meet.round].add(meet)
    return [frozenset(look) for look in looks]
