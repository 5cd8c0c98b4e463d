"""What ``ElasticHosts`` is told, and what it orders: plain data, so that histories can be written down and compared.

A process is named by its *incarnation*, a number that is never used twice in a job. The processes that a job begins
with are 0, 1, 2, …, and these are also their first ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple, Union

from ddl.launch.ask.hosts import Host

__all__ = [
    "DiscoveryFailed",
    "ElasticEvent",
    "ElasticOrder",
    "EndProcess",
    "GiveUp",
    "HostFailed",
    "HostLeaves",
    "HostReturned",
    "HostsSeen",
    "LetGo",
    "ProcessEnded",
    "RanksFormed",
    "RenewHost",
    "StartProcess",
    "TellUser",
]

# --- events ---


@dataclass(frozen=True)
class HostsSeen:
    """All hosts of now, each with its slots: the options name them once, or the script names them each second."""

    hosts: Tuple[Host, ...]


@dataclass(frozen=True)
class DiscoveryFailed:
    """The script did not say which hosts there are. Failures of the same ``kind`` are told to the user once."""

    kind: str
    text: str


@dataclass(frozen=True)
class ProcessEnded:
    """A process has ended; ``well``: with status 0. ``how`` is for people, and names process, host and status."""

    incarnation: int
    well: bool
    how: str


@dataclass(frozen=True)
class HostFailed:
    """Nothing can be started or seen on a host any more; its processes count as lost."""

    host: str
    why: str


@dataclass(frozen=True)
class HostLeaves:
    """A host has been asked to end. Its processes are to leave, and it gets none until it has returned."""

    host: str
    why: str


@dataclass(frozen=True)
class HostReturned:
    """A machine that is new, with the name and the slots of one that was lost, has called."""

    host: str


@dataclass(frozen=True)
class RanksFormed:
    """The store has decided on a generation: these processes are its ranks, in this order.

    Generation 0 is the one that the job begins with. ``seconds``: from when the store heard of the change until all
    went on. Before a planned change, ranks still train for a part of it.
    """

    generation: int
    members: Tuple[int, ...]
    seconds: float = 0.0


ElasticEvent = Union[HostsSeen, DiscoveryFailed, ProcessEnded, HostFailed, HostLeaves, HostReturned, RanksFormed]

# --- orders ---


@dataclass(frozen=True)
class StartProcess:
    """Start a process in a slot of a host. ``first``: it is of generation 0; others come as newcomers."""

    incarnation: int
    host: str
    slot: int
    slots: int  #: that the host has
    first: bool


@dataclass(frozen=True)
class LetGo:
    """Let a process leave after the step that it is in: the store takes it out of the next generation."""

    incarnation: int
    why: str


@dataclass(frozen=True)
class EndProcess:
    """End a process that was let go and has not left: ask it by SIGTERM, or use force."""

    incarnation: int
    force: bool


@dataclass(frozen=True)
class RenewHost:
    """Let a host end on which no process is left and none will start, so that a new machine takes its place."""

    host: str


@dataclass(frozen=True)
class TellUser:
    """Print a line."""

    text: str


@dataclass(frozen=True)
class GiveUp:
    """End the job: it cannot go on. The last order."""

    why: str


ElasticOrder = Union[StartProcess, LetGo, EndProcess, RenewHost, TellUser, GiveUp]
