"""Plain data about hosts, ranks and the links between them, as the probes find it.

The default of every field is that of a good host or link, so a test says only what it changes. To and from JSON.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from ddl.bootstrap.cores import helpers
from ddl.net.interfaces import Interface
from ddl.tools.doctor.gpu_facts import HostGpus, gpus_from_json

__all__ = ["Facts", "HostFacts", "HostLink", "Local", "Task"]
__all__ += ["facts_from_json", "link_from_json", "local_from_json"]

_UNLIMITED = -1  # of a limit in Local


@dataclass(frozen=True)
class Task:
    """What a probe is told, on its command line."""

    hosts: Tuple[str, ...]  #: names as they were given
    directory: str  #: where the job would run
    script: str = ""  #: the program that would run, if it is a script
    sample: float = 0.2  #: seconds that one measurement of bandwidth may take
    patience: float = 20.0  #: seconds that ranks wait for one another

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def parse(text: str) -> Task:
        fields = json.loads(text)
        return Task(**{**fields, "hosts": tuple(fields["hosts"])})


@dataclass(frozen=True)
class Local:
    """What one host says of itself. Limits of -1 are no limits."""

    name: str = "a"  #: its own
    version: str = ""
    python: str = ""
    kernel: str = ""
    core_problem: str = ""  #: why the native core cannot be loaded
    directory_problem: str = ""
    script_problem: str = ""
    interfaces: Tuple[Interface, ...] = ()
    chosen: str = ""  #: the address at which a job on this host would take data
    routes: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: own address on the way, by host's number
    names: Mapping[str, Tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )  #: addresses of Task.hosts and of its own name
    unanswered: Tuple[str, ...] = ()  #: names and addresses for which the name service took too long
    reverse: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: name of the chosen addresses of hosts
    descriptors: int = 1 << 20
    descriptors_hard: int = 1 << 20
    memlock: int = _UNLIMITED
    pinning: str = ""  #: hardware that needs locked memory
    cores: int = 8  #: of the machine
    usable: int = 8  #: that this process may use
    quota: float = 0.0  #: cores' worth of time by the cgroup; 0: no limit
    shm: int = 64 << 30  #: bytes of /dev/shm; 0: there is none
    memfd_problem: str = ""
    container: str = ""  #: what kind of container this is, if it is one
    refused: Tuple[str, ...] = ()  #: system calls, used by DDL, that are not allowed
    encryption_problem: str = ""  #: why no connection can be encrypted
    gpus: HostGpus = HostGpus()

    @property
    def interface(self) -> Optional[Interface]:
        """The interface of the chosen address."""
        return next((entry for entry in self.interfaces if entry.address == self.chosen), None)


@dataclass(frozen=True)
class HostFacts:
    """A host by its number, and what came of asking it."""

    number: int
    name: str  #: as it was given
    ranks: Tuple[int, ...] = ()
    problem: str = ""  #: why no rank could run there
    local: Optional[Local] = None
    finished: bool = True  #: it has measured all its links

    @property
    def addresses(self) -> Tuple[str, ...]:
        return tuple(entry.address for entry in self.local.interfaces) if self.local is not None else ()

    @property
    def threads(self) -> int:
        """How many threads share a large operation of each of its ranks, unless DDL_CORES says otherwise."""
        if self.local is None or not self.ranks:
            return 1
        cores = min(self.local.usable, self.local.quota or self.local.usable)
        return 1 + helpers(cores / len(self.ranks))


@dataclass(frozen=True)
class HostLink:
    """The way from one host to an address of another. What was not measured, or did not come, is None."""

    source: int  #: number of the host
    target: int
    address: str  #: of the target
    interface: str = ""  #: of the source, as its routing table chose it
    target_interface: str = ""
    problem: str = ""  #: refused, timeout, or what the kernel said; empty: connected
    ports: Tuple[str, ...] = ("", "")  #: the same for each port that was tried
    stranger: bool = False  #: somebody else answers at that address
    mtu: int = 1500  #: of the path, by the kernel
    large: Optional[bool] = True  #: whether packets of that size pass; None: no small ones pass, either
    latency: Optional[float] = None  #: seconds for a small message and its answer, halved; the median
    bandwidth: Optional[float] = None  #: bits per second
    offset: Optional[float] = None  #: seconds by which the target's clock is ahead
    uncertainty: float = 0.0  #: of the offset


@dataclass(frozen=True)
class Facts:
    """Everything. ``groups`` are the ranks that proved to share memory; None: that could not be found out."""

    hosts: Tuple[HostFacts, ...]
    links: Tuple[HostLink, ...] = ()
    groups: Optional[Tuple[Tuple[int, ...], ...]] = None
    groups_problem: str = ""
    failure: str = ""  #: how the probes ended, if not well
    script: str = ""  #: that was asked for
    connections: int = 2  #: DDL_CONNECTIONS
    ranks_given: bool = True  #: somebody said how many ranks there are on a host

    @property
    def size(self) -> int:
        return sum(len(host.ranks) for host in self.hosts)

    def host(self, number: int) -> HostFacts:
        return next(host for host in self.hosts if host.number == number)

    def to_json(self) -> Dict[str, Any]:
        """Return what json.dumps takes."""
        return dataclasses.asdict(self)


def local_from_json(fields: Mapping[str, Any]) -> Local:
    """Read what ``dataclasses.asdict`` made of a Local."""
    values = dict(fields)
    values["interfaces"] = tuple(Interface(**entry) for entry in values["interfaces"])
    values["names"] = {name: tuple(addresses) for name, addresses in values["names"].items()}
    for name in ("unanswered", "refused"):
        values[name] = tuple(values[name])
    values["gpus"] = gpus_from_json(values["gpus"])
    return Local(**values)


def link_from_json(fields: Mapping[str, Any]) -> HostLink:
    """Read what ``dataclasses.asdict`` made of a HostLink."""
    return HostLink(**{**fields, "ports": tuple(fields["ports"])})


def facts_from_json(fields: Mapping[str, Any]) -> Facts:
    """Read what ``Facts.to_json`` returned."""
    values = dict(fields)
    values["hosts"] = tuple(_host_from_json(entry) for entry in values["hosts"])
    values["links"] = tuple(link_from_json(entry) for entry in values["links"])
    if values["groups"] is not None:
        values["groups"] = tuple(tuple(group) for group in values["groups"])
    return Facts(**values)


def _host_from_json(fields: Mapping[str, Any]) -> HostFacts:
    local = fields["local"]
    changed = {"ranks": tuple(fields["ranks"]), "local": None if local is None else local_from_json(local)}
    return HostFacts(**{**fields, **changed})
