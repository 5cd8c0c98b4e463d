"""What of a large plan is drawn: some ranks and some rounds from which the others can be guessed.

Of more ranks than fit, those are shown that lie with one of them in a line along a dimension: its host, its rings.
Of more rounds than fit, runs of rounds that look alike lose their middle.
"""

from __future__ import annotations

from typing import FrozenSet, Hashable, Iterable, List, Sequence, Set, Tuple

from ddl.plan.schedule import Schedule
from ddl.topology import Topology

__all__ = ["hidden_rounds", "shown_ranks"]

_MOST_RANKS, _MOST_SHARING = 32, 8  # drawn completely; of ranks that share memory, everyone may deal with everyone
_MOST_IN_LINE = 8  # of one dimension, if not all are drawn
_MOST_ROUNDS = 12
_KEPT = 2  # rounds at the beginning of a run that loses its middle; one stays at its end


def shown_ranks(topology: Topology, focus: int) -> Tuple[int, ...]:
    """Return the ranks to draw, by position: all, or ``focus`` and those in line with it."""
    if topology.size <= _MOST_RANKS and topology.local_size <= _MOST_SHARING:
        return topology.order
    lines = (topology.group(focus, dimension) for dimension in range(len(topology.dimensions)))
    shown = {rank for line in lines for rank in _thinned(line, line.index(focus))}
    return tuple(sorted(shown, key=topology.position))


def _thinned(line: Sequence[int], focus: int) -> Iterable[int]:
    """Keep the one before ``focus``, itself and those behind it, around the end."""
    if len(line) <= _MOST_IN_LINE:
        return line
    return [line[(focus - 1 + step) % len(line)] for step in range(_MOST_IN_LINE)]


def hidden_rounds(events: Schedule, shown: Iterable[int]) -> FrozenSet[int]:
    """Return the rounds to leave out; nothing that is drawn happens between two of them."""
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
    """Describe each round so that those which look alike are equal; round 0 is what comes before the first."""
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
