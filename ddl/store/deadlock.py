"""``Deadlocks``: finds ranks of which each waits, in an operation, for another that can never call it.

Ranks say now and then over which operations their threads sleep, and which they have not called. Within one
communicator a difference shows by itself: two calls have the same number. Across communicators (gradients on one, named
operations on another) each rank only seems late, and everybody would wait until the deadline.

A rank is stuck if every thread of it that may call DDL sleeps over an operation, and each of these operations needs a
stuck rank that has not called it. What a rank has said holds for as long as it sleeps over the same operations, since
each of them happens once. So what is found holds for ever, though ranks speak at different times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

__all__ = ["Deadlocks", "Wait"]

Wait = Tuple[int, int, int]  #: a communicator, the number of an operation there, and the rank that it needs; -1: all
_SHOWN = 3  # places where ranks wait


@dataclass
class _Standing:
    """What a rank has said, as long as its threads sleep over ``waits``."""

    waits: FrozenSet[Wait]
    doing: str
    uncalled: Set[Tuple[int, int]] = field(default_factory=set)  # operations: communicator and number


class Deadlocks:
    """What ranks that sleep have said of themselves, and what follows from it."""

    def __init__(self) -> None:
        self._ranks: Dict[int, _Standing] = {}

    def heard(self, rank: int, waits: FrozenSet[Wait], doing: str, uncalled: Optional[Tuple[int, int]] = None) -> None:
        """Take in what ``rank`` says. ``waits``: none if a thread of it that calls DDL does not sleep.

        ``doing``: where its program is, for people. ``uncalled``: an operation that it has not called.
        """
        if not waits:
            self.forget(rank)
            return
        standing = self._ranks.get(rank)
        if standing is None or standing.waits != waits:
            standing = self._ranks[rank] = _Standing(waits, doing)
        if uncalled is not None:
            standing.uncalled.add(uncalled)

    def forget(self, rank: int) -> None:
        """``rank`` goes on, or is there no more."""
        self._ranks.pop(rank, None)

    def stuck(self) -> List[int]:
        """Return the ranks that can never go on."""
        stuck, missing = set(self._ranks), self._missing()

        def in_vain(wait: Wait) -> bool:
            comm, seq, needs = wait
            absent = missing.get((comm, seq), set()) & stuck
            return bool(absent) if needs < 0 else needs in absent

        while True:
            able = {rank for rank in stuck if not all(map(in_vain, self._ranks[rank].waits))}
            if not able:
                return sorted(stuck)
            stuck -= able

    def _missing(self) -> Dict[Tuple[int, int], Set[int]]:
        """Return the ranks that have not called an operation, by operation."""
        missing: Dict[Tuple[int, int], Set[int]] = {}
        for rank, standing in self._ranks.items():
            for operation in standing.uncalled:
                missing.setdefault(operation, set()).add(rank)
        return missing

    def communicators(self, ranks: Sequence[int]) -> List[int]:
        """Return those in which ``ranks`` wait."""
        return sorted({comm for rank in ranks for comm, _, _ in self._ranks[rank].waits})

    def text(self, ranks: Sequence[int], named: Callable[[List[int]], str]) -> str:
        """Say for people that ``ranks``, which are stuck, wait for one another, and where. ``named`` names ranks."""
        places: Dict[str, List[int]] = {}
        for rank in ranks:
            places.setdefault(self._ranks[rank].doing, []).append(rank)
        shown = [
            f"{named(there)} {doing if len(there) == 1 else doing.replace('waits', 'wait', 1)}"
            for doing, there in list(places.items())[:_SHOWN]
        ]
        more = f" (and so on, for {len(ranks)} ranks in all)" if len(places) > _SHOWN else ""
        return (
            f"the ranks wait for one another, and none of them can go on: {'; '.join(shown)}{more}; all ranks must "
            "make the same calls in the same order"
        )
