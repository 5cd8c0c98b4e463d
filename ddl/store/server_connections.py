"""The connections of the store's server: which rank or agent is at the other end, and the frames in both directions.

Everything here runs in the server's thread. A ``ServerConnections`` knows claims, but not their meaning: server.py
decides which claims are allowed, and receives the messages.
"""

from __future__ import annotations

import abc
import logging
import selectors
import socket
from typing import Callable, Dict, Optional, Tuple

from ddl import clock
from ddl.errors import Error, ProtocolError
from ddl.net.address import EVERYWHERE, format_address, listen, notice_silence, silent_for
from ddl.net.auth import encode_frame, name_of
from ddl.net.interfaces import networks
from ddl.net.newcomers import Complaints, Door
from ddl.net.shortage import Shortage
from ddl.store.messages import Message
from ddl.store.server_connection import Claim, Connection
from ddl.store.session import broken, close_way

__all__ = ["HELLO_SECONDS", "ServerConnections"]

log = logging.getLogger("ddl")

HELLO_SECONDS = 5.0  #: a connection that knows the secret but has not said who it is by then is cut


class ServerConnections(abc.ABC):
    """Listens at ``host`` and ``port``, and has one selector loop. What is to be decided is up to a subclass."""

    def __init__(self, secret: bytes, host: str, port: int, encrypt: bool, host_timeout: float) -> None:
        self._host_timeout = host_timeout
        self._claims: Dict[Tuple[str, int], Claim] = {}
        self._nameless: Dict[Connection, None] = {}  # they have proved the secret but not said hello; by age
        self._shortage = Shortage("no rank can join the store")
        listener = listen(host, port)
        name = listener.getsockname()
        self.address = format_address(*name[:2])
        self._everywhere = name[0] in (EVERYWHERE, "0.0.0.0")
        self._selector = selectors.DefaultSelector()  # the data of a key: a connection, or a function to be called
        complaints = Complaints("the job's store", self._shortage)
        self._door = Door(listener, secret, self._selector, complaints, self._welcome, encrypt=encrypt)

    # What a subclass decides.

    @abc.abstractmethod
    def _claim_problem(self, role: str, rank: int) -> str:
        """Return why a connection that has said hello may not have this claim; "": it may."""

    @abc.abstractmethod
    def _welcome_fields(self, claim: Claim) -> Message:
        """Return what every owner of a claim is told; ``watched``: whether it breaks when the host is silent."""

    @abc.abstractmethod
    def _came(self, claim: Claim) -> None:
        """Somebody has a claim, and has been welcomed."""

    @abc.abstractmethod
    def _heard(self, claim: Claim, message: Message) -> None:
        """The claim's owner said something. ProtocolError if it makes no sense."""

    @abc.abstractmethod
    def _gone(self, claim: Claim, reason: str, silent: float) -> None:
        """Nobody has this claim any more; its host had not answered for ``silent`` seconds."""

    # What a subclass uses.

    def _turn(self, patience: Optional[float]) -> None:
        """Wait for something to do, at most ``patience`` seconds, and do it."""
        for key, events in self._selector.select(patience):
            if isinstance(key.data, Connection):
                self._serve(key.data, events)
            else:
                self._call(key.data)
        self._call(self._door.tick)
        now = clock.now()
        for connection in [c for c in self._nameless if now - c.born >= HELLO_SECONDS]:
            self._drop(connection)

    def _next_deadline(self) -> float:
        """Return when ``_turn`` has something to do at the latest."""
        deadline = clock.now() + self._door.patience()
        return min(deadline, next(iter(self._nameless)).born + HELLO_SECONDS) if self._nameless else deadline

    def _release(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Connection):
                key.data.sock.close()
        self._selector.close()
        self._door.close()

    def _tell(self, role: str, rank: int, frame: bytes) -> None:
        """Send to the owner of this claim, if there is one."""
        claim = self._claims.get((role, rank))
        if claim is not None:
            if role != "store":  # which has one way only
                claim.session.keep(frame)
            self._send_all_ways(claim, frame)

    def _send_all_ways(self, claim: Claim, frame: bytes) -> None:
        for way in list(claim.ways):
            try:
                self._send(way, frame)
            except OSError as error:
                self._drop(way, broken(error))

    def _send(self, connection: Connection, data: bytes) -> None:
        if data and not connection.closed:
            connection.send(data)
            self._sent(connection)

    def _sent(self, connection: Connection) -> None:
        """Something has been sent: find out whether there is more."""
        if connection.closing and not connection.unsent:
            self._drop(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.sock, events, connection)

    def _look_at(self, claim: Claim) -> bool:
        """Read what has come from the owner of this claim. Return whether anything has: it may have hung up."""
        return any([self._serve(way, selectors.EVENT_READ) for way in list(claim.ways)])

    # --- connections ---

    def _call(self, action: Callable[[], None]) -> None:
        """Do something that a newcomer can make fail: that concerns nobody else."""
        try:
            action()
        except (OSError, Error) as error:
            if not self._shortage.met(error):
                log.debug("the job's store: %s", error)

    def _welcome(self, sock: socket.socket) -> None:
        """Take over a connection that has proved the secret at the door."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(sock, name_of(sock))
        self._nameless[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection, events: int) -> bool:
        """Do what a connection is ready for; return whether anything could be read."""
        try:
            if events & selectors.EVENT_WRITE and not connection.closed:
                connection.flush()
                self._sent(connection)
            if events & selectors.EVENT_READ and not connection.closed:
                return self._read(connection)
        except OSError as error:
            self._drop(connection, broken(error))
        except ProtocolError as error:
            self._end(connection, f"it broke the store's protocol: {error}")
        return False

    def _read(self, connection: Connection) -> bool:
        try:
            data = connection.sock.recv(1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._end(connection)
        else:
            for message in connection.reader.feed(data):
                if not connection.closed and not connection.closing:
                    self._handle(connection, message)
        return True

    def _handle(self, connection: Connection, message: Message) -> None:
        claim = connection.claim
        if claim is None:
            self._hello(connection, message)
            return
        if claim.role == "store":  # which has one way only
            self._heard(claim, message)
            return
        news = claim.session.take(connection, message)
        confirmation = claim.session.confirmation()
        if confirmation is not None:
            self._send_all_ways(claim, encode_frame(confirmation))
        if news is not None:
            self._heard(claim, news)

    def _hello(self, connection: Connection, message: Message) -> None:
        role, rank = message.get("role"), message.get("rank")
        if role not in ("store", "watch", "agent") or type(rank) is not int:
            raise ProtocolError(f"{connection.peer} did not say hello")
        if "token" in message:
            self._join(connection, self._claims.get((role, rank)), message)
            return
        problem = self._claim_problem(role, rank)
        if problem:
            self._refuse(connection, problem)
            return
        claim = self._claims[role, rank] = Claim(role, rank, str(message.get("host", "")))
        self._belongs(connection, claim)
        welcome = {**self._welcome_fields(claim), "host_timeout": self._host_timeout, "token": claim.token}
        if welcome["watched"]:
            notice_silence(connection.sock, self._host_timeout)
        everywhere = role != "store" and self._everywhere
        self._send(connection, encode_frame({**welcome, "networks": networks() if everywhere else {}}))
        self._came(claim)

    def _join(self, connection: Connection, claim: Optional[Claim], message: Message) -> None:
        """The owner of a claim opens a further way."""
        if claim is None or message["token"] != claim.token:
            self._refuse(connection, "the store takes it for gone")
            return
        lacking = claim.session.lacking(message.get("got"))
        connection.heard = claim.session.got
        self._belongs(connection, claim)
        for way in claim.ways:
            notice_silence(way.sock, self._host_timeout)  # or a network that is gone would not be missed
        self._send(connection, encode_frame({**self._welcome_fields(claim), "got": connection.heard}))
        for frame in lacking:  # each in a record of its own: the owner reads the welcome, and then waits for more
            self._send(connection, frame)

    def _refuse(self, connection: Connection, problem: str) -> None:
        connection.closing = True
        self._send(connection, encode_frame({"error": problem}))

    def _belongs(self, connection: Connection, claim: Claim) -> None:
        del self._nameless[connection]
        connection.claim = claim
        connection.peer = f"rank {claim.rank}" if claim.role != "agent" else f"the agent of host {claim.rank}"
        claim.ways[connection] = None

    def _end(self, connection: Connection, reason: str = "") -> None:
        """The process at the other end has closed its connection, or must not go on: its other ways end, too."""
        ways = list(connection.claim.ways) if connection.claim is not None else []
        for way in [*ways, connection]:
            self._drop(way, reason)

    def _drop(self, connection: Connection, reason: str = "") -> None:
        if connection.closed:
            return
        connection.closed = True
        self._selector.unregister(connection.sock)
        self._nameless.pop(connection, None)
        claim = connection.claim
        if claim is not None:
            del claim.ways[connection]
        silent = silent_for(connection.sock)
        close_way(connection.sock, last=claim is None or not claim.ways)
        if claim is None or claim.ways:
            return
        del self._claims[claim.role, claim.rank]
        self._gone(claim, reason, silent)
