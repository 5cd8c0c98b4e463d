"""Rails: the networks that join all hosts of a job, over which data goes at once.

Each rank offers the addresses at which it takes data. Which of them are rails follows from what all have offered, so
all ranks choose the same. No I/O, except that it asks the kernel for this host's interfaces.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

from ddl.net.interfaces import interfaces

__all__ = ["RailOffer", "choose", "places"]

_WORTH_IT = 0.1  # of the fastest rail's speed: a slower one would only be waited for
_MOST = 16  # as many connections as a stream may have


class RailOffer(NamedTuple):
    """Where a rank takes data."""

    network: str  #: what makes it a rail with other ranks' offers: 10.1.0.0/16, or its place in DDL_INTERFACE
    address: str
    port: int = 0
    speed: float = 0.0  #: bits per second of the hardware; 0: unknown


def places(wanted: str, towards_store: str) -> List[RailOffer]:
    """Return where this rank could listen for data, without ports; the first one certainly.

    ``wanted`` is DDL_INTERFACE: addresses in the order of the rails. If empty: the address of this host on the way to
    the store, and those of its other interfaces.
    """
    if wanted:
        return [RailOffer(f"#{number}", address.strip()) for number, address in enumerate(wanted.split(","))]
    here = interfaces()
    first = next((entry for entry in here if entry.address == towards_store), None)
    if first is None:  # loopback
        return [RailOffer("#0", towards_store)]
    rest = [entry for entry in here if entry is not first and entry.carrier and entry.prefix < 32]
    return [RailOffer(entry.network, entry.address, 0, entry.speed) for entry in (first, *rest)][:_MOST]


def choose(hosts: Sequence[str], offers: Sequence[Sequence[RailOffer]], most: int) -> Tuple[str, ...]:
    """Return the networks that are rails, the main one first; ``hosts[r]`` tells on which host rank r is.

    A rail has an offer of every rank, different hosts have different addresses there (a bridge for containers has the
    same one everywhere), and it is not much slower than the others. ``most``: so many at most; 0: all. Where the
    ranks' first offers are in different networks there is one rail, the first offer of each.
    """
    first = offers[0][0].network
    alone = len(set(hosts)) < 2 and not first.startswith("#")
    if alone or most == 1 or any(offer[0].network != first for offer in offers):
        return (first,)
    speeds: Dict[str, float] = {}
    for entry in offers[0]:
        on_it = [next((rail for rail in offer if rail.network == entry.network), None) for offer in offers]
        owners = {(rail.address, host) for rail, host in zip(on_it, hosts) if rail is not None}
        if None not in on_it and len({address for address, _ in owners}) == len(owners):
            speeds[entry.network] = min(rail.speed for rail in on_it if rail is not None)
    fastest = max(speeds.values(), default=0.0)
    rails = [name for name, speed in speeds.items() if name == first or not 0 < speed < _WORTH_IT * fastest]
    return tuple(rails[: most or _MOST]) if first in rails else (first,)
