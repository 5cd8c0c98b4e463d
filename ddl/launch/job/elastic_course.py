"""The course of an elastic job in ddlrun: it feeds the state machine of elastic_hosts.py, and has its orders done.

What an order does differs between a job on this machine (elastic_local.py) and one on several hosts
(elastic_cluster.py). This class has the rest: the script that names hosts, news from other threads, what the user
reads, and how the job has ended.
"""

from __future__ import annotations

import collections
import contextlib
import random
import select
import signal
import socket
from typing import Callable, Deque, List, Optional, Protocol, Tuple

from ddl import clock
from ddl.launch.agent.failures import Exit
from ddl.launch.agent.guard import Guard
from ddl.launch.agent.loop import Handlers, drain
from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.job.discovery import Discovery
from ddl.launch.job.elastic_events import (
    ElasticEvent,
    ElasticOrder,
    EndProcess,
    HostFailed,
    HostLeaves,
    HostReturned,
    HostsSeen,
    LetGo,
    ProcessEnded,
    RanksFormed,
    RenewHost,
    StartProcess,
    TellUser,
)
from ddl.launch.job.elastic_hosts import ElasticHosts
from ddl.text.units import counted, duration

__all__ = ["ElasticCourse", "ElasticRanks"]

_NEVER_CHANGED = "its ranks have never gone on without one another: does the program use ddl.elastic (docs/elastic.md)?"
_ONE_CAUSE = 1.0  # seconds: ranks that fail so soon after another one may have failed because of it


class ElasticRanks(Protocol):
    """Who starts and ends the processes of an elastic job."""

    def start_process(self, order: StartProcess) -> None:
        """Start a process, now or as soon as its host is there."""

    def let_go(self, incarnation: int) -> None:
        """Let a process leave after its step."""

    def signal_process(self, incarnation: int, number: int) -> None:
        """Send a signal to a process and to what it has started."""

    def renew_host(self, name: str) -> None:
        """Let a host without processes end, so that a new one takes its place."""

    def give_up(self) -> None:
        """End all processes."""

    def tell(self, text: str) -> None:
        """Print a line of ddlrun's own on stderr, behind what the ranks have printed there."""


class ElasticCourse:
    """Used by one thread, but for ``post``."""

    def __init__(self, options: ElasticOptions, size: int, ranks: ElasticRanks) -> None:
        self._options = options
        self._ranks = ranks
        self._machine = ElasticHosts(options, size, random.random, clock.now())
        self._posted: Deque[ElasticEvent] = collections.deque()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._discovery: Optional[Discovery] = None
        self._failures: List[Tuple[float, Exit]] = []
        self._changes: List[float] = []  # seconds of those after which ranks have gone on
        self._cut_off = False  # from a host, of which nothing is known
        self._over = False  # nothing is ordered any more

    def begin(self, guard: Callable[[], Guard]) -> None:
        """Name the hosts, or begin to ask for them. ``guard`` ends a run of the script that outlives ddlrun."""
        if self._options.discovery_script:
            self._discovery = Discovery(
                self._options.discovery_script,
                self._options.slots_per_host,
                lambda pid: guard().add(pid),
                lambda pid: guard().forget(pid),
            )
        else:
            self._handle(HostsSeen(self._options.hosts))

    def close(self) -> None:
        """Order nothing more, and let go of what is open."""
        self._over = True
        if self._discovery is not None:
            self._discovery.close()
        self._reader.close()
        self._writer.close()

    # --- for the loop ---

    @property
    def begun(self) -> bool:
        """Whether the first processes have been ordered."""
        return self._machine.begun

    @property
    def over(self) -> bool:
        """Whether no process is left, and none will come."""
        return self._machine.over

    @property
    def problem(self) -> str:
        """Why the job was given up."""
        problem = self._machine.problem
        all_failed = len(self._failures) > 1 and not self._machine.running
        unprepared = all_failed and not self._changes and not self._cut_off
        return f"{problem}; {_NEVER_CHANGED}" if problem and unprepared else problem

    def handlers(self) -> Handlers:
        """Return what to wait for."""
        own = {self._reader.fileno(): (select.POLLIN, lambda: None)}
        return own if self._discovery is None or self._over else {**own, **self._discovery.handlers()}

    def deadline(self) -> Optional[float]:
        """Return when to call ``look`` at the latest."""
        times = [self._machine.next_deadline(), None if self._discovery is None else self._discovery.deadline()]
        return None if self._over else min((time for time in times if time is not None), default=None)

    def look(self) -> None:
        """Do what is to be done now. Call it in every turn of the loop."""
        drain(self._reader)
        self._take_posted()
        news = None if self._discovery is None or self._over else self._discovery.look(clock.now())
        if news is not None:
            self._handle(news)
        if not self._over:
            self._do(self._machine.tick(clock.now()))

    # --- what has happened ---

    def post(self, event: ElasticEvent) -> None:
        """Take an event from any thread, and wake the loop."""
        self._posted.append(event)
        with contextlib.suppress(OSError):  # full: the loop will wake anyhow; closed: nobody wants to know any more
            self._writer.send(b"x", socket.MSG_DONTWAIT)

    def process_ended(self, entry: Exit) -> None:
        """Take note of the end of a process, unless it counts as lost already."""
        self._take_posted()  # it may have become a rank, or have been left out, before
        if not self._machine.is_there(entry.rank):
            return
        leaving, lost = self._machine.is_leaving(entry.rank), self._machine.lost
        done_without = self._machine.is_done_without(entry.rank)
        rest = self._machine.running_without(entry.rank)
        if leaving or entry.failed:
            why = ", as it was to leave" if leaving else ""
            self._ranks.tell(f"{entry}{why}; {rest} {'rank is' if rest == 1 else 'ranks are'} left")
        self._handle(ProcessEnded(entry.rank, entry.code == 0, str(entry)))
        if self._machine.lost > lost and not done_without:
            self._failures.append((clock.now(), entry))

    def host_failed(self, host: str, why: str) -> None:
        """Nothing is known of a host any more, so its processes count as lost."""
        self._cut_off = True
        self._handle(HostFailed(host, why))

    def host_leaves(self, host: str, why: str) -> None:
        """A host has been asked to end."""
        self._handle(HostLeaves(host, why))

    def host_returned(self, host: str) -> None:
        """A new machine has the place of a host that was lost."""
        self._handle(HostReturned(host))

    def _take_posted(self) -> None:
        while self._posted:
            event = self._posted.popleft()
            if isinstance(event, RanksFormed):
                self._take_generation(event)
            self._handle(event)
            if isinstance(event, RanksFormed) and not self.problem:
                self._failures.clear()  # the others have gone on

    def _take_generation(self, formed: RanksFormed) -> None:
        text = f"generation {formed.generation} has {counted(len(formed.members), 'rank')}"
        if formed.generation > 0:
            self._changes.append(formed.seconds)
            text += f", after a change of {duration(formed.seconds)}"
        self._ranks.tell(text)

    def _handle(self, event: ElasticEvent) -> None:
        if not self._over:
            self._do(self._machine.handle(event, clock.now()))

    def _do(self, orders: List[ElasticOrder]) -> None:
        for order in orders:
            if isinstance(order, StartProcess):
                self._ranks.start_process(order)
            elif isinstance(order, LetGo):
                self._ranks.tell(f"rank {order.incarnation} is to leave: {order.why}")
                self._ranks.let_go(order.incarnation)
            elif isinstance(order, EndProcess):
                self._ranks.signal_process(order.incarnation, signal.SIGKILL if order.force else signal.SIGTERM)
            elif isinstance(order, RenewHost):
                self._ranks.renew_host(order.host)
            elif isinstance(order, TellUser):
                self._ranks.tell(order.text)
            else:
                self._ranks.give_up()

    # --- the end ---

    def failure(self) -> Optional[Exit]:
        """Return the exit that the job's failure began with; None if it has not failed, or not because of a rank.

        That is the first of the last ones: ranks that were lost before and replaced, or done without, do not count.
        """
        failed = self._machine.failed_at_end or (self.problem and self._machine.blamed >= 0)
        if not failed or not self._failures:
            return None
        last = self._failures[-1]
        for earlier in reversed(self._failures):
            if last[0] - earlier[0] > _ONE_CAUSE:
                break
            last = earlier
        return last[1]

    def summary(self) -> str:
        """Return how ranks have come and gone, and how long that took; "" if none has."""
        machine = self._machine
        if not (machine.lost or machine.left or machine.came):
            return ""
        text = (
            f"ranks that were lost: {machine.lost}; that left: {machine.left}; that came: {machine.came}, of which "
            f"{machine.restarts} in place of lost ones"
        )
        if not self._changes:
            return text
        whole, longest = duration(sum(self._changes)), duration(max(self._changes))
        return f"{text}; new generations: {len(self._changes)}, whose changes took {whole}, the longest {longest}"
