"""Rails: the networks that join the hosts, with what was measured on each. No I/O."""

from __future__ import annotations

import ipaddress
import statistics
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from ddl.net.interfaces import Interface
from ddl.tools.doctor.checks.links import on_rails
from ddl.tools.doctor.checks.verdict import present
from ddl.tools.doctor.facts import Facts, HostLink

__all__ = ["Rail", "rails_of"]


@dataclass
class Rail:
    """A network by which at least two hosts may reach one another."""

    name: str  #: of the interface, as most hosts have it
    network: str  #: as 10.1.0.0/16; empty if hosts reach it through routers
    used: bool = False  #: a job's data goes by it
    members: Dict[int, Interface] = field(default_factory=dict)
    links: Dict[Tuple[int, int], HostLink] = field(default_factory=dict)  #: by source and target

    @property
    def latency(self) -> Optional[float]:
        """Seconds, typically."""
        known = [link.latency for link in self.links.values() if link.latency is not None]
        return statistics.median(known) if known else None

    @property
    def bandwidths(self) -> List[float]:
        """Bits per second, from the slowest on."""
        return sorted(link.bandwidth for link in self.links.values() if link.bandwidth is not None)

    @property
    def bandwidth(self) -> Optional[float]:
        """Bits per second, typically."""
        return statistics.median(self.bandwidths) if self.bandwidths else None

    def is_cut_off(self, host: int) -> bool:
        """Return whether no connection to or from the host came about here, though some were tried."""
        tried = [link for ends, link in self.links.items() if host in ends]
        return bool(tried) and all(link.problem for link in tried)


def rails_of(facts: Facts) -> List[Rail]:
    """Return the rails, those that a job would use first."""
    networks: Dict[str, int] = {}
    for _, local in present(facts):
        for entry in local.interfaces:
            networks[_network(entry)] = networks.get(_network(entry), 0) + 1
    rails: Dict[str, Rail] = {}
    for link, used in on_rails(facts):
        there = _interface(facts, link.target, link.address)
        if there is None:
            continue
        joined = networks.get(_network(there), 0) > 1
        key = _network(there) if joined else there.name
        rail = rails.setdefault(key, Rail(there.name, key if joined else ""))
        rail.used = rail.used or used
        rail.links[link.source, link.target] = link
        rail.members[link.target] = there
    for rail in rails.values():
        names = [entry.name for entry in rail.members.values()]
        rail.name = max(sorted(set(names)), key=names.count)
    return sorted(rails.values(), key=lambda rail: (not rail.used, rail.name))


def _network(entry: Interface) -> str:
    return str(ipaddress.ip_network(f"{entry.address}/{entry.prefix}", strict=False))


def _interface(facts: Facts, host: int, address: str) -> Optional[Interface]:
    local = facts.host(host).local
    return next((entry for entry in local.interfaces if entry.address == address), None) if local is not None else None
