"""A process of a simulated job: it can be stopped for a while, and it can end anywhere, also between two messages.

While it is stopped, what comes waits; afterwards it takes what came over each channel in order, and channels in any
order. Its clock has an offset and a rate of its own, as clocks of hosts do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

if TYPE_CHECKING:
    from ddl.store.messages import Message
    from tests.simulation.network import End
    from tests.simulation.world import World

__all__ = ["Crashed", "SimProcess"]


class Crashed(Exception):
    """The process that runs ends here."""


class SimProcess:
    """A process called ``name`` on ``host``. Ranks have a class of their own (rank.py)."""

    def __init__(self, world: World, name: str, host: int) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.alive = True
        self.leaves = False  #: its program ends, as it should
        self.touched = False  #: a fault has concerned it
        self.ends: List[End] = []
        self.sent = 0
        self.resumes_at = 0.0
        self.resumed_at = -1e6  #: when it was stopped last, the end of that
        self.resuming = False  #: it has been stopped, and reads what has come
        self._queue: List[Tuple[str, Callable[..., None], Tuple[Any, ...]]] = []
        self._offset = world.chance.between(0.0, 1000.0, "offset " + name)
        self._rate = world.chance.between(0.9995, 1.0005, "rate " + name)

    def clock(self) -> float:
        """Return the time as this process reads it."""
        return self._offset + self.world.now * self._rate

    def moment(self, clock: float) -> float:
        """Return the second of the run at which this process reads ``clock``."""
        return (clock - self._offset) / self._rate

    def run(self, channel: str, action: Callable[..., None], *args: Any) -> None:
        """Let the process do something, as soon as it is not stopped."""
        if not self.alive:
            return
        if self.world.now < self.resumes_at:
            self._queue.append((channel, action, args))
            return
        try:
            action(*args)
        except Crashed:
            self.crash()

    def pause(self, seconds: float) -> None:
        """Stop the process for a while."""
        self.touched = True
        self.resumes_at = max(self.resumes_at, self.world.now + seconds)
        self.world.at(self.resumes_at, self.resume)

    def resume(self) -> None:
        """Go on, if it is time to."""
        if self.world.now < self.resumes_at or not self.alive:
            return
        queue, self._queue = self._queue, []
        self.resumed_at = self.world.now
        channels: Dict[str, List[Tuple[Callable[..., None], Tuple[Any, ...]]]] = {}
        for channel, action, args in queue:
            channels.setdefault(channel, []).append((action, args))
        chance = self.world.chance
        clocks = [name for name in channels if name.startswith("clock")]  # as in a loop that reads, and then looks
        others = [name for name in channels if not name.startswith("clock")]
        others.sort(key=lambda name: chance.at(f"resume {self.name} {self.world.now} {name}"))
        self.resuming = True
        for channel in [*others, *clocks]:
            self.resuming = channel in others
            for action, args in channels[channel]:
                self.run(channel, action, *args)
        self.resuming = False
        self.run("clock", self.look_at_clock)

    def look_at_clock(self) -> None:
        """Do what has become due while the process was stopped."""
        for store in self.world.stores:
            if store.process is self and store.open:
                store.turn()

    def say(self, end: End, message: Message) -> None:
        """Send ``message``. A fault may end or stop the process before or after it."""
        self.sending(message, False)
        end.send(self.world, message)
        self.sending(message, True)

    def sending(self, message: Message, sent: bool) -> None:
        """Let a fault see what is sent."""
        self.sent += 1
        for watcher in self.world.on_send:
            watcher(self, message, sent)

    def crash(self) -> None:
        """End at once: the kernel closes the connections, unless the host is off."""
        if not self.alive:
            return
        self.world.note(self.name, "ends")
        if self.host not in self.world.network.off:
            for end in self.ends:
                end.close(self.world)
        self.alive = False
        self._queue = []
        for store in self.world.stores:
            if store.process is self:
                store.open = False
        self.has_ended()

    def has_ended(self) -> None:
        """What follows from the end."""
