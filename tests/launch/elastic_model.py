"""The world around an ``ElasticHosts``: a clock, and the processes that it has ordered, with what must always hold."""

from __future__ import annotations

from typing import Callable, Dict, List, Set

from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.ask.hosts import Host
from ddl.launch.job.elastic_events import (
    ElasticEvent,
    ElasticOrder,
    EndProcess,
    GiveUp,
    HostFailed,
    HostLeaves,
    HostReturned,
    HostsSeen,
    LetGo,
    ProcessEnded,
    RanksFormed,
    RenewHost,
    StartProcess,
)
from ddl.launch.job.elastic_hosts import ElasticHosts


class ElasticModel:
    """Feeds a machine, does what it orders, and asserts after every event what no history may break."""

    def __init__(self, options: ElasticOptions, size: int, random: Callable[[], float]) -> None:
        self.now = 0.0
        self.machine = ElasticHosts(options, size, random, self.now)
        self.alive: Dict[int, StartProcess] = {}
        self.leaving: List[int] = []
        self.members: Set[int] = set()
        self.lost: Set[str] = set()  #: hosts that get no process until they call
        self._options = options
        self._slots: Dict[str, int] = {}  # by the last list that named a host
        self._started = 0
        self._given_up = False

    def see(self, text: str) -> List[ElasticOrder]:
        """Let the script name hosts: "a:2 b:1"."""
        hosts = tuple(Host(name, int(slots)) for name, _, slots in (word.partition(":") for word in text.split()))
        if hosts:
            self._slots = {host.name: host.slots or 0 for host in hosts}
        return self.handle(HostsSeen(hosts))

    def end(self, incarnation: int, well: bool = False) -> List[ElasticOrder]:
        return self.handle(ProcessEnded(incarnation, well, f"rank {incarnation} has failed"))

    def form(self, generation: int, *members: int) -> List[ElasticOrder]:
        return self.handle(RanksFormed(generation, members))

    def advance(self, seconds: float) -> List[ElasticOrder]:
        self.now += seconds
        return self._obey(self.machine.tick(self.now))

    def handle(self, event: ElasticEvent) -> List[ElasticOrder]:
        at_end = bool(self.machine.problem) or self.machine.finishing
        if isinstance(event, RanksFormed) and not at_end:
            members = self.members
            self.members = set(event.members)
            self.leaving += [n for n in sorted(members - self.members) if n in self.alive and n not in self.leaving]
        if isinstance(event, HostFailed):
            self.lost |= {event.host} & set(self._options.returning)
        elif isinstance(event, HostLeaves) and not at_end:
            self.lost.add(event.host)
        elif isinstance(event, HostReturned) and not at_end:
            self.lost.discard(event.host)
        if isinstance(event, HostFailed) or (isinstance(event, HostReturned) and not at_end):
            self.alive = {number: order for number, order in self.alive.items() if order.host != event.host}
        elif isinstance(event, ProcessEnded):
            self.alive.pop(event.incarnation, None)
        return self._obey(self.machine.handle(event, self.now))

    def _obey(self, orders: List[ElasticOrder]) -> List[ElasticOrder]:
        assert not (orders and self._given_up), "an order after the last one"
        for order in orders:
            if isinstance(order, StartProcess):
                self._check_start(order)
                self.alive[order.incarnation] = order
                self.members |= {order.incarnation} if order.first else set()
            elif isinstance(order, LetGo):
                assert order.incarnation in self.alive and order.incarnation not in self.leaving
                self.leaving.append(order.incarnation)
            elif isinstance(order, EndProcess):
                assert order.incarnation in self.alive and order.incarnation in self.leaving
            elif isinstance(order, RenewHost):
                assert order.host in self._options.returning and order.host not in self.lost
                assert order.host not in {other.host for other in self.alive.values()}
                self.lost.add(order.host)
            elif isinstance(order, GiveUp):
                self._given_up = True
                assert order is orders[-1] and order.why
        self._check()
        return orders

    def _check_start(self, order: StartProcess) -> None:
        assert order.incarnation == self._started, "an incarnation is used once, in order"
        self._started += 1
        assert 0 <= order.slot < order.slots == self._slots[order.host]
        assert order.host not in self.lost
        taken = {(other.host, other.slot) for other in self.alive.values()}
        assert (order.host, order.slot) not in taken, "a slot with two processes"

    def _check(self) -> None:
        machine, options = self.machine, self._options
        staying = [number for number in self.alive if number not in self.leaving]
        assert machine.running == len(staying)
        if options.max_np is not None:
            orders = [self.alive[number] for number in staying]
            without_slot = [o for o in orders if o.slot >= self._slots.get(o.host, 0) or o.host in self.lost]
            extra = 1 if without_slot or options.leave_failed_hosts else 0  # holds the state until another rank does
            assert len(staying) <= options.max_np + extra
        if options.max_restarts is not None:
            assert machine.restarts <= options.max_restarts
        deadline = machine.next_deadline()
        assert deadline is None or deadline > self.now, "a deadline that has passed"
        waits = not machine.begun or len(staying) < options.min_np or any(n in self.alive for n in self.leaving)
        if waits and not machine.problem and not (machine.finishing and not self.alive):
            waits = not machine.finishing or any(n in self.alive for n in self.leaving)
            assert deadline is not None or not waits, "a wait without an end"
