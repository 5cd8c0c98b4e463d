"""How ddlrun starts its agents on other hosts: a ``Launcher`` for each way makes ``Start``s, local command lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Dict, List, Mapping, Optional, Protocol, Tuple

from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.hosts import Host
from ddl.launch.ask.placement import Placement

__all__ = ["Launcher", "Start"]


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
    """A way to other hosts. ``one_by_one``: it can start an agent on a host that comes when others run already."""

    one_by_one: ClassVar[bool]

    @classmethod
    def of(cls, config: RunConfig) -> Launcher:
        """Return the one that a job is started by."""

    @staticmethod
    def allocated(environ: Mapping[str, str]) -> Optional[Tuple[Host, ...]]:
        """Return the hosts that the launcher has for us, where the user names none; None: it has none."""

    def starts(self, placement: Placement, environ: Mapping[str, str]) -> List[Start]:
        """Return what starts the agents of these hosts. ConfigError says what is missing on this machine."""
