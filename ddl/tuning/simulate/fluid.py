"""Virtual time: timers, and flows of bytes that share resources as TCP connections do, max-min fairly.

All active flows get the same rate until a resource is used up; the flows that do not need it may get more (progressive
filling; Bertsekas and Gallager, Data Networks, 6.5.2). A resource may be a token bucket: while it has tokens it carries
more than its rate. Flows with the same needs at the same time end at the same time, in whichever order they were
added; so ``symmetry`` can simulate one rank for many. No wall clock, no random numbers, no I/O.
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

_SAME = 1e-12  # seconds: events so close together count as simultaneous, because rounding may separate them
_FEWEST_TOKENS = 1 / 64  # of a bucket: with less it counts as empty, so that its rate does not change all the time


@dataclass
class _Resource:
    rate: float
    burst: float
    burst_rate: float
    tokens: float
    used: float = 0.0  # units per second, now

    @property
    def room(self) -> float:
        return self.burst_rate if self.burst > 0 and self.tokens > self.burst * _FEWEST_TOKENS else self.rate

    def empty_in(self) -> float:
        """Return the seconds until the bucket is empty, or ``inf`` if this does not change its rate."""
        if self.used <= self.rate or self.room == self.rate:
            return inf
        return self.tokens / (self.used - self.rate)


class _Flow:
    __slots__ = ("done", "needs", "rate", "remaining")

    def __init__(self, needs: Needs, remaining: float, done: Callable[[], None]) -> None:
        self.needs, self.remaining, self.done = needs, remaining, done  # remaining: bytes
        self.rate = 0.0


class Fluid:
    """The clock, and the flows and timers. ``now`` is in seconds; ``events`` counts those that have ended."""

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
        """Call ``done`` in ``seconds`` seconds of virtual time."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), done))

    def flow(self, amount: float, needs: Needs, done: Callable[[], None]) -> None:
        """Move ``amount`` bytes that take ``needs``; then call ``done``."""
        if amount <= 0 or not needs:
            self.after(0.0, done)
            return
        self._flows.append(_Flow(needs, amount, done))
        self._changed = True

    def run(self) -> None:
        """Advance the clock until all flows and timers have ended."""
        while self._flows or self._timers:
            if self._changed:
                self._share()
                self._changed = False
            ahead = min((flow.remaining / flow.rate for flow in self._flows), default=inf)
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
            flow.remaining -= flow.rate * seconds
            if flow.remaining <= flow.rate * _SAME:
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
        """Set the rates of all flows: raise all together, fix those of the first full resource, and so on."""
        flows_by_needs: Dict[Needs, List[_Flow]] = {}
        for flow in self._flows:
            flows_by_needs.setdefault(flow.needs, []).append(flow)
        load: Dict[int, float] = {}  # by flows whose rate is not yet fixed
        users: Dict[int, List[Needs]] = {}
        for needs, flows in flows_by_needs.items():
            for number, weight in needs:
                load[number] = load.get(number, 0.0) + weight * len(flows)
                users.setdefault(number, []).append(needs)
        open_users = {number: len(those) for number, those in users.items()}
        room = {number: self._resources[number].room for number in load}
        for bucket in self._buckets:
            bucket.used = 0.0
        while flows_by_needs:
            full = min(load, key=lambda number: room[number] / load[number])
            rate = room[full] / load[full]
            if rate == inf:
                raise InvalidState("simulate: a burst has no limit; set its burst_bytes_per_s in the machine's file")
            for needs in users[full]:
                flows = flows_by_needs.pop(needs, [])
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
