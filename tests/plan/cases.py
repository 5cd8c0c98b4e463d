"""What the planning tests run over: topologies, roots, and all ranks' plans of one collective."""

from __future__ import annotations

from typing import Iterator, List, Tuple

from ddl.plan import Collective, Plan, algorithms, build
from ddl.plan.layout import ROOTED
from ddl.topology import Topology

COLLECTIVES = tuple(c for c in Collective if algorithms(c))
IN_PLACE = (Collective.ALLREDUCE, Collective.BROADCAST, Collective.REDUCE)
PAIRS = tuple((c, a) for c in COLLECTIVES for a in algorithms(c))


def ordered_factorisations(size: int) -> Iterator[Tuple[int, ...]]:
    """All ways to write ``size`` as a product of factors above 1, in every order."""
    if size == 1:
        yield ()
    for factor in range(2, size + 1):
        if size % factor == 0:
            for rest in ordered_factorisations(size // factor):
                yield (factor, *rest)


def mode(sizes: Tuple[int, ...]) -> str:
    return "x".join(map(str, sizes)) or "1"


def suits(algorithm: str, topology: Topology) -> bool:
    return algorithm not in ("direct", "eager") or topology.local_size == topology.size


def roots(collective: Collective, size: int) -> Tuple[int, ...]:
    """All roots where there are few; a few where there are many; 0 where the collective has none."""
    if collective not in ROOTED:
        return (0,)
    return tuple(range(size)) if size <= 5 else (0, size // 2, size - 1)


def in_place_ways(collective: Collective) -> Tuple[bool, ...]:
    return (False, True) if collective in IN_PLACE else (False,)


def plans_of(collective: Collective, algorithm: str, topology: Topology, root: int = 0) -> List[Plan]:
    return [build(collective, algorithm, topology, rank, root) for rank in range(topology.size)]
