"""The side of a probe that answers the others, in threads of its own.

Over TCP it sends its token, which names the host. Then the peer proves the job's secret (at a ``Door``, which limits
what strangers can use) and says what it wants, ``WANTS``: "t", the time, or "f", to send as much as it can and hear how
much came. Over UDP a responder says how long the datagrams are that arrive.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from typing import Tuple

from ddl import clock
from ddl.errors import Error
from ddl.net.address import EVERYWHERE, bound, listen
from ddl.net.auth import read_exactly
from ddl.net.newcomers import Complaints, Door, in_a_thread
from ddl.net.shortage import Shortage

__all__ = ["CHUNK", "FLOOD", "TIME", "WANTS", "Responder"]

CHUNK = 1 << 20  #: bytes sent or received at a time
WANTS = struct.Struct("!cd")  #: what, and for how many seconds
TIME = struct.Struct("!d")  #: the answer to "t": seconds since the epoch
FLOOD = struct.Struct("!Qd")  #: the answer to "f": how many bytes came in how many seconds
_PORTS = 2  # to listen on: a firewall may let one through by chance


class Responder:
    """Listens on two ports of all addresses, and on one for datagrams, until ``close``."""

    def __init__(self, secret: bytes, token: bytes) -> None:
        self._token = token
        self._closed = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._shortage = Shortage("ddl doctor cannot answer other hosts")
        complaints = Complaints("ddl doctor", self._shortage)
        listeners = [listen(EVERYWHERE, 0) for _ in range(_PORTS)]
        welcome = in_a_thread(self._serve, complaints)
        self._doors = [Door(listener, secret, self._selector, complaints, welcome, token) for listener in listeners]
        self._datagrams = bound(EVERYWHERE, 0, socket.SOCK_DGRAM)
        self._datagrams.settimeout(0.2)
        self.ports = tuple(int(listener.getsockname()[1]) for listener in listeners)
        self.datagram_port = int(self._datagrams.getsockname()[1])
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._accept, self._tell_lengths)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads, but those of peers that are still being served."""
        self._closed.set()
        for thread in self._threads:
            thread.join()
        self._selector.close()
        for door in self._doors:
            door.close()
        self._datagrams.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            # A moment at most, to notice ``close``.
            ready = self._selector.select(min(0.2, *(door.patience() for door in self._doors)))
            for action in [*(key.data for key, _ in ready), *(door.tick for door in self._doors)]:
                try:
                    action()
                except (OSError, Error) as error:  # a stranger's affair, or a shortage, which may pass
                    self._shortage.met(error)

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, Error):  # the peer sees it and says so
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(5)
            while True:
                want, seconds = WANTS.unpack(read_exactly(sock, WANTS.size, clock.now() + 5))
                if want == b"t":
                    sock.sendall(TIME.pack(time.time()))
                else:
                    sock.sendall(FLOOD.pack(*_swallow(sock, min(seconds, 5.0))))

    def _tell_lengths(self) -> None:
        """Answer each datagram that begins with our token by the token and its length."""
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                data, peer = self._datagrams.recvfrom(1 << 16)
                if data.startswith(self._token):
                    self._datagrams.sendto(self._token + struct.pack("!I", len(data)), peer)


def _swallow(sock: socket.socket, seconds: float) -> Tuple[int, float]:
    """Read what comes for so long from the first byte on; return how many bytes it was, and the time."""
    buffer = bytearray(CHUNK)
    first = sock.recv(1)
    begin = now = clock.now()
    count = 0
    while first and now - begin < seconds:
        sock.settimeout(max(0.001, begin + seconds - now))
        try:
            received = sock.recv_into(buffer)
        except socket.timeout:
            received = -1
        now = clock.now()
        if received == 0:
            break
        count += max(0, received)
    return count, now - begin
