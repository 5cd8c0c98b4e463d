"""How ddlrun's agents come onto hosts: a class for each name of ``--launcher``.

A ``ReachingLauncher`` makes ``Start``s, local command lines that start the agents of other hosts. With a
``PodLauncher`` Kubernetes starts the agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Protocol, Tuple

from ddl.launch.ask.config import PodJob, RunConfig
from ddl.launch.ask.hosts import Host
from ddl.launch.ask.placement import Placement

__all__ = ["Launcher", "PodLauncher", "ReachingLauncher", "Start"]


@dataclass(frozen=True)
class Start:
    """A process on this machine that starts the agents of ``hosts`` (numbers) and ends when they have ended.

    ``host``: the number for the invitation; None where the launcher's own variables tell each agent. The invitation
    goes through ``stdin``, or where there is one for all, through the environment, which the launcher carries.
    ``remedies``: what the user can do if it ends with a status before DDL has begun there.
    """

    hosts: Tuple[int, ...]
    command: Tuple[str, ...]
    host: Optional[int]
    stdin: bool
    label: str  #: before its own text
    environ: Dict[str, str] = field(default_factory=dict)
    remedies: Dict[int, str] = field(default_factory=dict)


class Launcher(Protocol):
    """What ``name`` stands for behind ``--launcher``. ``takes`` are options that it takes, and not every other one."""

    name: ClassVar[str]
    takes: ClassVar[Tuple[str, ...]]


class ReachingLauncher(Launcher, Protocol):
    """A way to other hosts. ``one_by_one``: it can start an agent on a host that comes when others run already."""

    one_by_one: ClassVar[bool]

    @classmethod
    def of(cls, config: RunConfig) -> ReachingLauncher:
        """Return the one that a job is started by."""

    @staticmethod
    def allocated(environ: Mapping[str, str]) -> Optional[Tuple[Host, ...]]:
        """Return the hosts that the launcher has for us, where the user names none; None: it has none."""

    def starts(self, placement: Placement, environ: Mapping[str, str]) -> List[Start]:
        """Return what starts the agents of these hosts. ConfigError says what is missing on this machine."""


class PodLauncher(Launcher, Protocol):
    """Kubernetes chooses the hosts, which are pods. ``given`` are the options, by name, without dashes."""

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Refuse options that it would ignore, and the lack of those that it needs. ConfigError."""

    @staticmethod
    def pod_job(given: Mapping[str, Any], pods: int) -> Optional[PodJob]:
        """Return what a manifest is to be printed of; None: this process is itself in one of the pods."""
