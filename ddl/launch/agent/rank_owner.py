"""Whose ranks run on a host: a job on this machine (local_job.py), or ddlrun on another one (remote_agent.py).

``HostRanks`` has the loop. It tells its owner what becomes of the ranks, and asks what else there is to do.
"""

from __future__ import annotations

from typing import Optional, Protocol, Sequence

from ddl.launch.agent.loop import Handlers
from ddl.launch.agent.rank_start import Worker
from ddl.records.dump import RankDump
from ddl.records.follow import RankNews
from ddl.records.sample import RankSample

__all__ = ["RankOwner"]


class RankOwner(Protocol):
    """All is called by the thread of the loop."""

    # What it is told.

    def started(self) -> None:
        """All ranks have been started; from now on there may be threads."""

    def ended(self, worker: Worker) -> None:
        """A rank has ended, and its pipes may still hold output."""

    def dumped(self, dumps: Sequence[RankDump]) -> None:
        """These are the dumps of the ranks; none if they do not use DDL."""

    def all_ended(self) -> None:
        """All ranks have ended; their last output is still to come."""

    def sampled(self, samples: Sequence[RankSample]) -> None:
        """This is what the ranks do now, each second from ``sample_ranks`` on."""

    def traced(self, news: Sequence[RankNews]) -> None:
        """This is what the ranks have done since the last time, several times a second from ``trace_ranks`` on."""

    def dump_wanted(self) -> None:
        """Somebody has sent SIGQUIT (Ctrl-\\ in a terminal): he wants to know what the ranks do, and no more."""

    def stop(self, number: int) -> None:
        """Somebody has sent this signal, or nobody reads the output any more (SIGPIPE)."""

    def say(self, text: str) -> None:
        """Tell the user, if he wants to know."""

    def turned(self) -> None:
        """The loop has done what there was to do."""

    # What it is asked.

    def may_trace(self) -> bool:
        """Return whether what ``traced`` told before has been taken."""

    def over(self) -> bool:
        """Return whether all ranks have ended, and no other one will be started."""

    def deadline(self) -> Optional[float]:
        """Return when the loop is to turn at the latest."""

    def others(self) -> Handlers:
        """Return what else to wait for: by descriptor, the events of poll(2), and what to do then."""
