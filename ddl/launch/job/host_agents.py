"""The agents of a job's hosts, on ddlrun's side: here they are started, told and heard.

They speak over the store's server (control.py), which has its own thread. It puts what they say into a queue, and wakes
the loop of ddlrun.
"""

from __future__ import annotations

import collections
import contextlib
import secrets
import select
import socket
from functools import partial
from typing import Callable, Deque, Dict, Iterator, List, Optional, Tuple

from ddl import clock
from ddl.launch.agent.control import Entrance, Invitation
from ddl.launch.agent.guard import Guard
from ddl.launch.agent.loop import Handlers, drain
from ddl.launch.agent.output import BACKLOG_LIMIT, Sink, Stream
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.hosts import bare_name
from ddl.launch.job.cluster_host import ClusterHost
from ddl.launch.job.launches import Launches
from ddl.launch.launchers import Start
from ddl.net.address import format_address, parse_address
from ddl.net.encryption import can_encrypt
from ddl.net.interfaces import addresses_towards
from ddl.store.messages import Message
from ddl.store.server import StoreServer

__all__ = ["HostAgents"]


class HostAgents:
    """All of one job. Used by the main thread, but for ``from_agent``.

    ``entrance``: where agents that nobody here starts find us. ``sinks`` are where the job's output and errors go.
    """

    server: StoreServer  #: over which they speak, from when there is one

    def __init__(self, config: RunConfig, entrance: Optional[Entrance], sinks: Tuple[Sink, Sink]) -> None:
        self._config = config
        self._sinks = sinks
        self._launches = Launches(sinks[1])
        self._news: Deque[Tuple[int, Message]] = collections.deque()  # from the server's thread
        self.entrance = entrance
        self.secret = secrets.token_bytes(32) if entrance is None else entrance.secret
        self.hosts: List[ClusterHost] = []  #: by their numbers
        self._can_encrypt = can_encrypt(config.settings.openssl)

    def open(self) -> None:
        """Get ready to hear them; after the guard has been made, which would keep our sockets."""
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)

    def end_launches(self) -> None:
        """Give what has started them a moment to end, then end it."""
        self._launches.close()

    def close(self) -> None:
        """Hear nobody any more."""
        self._reader.close()
        self._writer.close()

    # --- what they are told ---

    @property
    def start_timeout(self) -> float:
        """Seconds that hosts have to come."""
        return self._config.settings.start_timeout

    def invitation(self, addresses: Tuple[str, ...], host: Optional[int]) -> Invitation:
        """Return what the agent of ``host`` has to know (None: the launcher's variables tell it which host it is)."""
        settings = self._config.settings
        patience, openssl = settings.start_timeout, settings.openssl
        return Invitation(self.secret, addresses, host, patience, settings.encrypt, self._can_encrypt, openssl)

    def launch(self, start: Start, guard: Optional[Guard]) -> None:
        """Start agents. ``guard`` ends what starts them if ddlrun is killed."""
        _, port = parse_address(self.server.address)
        # With an entrance, the others know where we are, and their names may not be known yet.
        others = [host.name for host in self.hosts] if self.entrance is None else []
        names = [self.hosts[number].name for number in start.hosts]
        own = addresses_towards([bare_name(name) for name in (*names, *others)])
        known = tuple(format_address(address, port) for address in own)
        self._launches.begin(start, self.invitation(known, start.host), guard)

    def post(self, host: int, message: Message) -> None:
        """Send a message to the agent of a host."""
        self.server.post(host, message)

    def post_all(self, message: Callable[[ClusterHost], Message]) -> None:
        """Send each host's agent the message that is made for it."""
        for host in self.hosts:
            self.post(host.number, message(host))

    def confirm_output(self) -> None:
        """Tell agents what has been passed on, unless nobody takes it from us fast enough."""
        for host in self.hosts:
            for stream, sink in enumerate(self._sinks, 1):
                if host.unasked[stream] and sink.backlog < BACKLOG_LIMIT:
                    self.post(host.number, {"type": "took", "stream": stream, "bytes": host.unasked[stream]})
                    host.unasked[stream] = 0

    # --- what they say ---

    def from_agent(self, host: int, message: Message) -> None:
        """Take what an agent says, or what is said in its place. Called in the server's thread."""
        message["received"] = clock.now()
        self._news.append((host, message))
        with contextlib.suppress(OSError):  # full: the loop will wake anyhow; closed: nobody wants to know any more
            self._writer.send(b"x", socket.MSG_DONTWAIT)

    def has_problem(self, host: ClusterHost, text: str) -> None:
        """Let ``news`` tell that a host cannot take part, as if its agent had said so."""
        self._news.append((host.number, {"type": "problem", "text": text}))

    def handlers(self) -> Handlers:
        """Return what to wait for."""
        handlers: Dict[int, Tuple[int, Callable[[], None]]] = {self._reader.fileno(): (select.POLLIN, lambda: None)}
        for stream in self._launches.reading:
            handlers[stream.fileno()] = (select.POLLIN, partial(self._pump, stream))
        return handlers

    def _pump(self, stream: Stream) -> None:
        if not stream.pump():
            self._launches.reading.remove(stream)

    def news(self) -> Iterator[Tuple[ClusterHost, Message]]:
        """Yield what has come."""
        drain(self._reader)
        while self._news:
            host, message = self._news.popleft()
            yield self.hosts[host], message

    def never_called(self) -> Iterator[Tuple[ClusterHost, str]]:
        """Yield the hosts of which the launch has ended since the last look before their agents called; and how.

        One whose agent has called may still have things to say: its connection tells when it is gone.
        """
        for start, last in self._launches.ended():
            for host in (self.hosts[number] for number in start.hosts):
                if not host.said and not host.over:
                    yield host, last
