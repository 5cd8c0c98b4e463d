"""Planning: the table of algorithms, and ``build``, which returns one rank's plan of one collective.

A planner is a function in the module of its algorithm. ``PLANNERS`` of that module lists the collectives that the
algorithm offers. A plan does not depend on the size of the data, so ``build`` caches it by its arguments. No I/O.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, Mapping, Tuple

from ddl.errors import InvalidArgument
from ddl.plan import canonical, direct, doubling, eager, exchange, leaders, multiring, ring, tree
from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import ROOTED, Planner, alone
from ddl.topology import Topology

__all__ = ["Buffer", "Collective", "Kind", "Plan", "Step", "algorithms", "build"]

_ALGORITHMS: Dict[str, Mapping[Collective, Planner]] = {
    "direct": direct.PLANNERS,
    "eager": eager.PLANNERS,
    "ring": ring.PLANNERS,
    "recursive_doubling": doubling.PLANNERS,
    "leaders": leaders.PLANNERS,
    "tree": tree.PLANNERS,
    "multiring": multiring.PLANNERS,
    "canonical": canonical.PLANNERS,
    "canonical_small": canonical.SMALL_PLANNERS,
    "exchange": exchange.PLANNERS,
}
#: Algorithms whose ranks must all share memory.
_SHARED = frozenset({"direct", "eager"})


def algorithms(collective: Collective) -> Tuple[str, ...]:
    """Return the names of the algorithms that offer ``collective``."""
    return tuple(name for name, planners in _ALGORITHMS.items() if collective in planners)


@lru_cache(maxsize=4096)
def build(collective: Collective, algorithm: str, topology: Topology, rank: int, root: int = 0) -> Plan:
    """Plan ``collective`` by ``algorithm`` for ``rank``.

    Not collective, does not block. Broadcast, reduce, gather and scatter use ``root``; for the others it must be 0.
    Raises ``InvalidArgument`` if the algorithm does not offer the collective, if it does not suit the topology, or if
    ``rank`` or ``root`` is not a rank of it.
    """
    name = f"rank {rank}: plan of {Collective(collective).name.lower()} by {algorithm!r} on {topology}"
    planner = _ALGORITHMS.get(algorithm, {}).get(collective)
    if planner is None:
        offers = ", ".join(algorithms(collective)) or "none: it needs no plan"
        raise InvalidArgument(f"{name}: there is no such algorithm for this collective; choose one of: {offers}")
    for argument, value in (("rank", rank), ("root", root)):
        if not 0 <= value < topology.size:
            raise InvalidArgument(f"{name}: {argument} is {value}; give 0..{topology.size - 1}")
    if root and collective not in ROOTED:
        raise InvalidArgument(f"{name}: root is {root}, but this collective has no root; give 0")
    if topology.size == 1:
        return alone(Collective(collective), algorithm)
    if algorithm in _SHARED and topology.local_size != topology.size:
        raise InvalidArgument(
            f"{name}: all ranks must share memory, but only {topology.local_size} of {topology.size} do; "
            "choose another algorithm"
        )
    return planner(topology, rank, root)
