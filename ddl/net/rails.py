"""Rails: the networks that join all hosts of a job, over which data goes at once.

Each rank offers the addresses at which it takes data. Which of them are rails follows from what all have offered, so
all ranks choose the same. No I/O, except that it asks the kernel for this host's interfaces.

Data goes over IPv4 or over IPv6, not both: else two rails could be one cable. DDL_INTERFACE may name both.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Dict, List, NamedTuple, Sequence, Tuple

from ddl.net.address import family_of
from ddl.net.interfaces import Interface, interfaces
from ddl.text.rank_names import listed

__all__ = ["RailOffer", "choose", "common_family", "family_problem", "offer_on", "places"]

_WORTH_IT = 0.1  # of the fastest rail's speed: a slower one would only be waited for
_SHOWN = 3  # names in a message
_MOST = 16  # as many connections as a stream may have


class RailOffer(NamedTuple):
    """Where a rank takes data."""

    network: str  #: what makes it a rail with other ranks' offers: 10.1.0.0/16, or its place in DDL_INTERFACE
    address: str
    port: int = 0
    speed: float = 0.0  #: bits per second of the hardware; 0: unknown

    @property
    def family(self) -> socket.AddressFamily:
        """AF_INET or AF_INET6."""
        return family_of(self.address)


def places(wanted: str, towards_store: str, *, dead: bool = False) -> List[RailOffer]:
    """Return where this rank could listen for data, without ports; the first one certainly.

    ``wanted`` is DDL_INTERFACE: addresses in the order of the rails. If empty: the address of this host on the way to
    the store, and those of its other interfaces; then those of the other version of IP. ``dead``: also of interfaces
    without a carrier.
    """
    if wanted:
        return [RailOffer(f"#{number}", address.strip()) for number, address in enumerate(wanted.split(","))]
    here = interfaces()
    first = next((entry for entry in here if entry.address == towards_store), None)
    if first is None:  # loopback
        return [RailOffer("#0", towards_store)]
    candidates: Dict[Tuple[int, str], Interface] = {}  # one of each interface and version of IP: it is one cable
    for entry in (first, *(other for other in here if (other.carrier or dead) and not _alone(other))):
        candidates.setdefault((family_of(entry.address), entry.name), entry)
    family = family_of(towards_store)
    ordered = sorted(candidates.values(), key=lambda entry: family_of(entry.address) != family)
    return [RailOffer(entry.network, entry.address, 0, entry.speed) for entry in ordered][: 2 * _MOST]


def _alone(entry: Interface) -> bool:
    """Whether nobody else is on the network of this address."""
    return ipaddress.ip_network(entry.network).num_addresses == 1


def choose(hosts: Sequence[str], offers: Sequence[Sequence[RailOffer]], most: int) -> Tuple[str, ...]:
    """Return the networks that are rails, the main one first; ``hosts[r]`` tells on which host rank r is.

    A rail has an offer of every rank, different hosts have different addresses there (a bridge for containers has the
    same one everywhere), and it is not much slower than the others. ``most``: so many at most; 0: all. Where the
    ranks' first offers are in different networks there is one rail, the first offer of each.
    """
    if not offers[0][0].network.startswith("#"):
        family = common_family([[rail.address for rail in offer] for offer in offers])
        offers = [_of_family(offer, family) for offer in offers]
    first = offers[0][0].network
    alone = len(set(hosts)) < 2 and not first.startswith("#")
    if alone or most == 1 or any(offer[0].network != first for offer in offers):
        return (first,)
    speeds: Dict[str, float] = {}
    for entry in offers[0]:
        on_it = [next((rail for rail in offer if rail.network == entry.network), None) for offer in offers]
        alike = len({rail.family for rail in on_it if rail is not None}) == 1  # of different ones by DDL_INTERFACE
        owners = {(rail.address, host) for rail, host in zip(on_it, hosts) if rail is not None}
        if None not in on_it and alike and len({address for address, _ in owners}) == len(owners):
            speeds[entry.network] = min(rail.speed for rail in on_it if rail is not None)
    fastest = max(speeds.values(), default=0.0)
    rails = [name for name, speed in speeds.items() if name == first or not 0 < speed < _WORTH_IT * fastest]
    return tuple(rails[: most or _MOST]) if first in rails else (first,)


def offer_on(rails: Sequence[str], rail: int, offers: Sequence[RailOffer]) -> RailOffer:
    """Return where a rank with these ``offers`` takes data on a rail of those that ``choose`` has returned."""
    if len(rails) > 1:
        return next(offer for offer in offers if offer.network == rails[rail])
    if rails[0].startswith("#"):
        return offers[0]
    return _of_family(offers, family_of(rails[0]))[0]


def common_family(addresses: Sequence[Sequence[str]]) -> socket.AddressFamily:
    """Return AF_INET or AF_INET6, by which all can be reached; ``addresses[r]`` are those of one, the best first.

    IPv4 is tried first. So where some of the best are of IPv6, these hosts have no way over IPv4, whatever addresses
    they have (a bridge for containers, say).
    """
    best = {family_of(its[0]) for its in addresses}
    if len(best) == 1:
        return best.pop()
    reachable = all(socket.AF_INET6 in map(family_of, its) for its in addresses)
    return socket.AF_INET6 if reachable else socket.AF_INET


def family_problem(names: Sequence[str], addresses: Sequence[Sequence[str]]) -> str:
    """Return that some have IPv4 only and others IPv6 only, if that is so: data could not pass. Else ""."""
    families = [set(map(family_of, its)) for its in addresses]
    with_ipv4 = [name for name, its in zip(names, families) if its == {socket.AF_INET}]
    with_ipv6 = [name for name, its in zip(names, families) if its == {socket.AF_INET6}]
    if not (with_ipv4 and with_ipv6):
        return ""
    return (
        f"{listed(with_ipv4, _SHOWN)} can be reached over IPv4 only, {listed(with_ipv6, _SHOWN)} over IPv6 only; give "
        "the hosts of one kind addresses of the other, or name a network that all are on: --network-interface "
        "(DDL_INTERFACE)"
    )


def _of_family(offers: Sequence[RailOffer], family: socket.AddressFamily) -> Sequence[RailOffer]:
    """Return those of one version of IP; all if there is none."""
    return [rail for rail in offers if rail.family == family] or offers
