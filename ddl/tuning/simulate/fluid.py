"""Virtual time: timers, and flows of bytes that share resources as TCP connections do, max-min fairly.

All active flows get as much as each other, until a resource is used up; what others can use beyond that, they get
(progressive filling; Bertsekas and Gallager, Data Networks, 6.5.2). A resource may be a token bucket: while it has
tokens it carries more than its rate. Whoever wants the same at the same time gets the same at the same time, whatever
the order of calls: that is what lets ``symmetry`` simulate one rank for many. No wall clock, no random numbers, no I/O.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Callable, Dict, List, Tuple

from ddl.errors import InvalidState

__all__ = ["Fluid", "Needs"]

#: (number of a resource, units of it for each byte), for each resource that a flow needs.
Needs = Tuple[Tuple[int, float], ...]

_SAME = 1e-12  # seconds: what happens within it happens at once; rounding tells apart what symmetry makes equal
_SOME_TOKENS = 1 / 64  # of a bucket: with less it counts as empty, so that its rate does not flicker


@dataclass
class _Resource:
    rate: float
    burst: float
    burst_rate: float
    tokens: float
    used: float = 0.0  # units per second, now

    @property
    def room(self) -> float:
        return self.burst_rate if self.burst > 0 and self.tokens > self.burst * _SOME_TOKENS else self.rate

    def empty_in(self) -> float:
        """Return the seconds until there are no tokens left, if that changes anything."""
        if self.used <= self.rate or self.room == self.rate:
            return inf
        return self.tokens / (self.used - self.rate)


class _Flow:
    __slots__ = ("done", "left", "needs", "rate")

    def __init__(self, needs: Needs, left: float, done: Callable[[], None]) -> None:
        self.needs, self.left, self.done = needs, left, done
        self.rate = 0.0


class Fluid:
    """The clock and what moves. ``now`` is in seconds; ``events`` counts the flows and timers that have ended."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._resources: List[_Resource] = []
        self._timers: List[Tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._flows: List[_Flow] = []
        self._changed = False
        self._buckets: List[_Resource] = []

    def resource(self, rate: float, burst: float = 0.0, burst_rate: float = inf) -> int:
        """Add a resource of ``rate`` units per second, with a bucket of ``burst`` units; return its number."""
        resource = _Resource(rate, burst, max(rate, burst_rate), burst)
        self._resources.append(resource)
        if burst > 0:
            self._buckets.append(resource)
        return len(self._resources) - 1

    def after(self, seconds: float, done: Callable[[], None]) -> None:
        """Call ``done`` so much later."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), done))

    def flow(self, amount: float, needs: Needs, done: Callable[[], None]) -> None:
        """Move ``amount`` bytes that take ``needs``; then call ``done``."""
        if amount <= 0 or not needs:
            self.after(0.0, done)
            return
        self._flows.append(_Flow(needs, amount, done))
        self._changed = True

    def run(self) -> None:
        """Go on until nothing moves and no timer is left."""
        while self._flows or self._timers:
            if self._changed:
                self._share()
                self._changed = False
            ahead = min((flow.left / flow.rate for flow in self._flows), default=inf)
            if self._timers:
                ahead = min(ahead, self._timers[0][0] - self.now)
            for bucket in self._buckets:
                ahead = min(ahead, bucket.empty_in())
            self._advance(max(0.0, ahead))

    def _advance(self, seconds: float) -> None:
        self.now += seconds
        for bucket in self._buckets:
            had = bucket.room
            bucket.tokens = min(bucket.burst, max(0.0, bucket.tokens + (bucket.rate - bucket.used) * seconds))
            self._changed |= bucket.room != had
        ended: List[Callable[[], None]] = []
        going: List[_Flow] = []
        for flow in self._flows:
            flow.left -= flow.rate * seconds
            if flow.left <= flow.rate * _SAME:
                ended.append(flow.done)
            else:
                going.append(flow)
        if ended:
            self._flows = going
            self._changed = True
        while self._timers and self._timers[0][0] <= self.now + _SAME:
            ended.append(heapq.heappop(self._timers)[2])
        self.events += len(ended)
        for done in ended:
            done()

    def _share(self) -> None:
        """Set all flows' rates: fill all alike, fix those of the resource that is full first, go on with the rest."""
        alike: Dict[Needs, List[_Flow]] = {}
        for flow in self._flows:
            alike.setdefault(flow.needs, []).append(flow)
        load: Dict[int, float] = {}  # of those that are not fixed
        users: Dict[int, List[Needs]] = {}
        for needs, flows in alike.items():
            for number, weight in needs:
                load[number] = load.get(number, 0.0) + weight * len(flows)
                users.setdefault(number, []).append(needs)
        open_users = {number: len(those) for number, those in users.items()}
        room = {number: self._resources[number].room for number in load}
        for bucket in self._buckets:
            bucket.used = 0.0
        while alike:
            full = min(load, key=lambda number: room[number] / load[number])
            rate = room[full] / load[full]
            if rate == inf:
                raise InvalidState("simulate: nothing limits a message: give the bandwidth that a burst has")
            for needs in users[full]:
                flows = alike.pop(needs, [])
                for flow in flows:
                    flow.rate = rate
                for number, weight in needs if flows else ():
                    part = weight * len(flows)
                    self._resources[number].used += part * rate
                    room[number] = max(0.0, room[number] - part * rate)
                    load[number] -= part
                    open_users[number] -= 1
                    if open_users[number] == 0:
                        del load[number]
