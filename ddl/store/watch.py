"""The connections by which the store knows that a rank, or an agent of ddlrun, is alive: one over each network.

``WatchClient`` is for a rank, which also asks over it; ``HostAgentClient`` is for an agent. They begin with one
connection to the store. When they are told of other networks, they use these as well (session.py says how): then a
network may fail without harm, and it is tried again until it works.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import select
import socket
import threading
from typing import Deque, Dict, List, Optional, Sequence, Tuple

from ddl import clock
from ddl.errors import Error, PeerLost, RendezvousError
from ddl.net.address import family_of, format_address, notice_silence, silent_for
from ddl.net.auth import encode_frame, write_all
from ddl.net.interfaces import interfaces
from ddl.store.asking import AskingClient
from ddl.store.client import introduce
from ddl.store.messages import Message
from ddl.store.session import Session, broken, close_way
from ddl.store.socket_ways import Route, SocketWay, write_to_all

__all__ = ["HostAgentClient", "WatchClient"]

log = logging.getLogger("ddl")

_OPENING = 5.0  #: seconds that opening a way may take
_PAUSE, _LONGEST_PAUSE = 1.0, 10.0  #: seconds between attempts
_HOPELESS = 8  #: attempts in vain after which a network that never worked is left alone


class WatchClient(AskingClient):
    """Messages both ways are those of verdict.py and pace.py, and requests and their answers.

    For a selector loop: ``receive`` never blocks. One thread may receive while others send or ask. Who asks is answered
    only while another thread receives.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        rank: int,
        timeout: float,
        role: str = "watch",
        *,
        encrypt: bool = False,
        others: Sequence[str] = (),
    ) -> None:
        super().__init__(role, address, secret, rank, timeout, encrypt, others)
        self._hello = {"role": role, "rank": rank, "token": self._welcome["token"]}
        self._secret = secret
        self._encrypt = encrypt
        self._sending = threading.Lock()  # held for a whole message, or while a way begins
        self._changing = threading.Lock()  # the ways, the session; never held for long
        self._session = Session()
        self._ways: Dict[int, SocketWay] = {}  # by descriptor
        self._ready = select.epoll()
        self._received: Deque[Message] = collections.deque()
        self._answers: Deque[Message] = collections.deque()
        self._answered = threading.Condition()  # there is an answer, or there will be none
        self._over = False  # no more is to come
        self.broken = ""  #: why no way is left, if the store may still be there
        self._last_sign = 0.0  # when the kernel last heard of the store's host on a way that is lost
        self._closed = threading.Event()
        self._way_lost = threading.Event()
        self._places: List[Route] = []
        peer = self._sock.getpeername()
        self._first = Route(self.local_host, (str(peer[0]), int(peer[1])))
        self._add(SocketWay(self._sock, self._first, self._peer))

    @property
    def elastic(self) -> Optional[Message]:
        """What the store said of ranks that come and go: limits, record, ballot; None where they do not."""
        told: Optional[Message] = self._welcome.get("elastic")
        return told

    @property
    def _peer(self) -> str:
        return f"the store at {self.address}"

    @property
    def over(self) -> bool:
        """Whether the store, or this process, has ended the connection."""
        return self._over

    @property
    def further_addresses(self) -> Tuple[str, ...]:
        """The store's addresses on the other networks that ``also_over`` has found."""
        return tuple(format_address(*place.target) for place in self._places if place != self._first)

    def fileno(self) -> int:
        """The descriptor to select on; -1 after ``close``."""
        return -1 if self._ready.closed else self._ready.fileno()

    def also_over(self, sources: Sequence[str]) -> None:
        """Open further ways, in the background: from those addresses of this host whose networks lead to the store.

        Nothing happens where the store is on this host, or once this has been asked for.
        """
        if self._places:
            return
        here = {entry.address: entry.network for entry in interfaces()}
        networks: Dict[str, str] = self._welcome["networks"]
        first = self._first
        host, port = first.target
        targets = {source: networks.get(here.get(source, "")) for source in sources}
        further = [
            Route(source, (target, port))
            for source, target in targets.items()
            # A bridge for containers has the same address everywhere.
            if target is not None and target not in here and source != first.source and target != host
        ]
        if not further or host in here:
            return
        with self._changing:
            if self._places:  # meanwhile, by another thread
                return
            self._places = [first, *further]
        self._way_lost.set()
        threading.Thread(target=self._keep_open, name="ddl-ways", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message; PeerLost if the store is gone or has not read for ten seconds."""
        frame = encode_frame(message)
        with self._sending:
            with self._changing:
                self._session.keep(frame)
            self._send_all_ways(frame)

    def receive(self) -> Optional[Message]:
        """Return the next message, ``{}`` if none is complete yet, None if the store closed the connection.

        Answers to requests are none. After the descriptor became readable, call until it returns ``{}`` or None:
        several messages may have come at once, and the descriptor tells only of bytes that have not been read.
        """
        if not self._received and not self._over:
            self._read()
        if self._received:
            return self._received.popleft()
        return None if self._over else {}

    def part(self, seconds: float) -> None:
        """Let the store read all that was said before ``close``; blocks until it has, at most so long.

        To close a connection while something unread has come resets it, and the other side may lose what it had not
        read: a goodbye, so that this process would count as dead.
        """
        deadline = clock.now() + seconds
        with self._changing:
            ways = list(self._ways.values())
        for way in ways:
            with contextlib.suppress(OSError):
                way.sock.shutdown(socket.SHUT_WR)
                way.sock.settimeout(max(0.001, deadline - clock.now()))
                while way.sock.recv(1 << 16):
                    way.sock.settimeout(max(0.001, deadline - clock.now()))

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """Close all connections. Idempotent. Who waits for an answer gets PeerLost."""
        self._closed.set()
        self._end()
        self._way_lost.set()
        with self._changing:
            self.close_in_child()

    def close_in_child(self) -> None:
        """After a fork, in the child, which takes no lock: a thread that is not here may hold it."""
        for way in self._ways.values():
            way.sock.close()
        self._ways = {}
        self._ready.close()

    def silent(self) -> float:
        """Return for how many seconds nothing has come from the store's host."""
        with self._changing:
            silences = [silent_for(way.sock) for way in self._ways.values()]
            return min(silences, default=clock.now() - self._last_sign)

    # --- questions ---

    def _say(self, request: Message, deadline: float) -> None:
        self.send(request)

    def _next_answer(self, deadline: float) -> Message:
        with self._answered:
            if not self._answered.wait_for(lambda: self._answers or self._over, max(0.0, deadline - clock.now())):
                raise RendezvousError(f"{self._peer} did not answer before the deadline")
            if not self._answers:
                raise PeerLost(self.broken or "the connection to it has ended")
            return self._answers.popleft()

    def _take(self, message: Message) -> None:
        if "type" in message:
            self._received.append(message)
            return
        with self._answered:
            self._answers.append(message)
            self._answered.notify()

    def _end(self) -> None:
        """No more is to come."""
        with self._answered:
            self._over = True
            self._answered.notify()

    # --- ways ---

    def _add(self, way: SocketWay) -> None:
        self._ways[way.sock.fileno()] = way
        self._ready.register(way.sock.fileno(), select.EPOLLIN)

    def _lose(self, way: SocketWay, error: object) -> None:
        with self._changing:
            number = way.sock.fileno()
            if self._ways.get(number) is not way:
                return
            del self._ways[number]
            last = not self._ways
            if isinstance(error, OSError) and last:
                self.broken = broken(error)
            self._last_sign = max(self._last_sign, clock.now() - silent_for(way.sock))
            close_way(way.sock, last=last)
            if last:
                self._end()
        log.debug("rank %d: lost the way to the store from %s: %s", self.rank, way.place.source, error)
        self._way_lost.set()

    def _send_all_ways(self, frame: bytes) -> None:
        with self._changing:
            ways = dict(self._ways)
        failed = write_to_all(ways, frame)
        if len(failed) == len(ways):
            for way in failed:  # half a message may stand there; ``receive`` sees the end
                with contextlib.suppress(OSError):
                    way.sock.shutdown(socket.SHUT_RDWR)
            why = "; ".join(map(str, failed.values())) or "closed"
            raise PeerLost(f"rank {self.rank}: lost {self._peer} while sending: {why}")
        for way, error in failed.items():
            self._lose(way, error)

    def _read(self) -> None:
        try:
            ready = self._ready.poll(0)
        except (OSError, ValueError):
            if self._closed.is_set():  # meanwhile, by another thread
                return
            raise
        for number, _ in ready:
            with self._changing:
                way = self._ways.get(number)
            if way is not None:
                self._read_from(way)
        confirmation = self._session.confirmation()
        if confirmation is not None and not self._over:
            with self._sending, contextlib.suppress(PeerLost):  # its end is found when it is read
                self._send_all_ways(encode_frame(confirmation))

    def _read_from(self, way: SocketWay) -> None:
        try:
            data = way.sock.recv(1 << 16, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(way, error)
            return
        if not data:
            self._end()
        for message in way.reader.feed(data):
            with self._changing:
                news = self._session.take(way, message)
            if news is not None:
                self._take(news)

    def _keep_open(self) -> None:
        """Open the ways that are missing, now and whenever one is lost."""
        worked = {self._places[0]}
        vain: Dict[Route, int] = collections.defaultdict(int)  # attempts
        pause: Optional[float] = None
        while True:
            if self._way_lost.wait(pause):
                self._way_lost.clear()
                pause = _PAUSE / 2
            if self._closed.is_set():
                return
            with self._changing:
                there = {way.place for way in self._ways.values()}
            for place in [place for place in self._places if place not in there]:
                try:
                    self._open(place)
                    worked.add(place)
                    there.add(place)
                except (OSError, Error) as error:
                    log.debug("rank %d: no way to the store from %s: %s", self.rank, place.source, error)
                    vain[place] += 1
                    if vain[place] == _HOPELESS and place not in worked:
                        self._places.remove(place)
            pause = min(_LONGEST_PAUSE, 2 * (pause or _PAUSE)) if there != set(self._places) else None

    def _open(self, place: Route) -> None:
        deadline = clock.now() + _OPENING
        sock = socket.socket(family_of(place.source), socket.SOCK_STREAM)
        try:
            sock.settimeout(_OPENING)
            sock.bind((place.source, 0))
            sock.connect(place.target)
            got = self._session.got
            sock, welcome = introduce(sock, {**self._hello, "got": got}, self._secret, deadline, self._encrypt)
            way = SocketWay(sock, place, self._peer)
            way.heard = got
            with self._sending:
                with self._changing:
                    lacking = self._session.lacking(welcome.get("got"))
                for frame in lacking:
                    write_all(sock, frame, deadline)
                with self._changing:
                    if self._over:
                        raise ConnectionAbortedError("closed")
                    self._add(way)
                    for other in self._ways.values():
                        notice_silence(other.sock, self.host_timeout)  # or a network that is gone would not be missed
        except BaseException:
            sock.close()
            raise


class HostAgentClient(WatchClient):
    """The connection of host ``host``'s agent; messages both ways are those of ddl/launch/agent/control.py.

    ``others``: further addresses of ddlrun.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        host: int,
        timeout: float,
        *,
        encrypt: bool = False,
        others: Sequence[str] = (),
    ) -> None:
        super().__init__(address, secret, host, timeout, "agent", encrypt=encrypt, others=others)
