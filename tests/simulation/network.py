"""Connections between the processes of a simulated job, as TCP gives them, over hosts that may be cut off.

Within a connection messages come in order, and none is lost unless the connection is. A reset breaks it on both sides,
and each side notices at its own time. A process that ends closes its connections. A host that is off, or behind a
partition, closes nothing: what is sent waits, and both sides give up after the keep-alive time, each on its own.
(Connections for data, which are not here, nobody gives up: collective.py.)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple

from ddl.net.address import HOST_TIMEOUT, apart_after

if TYPE_CHECKING:
    from tests.simulation.process import SimProcess
    from tests.simulation.world import World

__all__ = ["APART", "KEEP_ALIVE", "End", "Network"]

KEEP_ALIVE = HOST_TIMEOUT  #: seconds of silence after which a connection is given up
APART = apart_after(HOST_TIMEOUT)  #: seconds after which two hosts know that they do not hear each other
_KEEP_ALIVE_SPREAD = 0.8  # sides do not notice at the same time


class End:
    """A side of a connection. ``owner`` gets ``arrived(end, message)`` and ``ended(end, why)``."""

    def __init__(self, name: str, process: SimProcess, owner: Any) -> None:
        self.name = name
        self.process = process
        self.owner = owner
        self.number = -9  #: at a store: who is at the other side
        self.open = True
        self.dead = False  #: the connection was reset: nothing arrives any more
        self.gave_up = False  #: this side has taken the connection for broken
        self.peer: End = self
        self._sent = 0
        self._last = 0.0  # when the last message that was sent arrives
        self.waiting: List[Optional[str]] = []  #: what has come as far as a partition

    @property
    def channel(self) -> str:
        """Under which name the process does what concerns this side: that keeps its order."""
        return "net " + self.name

    def send(self, world: World, message: Dict[str, Any]) -> None:
        """Send ``message``; nothing happens on a connection that this side knows to be closed."""
        if self.open:
            self._post(world, json.dumps(message))

    def close(self, world: World) -> None:
        """Close this side; the other one hears of it after what was sent before."""
        if self.open:
            self._post(world, None)
            self.open = False

    def _post(self, world: World, text: Optional[str]) -> None:
        self._sent += 1
        delay = world.network.delay(self.process.host, self.peer.process.host, f"{self.name} {self._sent}")
        self._last = max(self._last + 1e-6, world.now + delay)
        world.at(self._last, self.peer.arrive, world, text)

    def arrive(self, world: World, text: Optional[str]) -> None:
        """A message has come to this side's host; ``None``: the other side has closed."""
        if not self.open or self.dead or not self.process.alive:
            return
        if self.waiting or world.network.is_blocked(self.peer.process.host, self.process.host):
            self.waiting.append(text)
        else:
            self.process.run(self.channel, self._hand, world, text)

    def _hand(self, world: World, text: Optional[str]) -> None:
        if not self.open:
            return
        world.note(self.name, text or "closed")
        if text is None:
            self.open = False
            self.owner.ended(self, "")
        else:
            self.owner.arrived(self, json.loads(text))

    def notice(self, world: World, why: str) -> None:
        """This side finds that the connection is broken."""
        if self.open and self.process.alive:
            self.process.run(self.channel, self._give_up, world, why)

    def _give_up(self, world: World, why: str) -> None:
        if self.open:
            world.note(self.name, why)
            self.open, self.gave_up = False, True
            if not self.dead and not world.network.is_cut(self.process.host, self.peer.process.host):
                world.network.tell_peer(self)  # the network was mended before this side came to it
            self.owner.ended(self, why)


class Network:
    """Hosts, what lies between them, and all connections."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ends: List[End] = []
        self._blocked: Dict[Tuple[int, int], int] = {}  # (from, to) -> how many partitions are in the way
        self._changes = 0
        self._cut_since: Dict[Tuple[int, int], int] = {}  # unordered pair -> number of the change that cut it
        self._apart_from: Dict[Tuple[int, int], float] = {}  # such a pair -> when its hosts know that
        self.off: Set[int] = set()
        self.slow: Dict[int, float] = {}

    def connect(self, name: str, process: SimProcess, owner: Any, other: SimProcess, other_owner: Any) -> End:
        """Make a connection, and return the first side of it."""
        near, far = End(name + ">", process, owner), End(name + "<", other, other_owner)
        near.peer, far.peer = far, near
        self._ends = [end for end in self._ends if end.open or end.peer.open]
        self._ends += [near, far]
        process.ends.append(near)
        other.ends.append(far)
        return near

    def delay(self, host: int, other: int, name: str) -> float:
        """Return how long the message ``name`` takes."""
        luck = self._world.chance.at("delay " + name)
        base = 0.0001 if host == other else 0.0005
        if luck > 0.98:
            base = 0.005 if luck < 0.998 else 0.02  # a crowded machine
        factor = max(self.slow.get(host, 1.0), self.slow.get(other, 1.0))
        return base * (1.0 + 9.0 * self._world.chance.at("more " + name)) * factor

    @property
    def is_whole(self) -> bool:
        """Whether every host reaches every other one."""
        return not self._blocked and not self.off

    @property
    def is_partitioned(self) -> bool:
        """Whether something does not get from a host to another one."""
        return bool(self._blocked)

    def is_blocked(self, host: int, other: int) -> bool:
        """Whether nothing gets from ``host`` to ``other``."""
        return host in self.off or other in self.off or (host, other) in self._blocked

    def is_cut(self, host: int, other: int) -> bool:
        """Whether nothing gets from ``host`` to ``other`` or back: no connection works."""
        return self.is_blocked(host, other) or self.is_blocked(other, host)

    def unheard(self, host: int) -> Set[int]:
        """Return the hosts that ``host`` knows it does not hear."""
        return {other for pair in self.apart() if host in pair for other in pair if other != host}

    def apart(self) -> List[Tuple[int, int]]:
        """Return the pairs of hosts that know that they do not hear each other."""
        return [pair for pair, moment in sorted(self._apart_from.items()) if moment <= self._world.now]

    def block(self, pairs: List[Tuple[int, int]]) -> None:
        """Let nothing through from the first to the second of each pair of hosts."""
        for pair in pairs:
            self._blocked[pair] = self._blocked.get(pair, 0) + 1
        self._watch_cuts()

    def heal(self, pairs: List[Tuple[int, int]]) -> None:
        """Take back a ``block``."""
        for pair in pairs:
            left = self._blocked.get(pair, 0) - 1
            if left > 0:
                self._blocked[pair] = left
            else:
                self._blocked.pop(pair, None)
        self._watch_cuts()

    def heal_all(self, hosts: Set[int]) -> None:
        """Let everything through between ``hosts``, but for those that are off."""
        for pair in sorted(self._blocked):
            if hosts.issuperset(pair):
                del self._blocked[pair]
        self._watch_cuts()

    def quicken(self, host: int) -> None:
        """The host is slow no more."""
        self.slow.pop(host, None)

    def turn_off(self, host: int) -> None:
        """The host loses its power."""
        self.off.add(host)
        self._watch_cuts()

    def reset(self, end: End) -> None:
        """Break a connection: each side notices at its own time."""
        for side in (end, end.peer):
            side.dead = True
            delay = self._world.chance.between(0.0, 0.3, "reset " + side.name)
            self._world.at(self._world.now + delay, side.notice, self._world, "connection reset")

    def _watch_cuts(self) -> None:
        """Begin to count for pairs of hosts that are cut now, and let go what waited where they are not."""
        hosts = range(self._world.host_count)
        self._changes += 1
        for host in hosts:
            for other in range(host + 1, self._world.host_count):
                pair = (host, other)
                if not self.is_cut(host, other):
                    self._apart_from.pop(pair, None)
                    if self._cut_since.pop(pair, None) is not None:
                        self._mended(pair)
                elif pair not in self._cut_since:
                    self._cut_since[pair] = self._changes
                    self._apart_from[pair] = self._world.now + APART
                    self._world.at(self._world.now + KEEP_ALIVE, self._silent, pair, self._changes)
        for end in self._ends:
            if end.waiting and not self.is_blocked(end.peer.process.host, end.process.host):
                waiting, end.waiting = end.waiting, []
                for text in waiting:
                    end.arrive(self._world, text)

    def _silent(self, pair: Tuple[int, int], since: int) -> None:
        """A pair of hosts was cut for the keep-alive time: connections between them are given up."""
        world = self._world
        if self._cut_since.get(pair) != since:
            return
        for end in self._between(pair):
            spread = _KEEP_ALIVE_SPREAD * world.chance.at(f"silent {end.name} {since}")
            world.at(world.now + spread, self._give_up, end, pair, since)

    def _give_up(self, end: End, pair: Tuple[int, int], since: int) -> None:
        if self._cut_since.get(pair) == since:
            end.notice(self._world, "silent")

    def _mended(self, pair: Tuple[int, int]) -> None:
        """Who still believes in a connection that the other side has given up hears so at once."""
        for end in self._between(pair):
            if end.open and not end.peer.open and end.peer.gave_up:
                self.tell_peer(end.peer)

    def tell_peer(self, end: End) -> None:
        """Let the other side hear that ``end`` has given the connection up."""
        end.peer.waiting.clear()  # it was in the buffer of a socket that is no more
        self._world.at(self._world.now + 0.01, end.peer.notice, self._world, "connection reset")

    def _between(self, pair: Tuple[int, int]) -> List[End]:
        return [end for end in self._ends if {end.process.host, end.peer.process.host} == set(pair)]
