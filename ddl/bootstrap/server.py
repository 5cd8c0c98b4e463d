"""The server of the job's store: keys and values, check-in of all ranks, and the watch connections.

It runs in one daemon thread of its own (in ``ddlrun``), which owns every connection; one selector loop serves them,
so that no stranger, however slow, keeps a rank waiting. A connection goes through three phases: the handshake of
auth.py (at a ``Door``, which bounds what strangers cost, see newcomers.py), one ``hello`` that claims a rank, and then
requests (``store``, see requests.py) or messages of a watch (``watch``: the pace, see pace.py, and all that concerns
the verdict, see verdict.py). ddlrun's agents on other hosts speak to it over a third kind of connection (``agent``, see
ddl/run/control.py), which only passes through here. A watch or an agent may open further connections, its *ways*, over
other networks (session.py): it is gone when all of them are, or when one ends as connections of ended processes do.
"""

from __future__ import annotations

import collections
import logging
import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Callable, Deque, Dict, Iterable, Optional, Tuple, Type

from ddl.bootstrap.address import format_address, listen, notice_silence, silent_for
from ddl.bootstrap.auth import check_secret, encode_frame, name_of
from ddl.bootstrap.connection import Claim, Connection
from ddl.bootstrap.interfaces import networks
from ddl.bootstrap.messages import Message, Outgoing
from ddl.bootstrap.newcomers import Complaints, Door
from ddl.bootstrap.pace import Pace
from ddl.bootstrap.requests import Requests
from ddl.bootstrap.session import close_way
from ddl.bootstrap.shortage import Shortage
from ddl.bootstrap.verdict import Verdict
from ddl.errors import Error, InvalidArgument, ProtocolError

__all__ = ["HELLO_SECONDS", "FromAgent", "StoreServer"]

log = logging.getLogger("ddl")

#: Called in the server's thread with an agent's host number and what it said. When its connection is gone: ``gone``
#: (silent: for how many seconds its host had not answered).
FromAgent = Callable[[int, Message], None]

HELLO_SECONDS = 5.0  #: a connection that knows the secret but has not said who it is by then is cut


class StoreServer:
    """An authenticated key-value store for the ranks of one job. Its methods may be called from any thread.

    ``address`` is what clients connect to. With ``start=False`` they wait in the kernel's queue until ``start()``:
    for a launcher that forks before it has threads. ``close()`` is idempotent; it ends the thread and all
    connections. ``agents`` hosts may have an agent, whose messages go to ``from_agent``.
    """

    def __init__(
        self,
        secret: bytes,
        size: int,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        start: bool = True,
        agents: int = 0,
        from_agent: FromAgent = lambda host, message: None,
    ) -> None:
        if size < 1:
            raise InvalidArgument(f"a store for {size} ranks; a job has at least one")
        check_secret(secret)
        self._size = size
        self._agents = agents
        self._from_agent = from_agent
        self._posts: Deque[Tuple[int, Message]] = collections.deque()  # for agents, by any thread
        self._told: Deque[Tuple[int, str]] = collections.deque()  # ranks whose processes have ended, by any thread
        self._ends: Dict[int, str] = {}  # how ranks' processes ended
        self._verdict = Verdict(size)
        self._pace = Pace(size)
        self._requests = Requests(size)
        self._claims: Dict[Tuple[str, int], Claim] = {}
        self._nameless: Dict[Connection, None] = {}  # they have proved the secret but not said hello; by age
        self._shortage = Shortage("no rank can join the store")
        self._closing = threading.Lock()
        self._closed = False
        listener = listen(host, port)
        name = listener.getsockname()
        self.address = format_address(*name[:2])
        self._everywhere = name[0] == "0.0.0.0"
        self._selector = selectors.DefaultSelector()  # the data of a key: a connection, or a function to be called
        complaints = Complaints("the job's store", self._shortage)
        self._door = Door(listener, secret, self._selector, complaints, self._welcome)
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._deliver_posts)
        self._thread = threading.Thread(target=self._run, name="ddl-store", daemon=True)
        if start:
            try:
                self.start()
            except RuntimeError:  # no thread can be started
                self.close()
                raise

    def start(self) -> None:
        """Begin to serve. Once."""
        self._thread.start()

    def post(self, host: int, message: Message) -> None:
        """Send ``message`` to the agent of ``host``; nothing happens if it has none (any more)."""
        self._posts.append((host, message))
        self._waker.send(b"x")

    def ended(self, rank: int, how: str) -> None:
        """Tell those who wait for ``rank`` that its process has ended, as ``how`` says: a launcher sees it first."""
        self._told.append((rank, how))
        self._waker.send(b"x")

    @property
    def first_failure(self) -> Optional[Message]:
        """The first verdict of the job (kind, culprit, reason), if there is one."""
        return self._verdict.first_failure

    def close(self) -> None:
        """End the thread and every connection. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._thread.ident is None:  # never started
                self._release()
            else:
                self._waker.send(b"x")
                self._thread.join()
            for sock in (self._wake, self._waker):  # here, as the thread may have ended before it was woken
                sock.close()

    def close_when_alone(self, patience: float) -> None:
        """Close as soon as no rank is there any more, at the latest after ``patience`` seconds."""
        deadline = time.monotonic() + patience
        while self._verdict.present and time.monotonic() < deadline:
            time.sleep(0.005)
        self.close()

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of what is the parent's, so that its end is seen when it ends."""
        if not self._closed:
            self._closed = True
            self._release()

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    # Everything below runs in the server's thread.

    def _run(self) -> None:
        try:
            while not self._closed:
                for key, events in self._selector.select(self._patience()):
                    if isinstance(key.data, Connection):
                        self._serve(key.data, events)
                    else:
                        self._call(key.data)
                self._call(self._door.tick)
                self._tick(time.monotonic())
        finally:
            self._release()

    def _call(self, action: Callable[[], None]) -> None:
        """Do something that a newcomer can make fail: that concerns nobody else."""
        try:
            action()
        except (OSError, Error) as error:
            if not self._shortage.met(error):
                log.debug("the job's store: %s", error)

    def _release(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Connection):
                key.data.sock.close()
        self._selector.close()
        self._door.close()

    def _deliver_posts(self) -> None:
        try:
            self._wake.recv(4096)
        except BlockingIOError:
            return
        while self._posts:
            host, message = self._posts.popleft()
            self._tell("agent", host, encode_frame(message))
        while self._told:
            rank, self._ends[rank] = self._told.popleft()
            self._miss(rank)

    def _miss(self, rank: int) -> None:
        """Let nobody wait for a rank whose process has ended, unless another process speaks for it."""
        if rank in self._ends and not any((role, rank) in self._claims for role in ("store", "watch")):
            self._reply(self._requests.gone(rank, self._ends[rank]))

    def _patience(self) -> Optional[float]:
        deadlines = [self._verdict.next_deadline(), self._requests.next_deadline()]
        if self._nameless:
            deadlines.append(next(iter(self._nameless)).born + HELLO_SECONDS)
        known = [deadline for deadline in deadlines if deadline is not None]
        # epoll rounds down to whole milliseconds, so 1 ms more than asked saves a busy loop.
        patience = max(0.0, min(known) - time.monotonic()) + 0.001 if known else None
        return self._door.patience() if patience is None else min(patience, self._door.patience())

    def _tick(self, now: float) -> None:
        self._deliver(self._verdict.tick(now))
        self._reply(self._requests.tick(now))
        for connection in [c for c in self._nameless if now - c.born >= HELLO_SECONDS]:
            self._drop(connection)

    def _welcome(self, sock: socket.socket) -> None:
        """Take over who has proved the secret at the door."""
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
        except OSError:
            self._drop(connection)
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
        now = time.monotonic()
        claim = connection.claim
        if claim is None:
            self._hello(connection, message)
            return
        if claim.role == "store":
            self._reply(self._requests.handle(claim.rank, message, now))
            return
        news = claim.session.take(connection, message)
        confirmation = claim.session.confirmation()
        if confirmation is not None:
            self._send_all_ways(claim, encode_frame(confirmation))
        if news is None:
            return
        if claim.role == "agent":
            self._from_agent(claim.rank, news)
        elif news.get("type") == "pace":
            self._deliver(self._pace.received(claim.rank, news))
        else:
            self._deliver(self._verdict.received(claim.rank, news, now))

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
        claim = self._claims[role, rank] = Claim(role, rank)
        self._belongs(connection, claim)
        if role == "agent":
            notice_silence(connection.sock)
        else:
            self._requests.back(rank)
        everywhere = role != "store" and self._everywhere
        welcome = {"size": self._size, "token": claim.token, "networks": networks() if everywhere else {}}
        self._send(connection, encode_frame(welcome))
        if role == "watch":
            self._deliver(self._verdict.joined(rank, time.monotonic()))

    def _join(self, connection: Connection, claim: Optional[Claim], message: Message) -> None:
        """Somebody who is there opens a further way."""
        if claim is None or message["token"] != claim.token:
            self._refuse(connection, "the store takes it for gone")
            return
        lacking = claim.session.lacking(message.get("got"))
        connection.heard = claim.session.got
        self._belongs(connection, claim)
        for way in claim.ways:
            notice_silence(way.sock)  # or a network that is gone would not be missed
        self._send(connection, b"".join([encode_frame({"size": self._size, "got": connection.heard}), *lacking]))

    def _refuse(self, connection: Connection, problem: str) -> None:
        connection.closing = True
        self._send(connection, encode_frame({"error": problem}))

    def _belongs(self, connection: Connection, claim: Claim) -> None:
        del self._nameless[connection]
        connection.claim = claim
        connection.peer = f"rank {claim.rank}" if claim.role != "agent" else f"the agent of host {claim.rank}"
        claim.ways[connection] = None

    def _claim_problem(self, role: str, rank: int) -> str:
        if role == "agent":
            if 0 <= rank < self._agents and (role, rank) not in self._claims:
                return ""
            return f"host {rank} of {self._agents} is none of this job's hosts, or has an agent already"
        if not 0 <= rank < self._size:
            return f"rank {rank} is not a rank of this job of {self._size}"
        holder = self._claims.get((role, rank))
        while holder is not None and any([self._serve(way, selectors.EVENT_READ) for way in list(holder.ways)]):
            holder = self._claims.get((role, rank))  # it may have hung up, and nobody had looked yet
        if self._claims.get((role, rank)) is None:
            return ""
        return (
            f"rank {rank} of {self._size} is already taken by another process; "
            "every process of a job needs a rank of its own (DDL_RANK)"
        )

    def _deliver(self, outgoing: Outgoing) -> None:
        frames: Dict[int, bytes] = {}  # most messages go to everybody: encode them once
        for rank, message in outgoing:
            if id(message) not in frames:
                frames[id(message)] = encode_frame(message)
            self._tell("watch", rank, frames[id(message)])

    def _reply(self, replies: Iterable[Tuple[int, bytes]]) -> None:
        for rank, frame in replies:
            self._tell("store", rank, frame)

    def _tell(self, role: str, rank: int, frame: bytes) -> None:
        """Send to who has this claim, if anybody has."""
        claim = self._claims.get((role, rank))
        if claim is not None:
            if role != "store":  # which has one way only
                claim.session.keep(frame)
            self._send_all_ways(claim, frame)

    def _send_all_ways(self, claim: Claim, frame: bytes) -> None:
        for way in list(claim.ways):
            try:
                self._send(way, frame)
            except OSError:
                self._drop(way)

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
        if claim.role == "agent":
            self._from_agent(claim.rank, {"type": "gone", "silent": silent})
            return
        if claim.role == "store":
            self._requests.dropped(claim.rank)
        else:
            if self._verdict.is_present(claim.rank):  # it has not said goodbye
                how = f" ({reason})" if reason else ", as its connection closed without a goodbye,"
                self._ends.setdefault(claim.rank, f"the process of rank {claim.rank} ended{how}")
            self._deliver(self._verdict.dropped(claim.rank, time.monotonic(), reason))
        self._miss(claim.rank)
