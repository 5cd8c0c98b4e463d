"""Follows waits to where they begin: ranks that wait for nobody, and rings of ranks that wait for one another."""

from __future__ import annotations

from collections import defaultdict
from typing import DefaultDict, Dict, Iterable, List, Sequence, Set, Tuple

from ddl.blame.waits import OLD_DUMP, WaitEdge

__all__ = ["WaitGraph"]


class WaitGraph:
    """Processes, by their numbers, and their waits. A wait for a rank with an older dump leads nowhere."""

    def __init__(self, edges: Iterable[WaitEdge]) -> None:
        self._out: DefaultDict[int, List[WaitEdge]] = defaultdict(list)
        self._in: DefaultDict[int, List[WaitEdge]] = defaultdict(list)
        for edge in edges:
            if edge.why != OLD_DUMP:
                self._out[edge.waiter].append(edge)
                self._in[edge.awaited].append(edge)

    def waits_of(self, number: int) -> Sequence[WaitEdge]:
        """Return whom a process waits for."""
        return self._out.get(number, ())

    def waits_for(self, number: int) -> Sequence[WaitEdge]:
        """Return who waits for a process, the longest first."""
        return sorted(self._in.get(number, ()), key=lambda edge: (-edge.seconds, edge.waiter))

    def sinks(self) -> List[int]:
        """Return the processes that others wait for, and that wait for nobody."""
        return sorted(number for number in self._in if not self._out.get(number))

    def all_behind(self, numbers: Iterable[int]) -> Set[int]:
        """Return all that wait for one of these, also by way of others; not these themselves."""
        reached, todo = set(numbers), list(numbers)
        first = set(reached)
        while todo:
            for edge in self._in.get(todo.pop(), ()):
                if edge.waiter not in reached:
                    reached.add(edge.waiter)
                    todo.append(edge.waiter)
        return reached - first

    def cycles(self) -> List[Tuple[WaitEdge, ...]]:
        """Return rings of waits, of ranks that do not wait for a sink in the end. Each begins with its lowest rank.

        A ring has only waits that are sure, where there is such a ring. Of rings that meet, the first is returned.
        """
        explained = self.all_behind(self.sinks())
        left = {number for number in self._out if number not in explained}
        sure = {n: [edge for edge in self._out[n] if edge.sure and edge.awaited in left] for n in left}
        return _rings(_without_ends(sure) or {n: self._out[n] for n in left})


def _without_ends(edges: Dict[int, List[WaitEdge]]) -> Dict[int, List[WaitEdge]]:
    """Return the part of a graph in which every way goes on for ever."""
    kept = edges
    while True:
        going_on = {n: [edge for edge in out if edge.awaited in kept] for n, out in kept.items()}
        going_on = {n: out for n, out in going_on.items() if out}
        if len(going_on) == len(kept):
            return going_on
        kept = going_on


def _rings(edges: Dict[int, List[WaitEdge]]) -> List[Tuple[WaitEdge, ...]]:
    """Return the rings to which the first wait of each process leads. Every process has one."""
    rings: List[Tuple[WaitEdge, ...]] = []
    seen: Set[int] = set()
    for start in sorted(edges):
        path: List[WaitEdge] = []
        places: Dict[int, int] = {}
        number = start
        while number not in seen:
            seen.add(number)
            places[number] = len(path)
            path.append(min(edges[number], key=lambda edge: edge.awaited))
            number = path[-1].awaited
        if number in places:
            ring = path[places[number] :]
            lowest = min(range(len(ring)), key=lambda at: ring[at].waiter)
            rings.append((*ring[lowest:], *ring[:lowest]))
    return rings
