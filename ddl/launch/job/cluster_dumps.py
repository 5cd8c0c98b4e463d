"""The dumps of the ranks of all hosts: ddlrun asks their agents for them, and puts the answers together."""

from __future__ import annotations

from typing import Callable, Dict, Iterable, List, Optional, Set

from ddl import clock
from ddl.launch.agent.dumps import DumpPieces
from ddl.launch.job.cluster_host import ClusterHost
from ddl.records.dump import RankDump
from ddl.store.messages import Message

__all__ = ["ClusterDumps"]

_PATIENCE = 5.0  # seconds that hosts have to send the dumps of ranks that run


class ClusterDumps:
    """What has come so far. ``post`` sends a message to the agent of a host, by its number."""

    def __init__(self, post: Callable[[int, Message], None]) -> None:
        self._post = post
        self._pieces: Dict[int, DumpPieces] = {}  # by host
        self._dumps: List[RankDump] = []
        self._asked = False  # for what ranks do now
        self.wanted = False  #: a user waits for that; otherwise no dumps are nothing to tell
        self._awaited: Set[int] = set()  # hosts
        self._until = 0.0

    def ask_now(self, hosts: Iterable[ClusterHost], *, wanted: bool) -> None:
        """Ask for what the ranks do now; ``complete`` says when all is there. ``wanted``: by a user."""
        self.wanted = wanted or (self._asked and self.wanted)
        self._asked, self._dumps, self._awaited = True, [], {host.number for host in hosts}
        self._until = clock.now() + _PATIENCE
        for number in self._awaited:
            self._post(number, {"type": "records", "now": True})

    def ask_at_end(self, hosts: Iterable[ClusterHost]) -> None:
        """Ask for what the ranks have done, when they end or before they are stopped."""
        for host in hosts:
            self._post(host.number, {"type": "records", "now": False})

    def heard(self, host: ClusterHost, message: Message) -> None:
        """A piece of a dump, or ``recorded``, has come from ``host``."""
        if message["type"] == "recorded":
            self._awaited.discard(host.number)
            return
        dump = self._pieces.setdefault(host.number, DumpPieces(host.name)).add(message)
        self._dumps += [] if dump is None else [dump]

    def deadline(self, until: Optional[float]) -> Optional[float]:
        """Return ``until``, or when hosts are waited for no more if that is before."""
        if not self._asked:
            return until
        return self._until if until is None else min(until, self._until)

    def complete(self, hosts: Iterable[ClusterHost]) -> bool:
        """Return whether all have answered that ``ask_now`` has asked, or are late, or are over. True only once."""
        self._awaited -= {host.number for host in hosts if host.over}
        if not self._asked or (self._awaited and clock.now() < self._until):
            return False
        self._asked = False
        return True

    def take(self) -> List[RankDump]:
        """Return what there is, and forget it."""
        dumps, self._dumps = self._dumps, []
        return dumps
