"""The driver of an elastic job in an engine: which ranks there are and where, as ddlrun decides it.

An engine starts and ends processes, and knows its hosts; docs/elastic.md has what ranks do when others come and go. The
job's store is in the driver. A process is called by a number that is never used twice in a job.
"""

from __future__ import annotations

import os
import secrets
import signal
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Protocol, Tuple

from ddl.bootstrap.environ import Identity, Settings
from ddl.errors import InternalError, RankFailed
from ddl.launch.agent.failures import Exit
from ddl.launch.agent.rank_environ import ELASTIC, newcomer
from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.ask.hosts import Host
from ddl.launch.job.elastic_course import ElasticCourse
from ddl.launch.job.elastic_events import HostsSeen, StartProcess
from ddl.launch.job.elastic_store import elastic_store, leave, lost
from ddl.net.address import EVERYWHERE, format_address, parse_address
from ddl.net.encryption import prepare_encryption
from ddl.store.server import StoreServer

__all__ = ["ElasticDriver", "EngineProcesses"]


class EngineProcesses(Protocol):
    """What an engine does with processes. No method blocks."""

    def start(self, number: int, host: str, environ: Dict[str, str]) -> None:
        """Start process ``number`` on a host: it sets these variables, calls ``ddl.init()``, and runs the program."""

    def end(self, number: int) -> None:
        """End a process that does not leave, or is not wanted any more."""

    def tell(self, text: str) -> None:
        """Show the user a line."""


@dataclass(frozen=True)
class _ProcessEnd(Exit):
    """How a process has ended, in the engine's words."""

    how: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}) has ended: {self.how}"


class ElasticDriver:
    """Used by one thread, which tells it what happens, and calls ``look`` again and again until it returns False.

    The job begins when hosts have room for ``least`` ranks, and uses all room up to ``most`` (None: all). With fewer
    ranks than ``least`` it waits ``timeout`` seconds for more. ``address``: of this host, by which ranks reach it.
    All is encrypted if DDL_ENCRYPT says so here.
    ``reset_limit``, ``cooldown_range``: as in ``ddlrun``; None: none.
    """

    def __init__(
        self,
        processes: EngineProcesses,
        address: str,
        least: int,
        most: Optional[int],
        timeout: float,
        reset_limit: Optional[int] = None,
        cooldown_range: Optional[Tuple[float, float]] = None,
    ) -> None:
        self._processes, self._address, self._secret = processes, address, secrets.token_bytes(32)
        self._settings = Settings.from_environ(os.environ)
        prepare_encryption(self._settings.encrypt, self._settings.openssl)
        self._options = ElasticOptions(
            least,
            most,
            timeout=timeout,
            discovery_script="the engine",  # not run here: it means that hosts may come
            reset_limit=reset_limit,
            cooldown_range=cooldown_range,
        )
        self._course = ElasticCourse(self._options, least, self)
        self._store: Optional[StoreServer] = None
        self._first: List[StartProcess] = []
        self._running: Dict[int, str] = {}  # processes, each with its host

    def see(self, slots: Mapping[str, int]) -> None:
        """These are all hosts of now, each with how many ranks it has room for."""
        self._course.post(HostsSeen(tuple(Host(name, count) for name, count in slots.items())))

    def ended(self, number: int, how: str, *, well: bool) -> None:
        """A process has ended; ``well``: its program came to its end. ``how`` is for people."""
        host = self._running.pop(number)
        if self._store is not None and not well:
            lost(self._store, number, how)
        self._course.process_ended(_ProcessEnd(number, 0, 0 if well else 1, 0, host=host, how=how))

    def look(self) -> bool:
        """Do what is to be done now; return whether the job goes on."""
        self._course.look()
        if self._first and self._store is None:
            self._begin()
        return not self._course.over

    def failure(self) -> Optional[RankFailed]:
        """Return why the job has failed; None if it has not. ``rank`` is the number of a process, or -1."""
        failed = self._course.failure()
        texts = [self._course.problem, "" if failed is None else str(failed)]
        why = "; ".join(text for text in texts if text)
        return RankFailed(-1 if failed is None else failed.rank, why) if why else None

    def close(self) -> None:
        """End all processes, and the store."""
        self.give_up()
        self._course.close()
        if self._store is not None:
            self._store.close()

    def _begin(self) -> None:
        size, hosts = len(self._first), list(dict.fromkeys(order.host for order in self._first))
        self._store = elastic_store(
            self._secret, size, self._options, self._course.post, settings=self._settings, host=EVERYWHERE
        )
        self._store.start()
        for order in self._first:
            here = [other.incarnation for other in self._first if other.host == order.host]
            place = (here.index(order.incarnation), len(here), hosts.index(order.host), len(hosts))
            self._start(order, Identity(order.incarnation, size, *place, self._reach, self._secret), {})

    @property
    def _reach(self) -> str:
        assert self._store is not None
        return format_address(self._address, parse_address(self._store.address)[1])

    def _start(self, order: StartProcess, identity: Identity, more: Dict[str, str]) -> None:
        self._running[order.incarnation] = order.host
        encrypt = {"DDL_ENCRYPT": "1"} if self._settings.encrypt else {}
        self._processes.start(order.incarnation, order.host, {**identity.to_environ(), ELASTIC: "1", **encrypt, **more})

    # --- ElasticRanks ---

    def start_process(self, order: StartProcess) -> None:
        """Start a process, or keep it until it is known with how many the job begins."""
        if self._store is None:
            self._first.append(order)
            return
        number, place = order.incarnation, (order.slot, order.slots, 0, 1)
        identity = Identity(number, number + 1, *place, self._reach, self._secret)
        self._start(order, identity, newcomer(identity))
        self.tell(f"rank {number} was started on host {order.host}")

    def let_go(self, incarnation: int) -> None:
        """Let a process leave after its step."""
        if self._store is not None:
            leave(self._store, incarnation)

    def signal_process(self, incarnation: int, number: int) -> None:
        """End a process, when it has had the time to leave: engines have one way to end it."""
        if number == signal.SIGKILL and incarnation in self._running:
            self._processes.end(incarnation)

    def renew_host(self, name: str) -> None:
        """Never ordered: no host of these options is one that returns."""
        raise InternalError(f"host {name} was to end for a new one, but an engine's hosts come by themselves")

    def give_up(self) -> None:
        """End all processes."""
        for number in self._running:
            self._processes.end(number)

    def tell(self, text: str) -> None:
        """Show the user a line."""
        self._processes.tell(text)
