"""The server's side of a connection to the store, and who it belongs to: a ``Claim``. Owned by the server's thread."""

from __future__ import annotations

import collections
import secrets
import socket
from typing import Deque, Dict, Optional

from ddl import clock
from ddl.net.auth import FRAME_LIMIT, FrameReader
from ddl.store.session import Session, Way

__all__ = ["Claim", "Connection"]

_OUTBOX_LIMIT = 256 << 20  #: bytes that may be left unread


class Connection(Way):
    """A connection that has proved the secret, and what is still to be sent on it. The server reads and closes it."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock = sock
        self.peer = peer
        self.born = clock.now()
        self.reader = FrameReader(peer, FRAME_LIMIT)
        self.claim: Optional[Claim] = None  #: None: it has not said who it is
        self.closing = False  #: to be closed as soon as all is sent
        self.closed = False
        self._outbox: Deque[memoryview] = collections.deque()
        self._unsent = 0  # bytes in the outbox

    @property
    def unsent(self) -> bool:
        """Whether something waits until the socket takes more."""
        return bool(self._outbox)

    def send(self, data: bytes) -> None:
        """Send, now or later. Raises OSError."""
        if self._unsent > _OUTBOX_LIMIT:
            raise ConnectionAbortedError(f"{self.peer} does not read what it asked for")
        self._outbox.append(memoryview(data))
        self._unsent += len(data)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes. Raises OSError."""
        while self._outbox:
            try:
                sent = self.sock.send(self._outbox[0], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                break
            self._unsent -= sent
            self._outbox[0] = self._outbox[0][sent:]
            if not self._outbox[0]:
                self._outbox.popleft()


class Claim:
    """What a rank (as ``role``) or an agent has claimed, and the ways to it."""

    def __init__(self, role: str, rank: int, host: str) -> None:
        self.role = role  #: "store", "watch" or "agent"
        self.rank = rank  #: of an agent: its host's number
        self.host = host  #: the name of its host, for people
        self.token = secrets.token_hex(16)  #: known to the owner of the claim, which shows it on further ways
        self.session = Session()
        self.ways: Dict[Connection, None] = {}
