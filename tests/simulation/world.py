"""A simulated job in one thread: the clock, the processes on their hosts, and what goes wrong.

Everything that happens is an event at a time; events of one time happen in the order in which they were made. Chance
goes by names (chance.py), so a run depends on its schedule only. ``digest`` is a hash over all that was said.
"""

from __future__ import annotations

import collections
import hashlib
import heapq
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddl.store.membership.limits import ElasticLimits
from ddl.store.membership.membership import Membership
from ddl.store.membership.records import FIRST_BALLOT, GenerationRecord, first_record
from ddl.store.messages import Message
from tests.simulation.chance import Chance
from tests.simulation.checker import Checker, Violation
from tests.simulation.collective import Collectives
from tests.simulation.faults import Schedule
from tests.simulation.network import Network
from tests.simulation.process import SimProcess
from tests.simulation.rank import SimRank
from tests.simulation.sim_store import SimStore

__all__ = ["MOST_EVENTS", "World"]

MOST_EVENTS = 100_000  #: of a run: more of them is somebody who is busy with nothing
_CALL_SECONDS = 2.0  # that a member tries to reach another one


class World:
    """One run of ``schedule``."""

    def __init__(self, schedule: Schedule, *, trace: bool = False) -> None:
        self.schedule = schedule
        self.now = 0.0
        self.events = 0
        self.chance = Chance(schedule.seed)
        self.counts: Dict[str, int] = collections.Counter()  #: how often something rare has happened
        self.trace: Optional[List[str]] = [] if trace else None
        self.host_count = len(schedule.ranks_of_hosts)
        self.limits = ElasticLimits(schedule.min_size, schedule.patience, schedule.script_patience)
        self.network = Network(self)
        self.checker = Checker(self)
        self.collectives = Collectives(self)
        self.ranks: Dict[int, SimRank] = {}  #: all processes of ranks that there ever were
        self.stores: List[SimStore] = []  #: all stores that there ever were
        self.on_send: List[Callable[[SimProcess, Message, bool], None]] = []
        #: Nothing goes wrong but that ranks come and go: whoever leaves can say so in time.
        self.is_quiet = {fault.kind for fault in schedule.faults} <= {"join", "remove", "goodbye"}
        self._hash = hashlib.blake2b(digest_size=16)
        self._heap: List[Tuple[float, int, Callable[..., None], Tuple[Any, ...]]] = []
        self._scheduled = 0
        self._calls = 0
        self.healed_at: Optional[float] = None
        self._begin()

    def _begin(self) -> None:
        hosts = [host for host, count in enumerate(self.schedule.ranks_of_hosts) for _ in range(count)]
        record = first_record(len(hosts), witness=self.schedule.witness)
        self.checker.begin(record)
        self.launcher = SimProcess(self, "ddlrun", 0)
        for incarnation, host in enumerate(hosts):
            self.ranks[incarnation] = SimRank(self, incarnation, host, record)
        owner = self.launcher if self.schedule.witness else self.ranks[0]
        store = SimStore(self, owner, Membership(record, self.limits, now=owner.clock()), FIRST_BALLOT)
        for rank in self.ranks.values():
            rank.start(store)
        self.at(1.0, self._look)

    def _look(self) -> None:
        self.checker.look()
        self.at(self.now + 1.0, self._look)

    # --- time ---

    def at(self, time: float, action: Callable[..., None], *args: Any) -> None:
        """Let ``action`` happen at second ``time``."""
        self._scheduled += 1
        heapq.heappush(self._heap, (max(time, self.now), self._scheduled, action, args))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let happen what happens before second ``until``, or before something is ``done``."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action, args = heapq.heappop(self._heap)
            self.events += 1
            if self.events > MOST_EVENTS:
                raise Violation("5 every wait ends", "somebody is busy with nothing")
            action(*args)
            if self.events % 16 == 0 and done():
                return
        self.now = until

    def note(self, name: str, text: str) -> None:
        """Take something down that happens."""
        line = f"{self.now:.6f} {name} {text}"
        self._hash.update(line.encode())
        if self.trace is not None:
            self.trace.append(line)

    @property
    def digest(self) -> str:
        """What all that has happened comes to."""
        return self._hash.hexdigest()

    # --- who is there ---

    def alive(self) -> List[SimRank]:
        """Return the processes of ranks that have not ended."""
        return [rank for rank in self.ranks.values() if rank.alive]

    def store(self) -> Optional[SimStore]:
        """Return the latest of the stores that there are."""
        open_ones = [store for store in self.stores if store.open and not store.membership.superseded]
        return max(open_ones, key=lambda store: store.ballot[:2], default=None)

    def join(self, host: int) -> None:
        """Start a process that is to be a member. Its launcher knows a store, perhaps an old one."""
        stores = [store for store in self.stores if store.open and host not in self.network.off]
        if not stores or (self.launcher.host == host and not self.launcher.alive):
            return
        number = max(self.ranks) + 1
        store = stores[
            self.chance.integer(len(stores), f"store of {number}") if self.chance.at(f"{number}") < 0.2 else -1
        ]
        self.counts["somebody wanted to join"] += 1
        rank = self.ranks[number] = SimRank(
            self, number, host, store.membership.record, newcomer=True, store=store.ballot
        )
        # What began before it came concerns it, too: see the injector's _touch_hosts.
        network = self.network
        rank.touched = bool(network.slow or network.off or network.is_partitioned)
        rank.start(store)

    def call(self, sender: SimRank, number: int, message: Message) -> None:
        """A member says something to another one, over a connection of its own."""
        self._calls += 1
        name = f"call {sender.incarnation} {sender.sent} {number}"
        self.at(self.now + 2 * self.delay(sender, number, name), self._called, sender, number, message, name, self.now)

    def delay(self, sender: SimRank, number: int, name: str) -> float:
        """Return how long a message between two ranks takes."""
        host = self.ranks[number].host if number in self.ranks else sender.host
        return self.network.delay(sender.host, host, name)

    def _called(self, sender: SimRank, number: int, message: Message, name: str, began: float) -> None:
        rank = self.ranks.get(number)
        if rank is None or not rank.alive or self.now - began > _CALL_SECONDS:
            return
        if self.network.is_cut(sender.host, rank.host):
            if sender.alive:
                self.at(self.now + 0.2, self._called, sender, number, message, name, began)
            return
        rank.run(name, rank.called, sender.incarnation, message)
        if self.chance.at("twice " + name) < 0.02:  # the first connection broke after it had been read
            rank.run(name + " again", rank.called, sender.incarnation, message)

    # --- what the parts of a run tell one another ---

    def data_closed(self, rank: SimRank) -> None:
        """A rank has closed its data connections: it ends."""
        for other in self.alive():
            if rank.host not in self.network.off and not self.network.is_cut(rank.host, other.host):
                later = self.chance.between(0.001, 0.02, f"data {rank.incarnation} {other.incarnation}")
                lost = other.script.peer_lost
                self.at(self.now + later, other.run, "data", lost, rank.incarnation, "connection reset")

    def ended(self, rank: SimRank) -> None:
        """A process of a rank has ended: who sees it?"""
        number = rank.incarnation
        off = rank.host in self.network.off
        for other in self.alive():
            if other.host == rank.host and number in other.neighbours:
                self.at(
                    self.now + self.chance.between(0.001, 0.005, f"pidfd {number} {other.incarnation}"),
                    self._seen,
                    other,
                    rank,
                )
        self.data_closed(rank)
        if not off and (rank.host == self.launcher.host or not self.network.is_cut(rank.host, self.launcher.host)):
            later = self.chance.between(0.001, 0.006 if rank.host == self.launcher.host else 0.04, f"waitid {number}")
            self.at(self.now + later, self._reaped, number)

    def _seen(self, other: SimRank, rank: SimRank) -> None:
        other.run("pidfd", other.neighbour_ended, rank)

    def _reaped(self, number: int) -> None:
        for store in self.stores:
            if store.open and store.process is self.launcher:
                self.launcher.run(f"watch {number}", store.process_ended, number, "killed")

    def record_of(self, generation: int) -> Optional[GenerationRecord]:
        """Return what was decided as that generation, if it was."""
        return self.checker.decided.get(generation)
