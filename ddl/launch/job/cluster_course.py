"""How the ranks of a job on several hosts come and go: what differs between a job in which all begin together, and an
elastic one. fixed_cluster.py is the first kind, elastic_cluster.py the second.
"""

from __future__ import annotations

from typing import ClassVar, Optional, Protocol

from ddl.launch.agent.failures import Exit
from ddl.launch.agent.loop import Handlers
from ddl.launch.job.cluster_host import ClusterHost
from ddl.store.messages import Message
from ddl.store.server import StoreServer

__all__ = ["ClusterCourse"]


class ClusterCourse(Protocol):
    """``outlived``: agents and ranks go on if ddlrun is killed."""

    outlived: ClassVar[bool]

    def prepare(self) -> None:
        """Find out where the job begins."""

    def make_store(self) -> StoreServer:
        """Return the job's store, which does not serve yet."""

    def gathered(self) -> None:
        """The first ranks may run now, or the job cannot begin."""

    def whose(self, host: ClusterHost, message: Message) -> ClusterHost:
        """Return the host that says ``message``: ``host``, or one that has its place from now on."""

    def heard(self, host: ClusterHost, message: Message) -> None:
        """A host's agent has said something, and the job has taken note."""

    def exited(self, host: ClusterHost, entry: Exit) -> None:
        """A rank has ended, and the store has been told."""

    def lost(self, host: ClusterHost, reason: str) -> None:
        """A host on which ranks may run cannot say any more how they end."""

    @property
    def running_ranks(self) -> int:
        """How many ranks run."""

    def handlers(self) -> Handlers:
        """Return what else to wait for."""

    def deadline(self) -> Optional[float]:
        """Return when ``turned`` is to be called at the latest."""

    def turned(self) -> None:
        """The loop has done what there was to do."""

    def conclude(self) -> int:
        """Tell the user how the job has ended; return ddlrun's exit status."""

    def close(self) -> None:
        """The job is over."""
