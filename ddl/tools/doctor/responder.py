"""The side of a probe that answers the others, in threads of its own.

Over TCP it sends its token, which tells whom one has reached, then the peer proves the job's secret and says what it
wants, ``WANTS``: "t", to be told the time, or "f", to send as much as passes and be told how much came. Over UDP a
responder tells how long the datagrams are that come through.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Tuple

from ddl.bootstrap.auth import prove_as_server, read_exactly
from ddl.bootstrap.shortage import PAUSE
from ddl.errors import Error

__all__ = ["CHUNK", "FLOOD", "TIME", "WANTS", "Responder"]

CHUNK = 1 << 20  #: bytes sent or received at a time
WANTS = struct.Struct("!cd")  #: what, and for how many seconds
TIME = struct.Struct("!d")  #: the answer to "t": seconds since the epoch
FLOOD = struct.Struct("!Qd")  #: the answer to "f": how many bytes came in how many seconds
_PORTS = 2  # to listen on: a firewall may let one through by chance


class Responder:
    """Listens on two ports of all addresses, and on one for datagrams, until ``close``."""

    def __init__(self, secret: bytes, token: bytes) -> None:
        self._secret = secret
        self._token = token
        self._closed = threading.Event()
        self._listeners = []
        for _ in range(_PORTS):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.bind(("0.0.0.0", 0))
            listener.listen(1024)
            listener.settimeout(0.2)  # to notice ``close``
            self._listeners.append(listener)
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.bind(("0.0.0.0", 0))
        self._datagrams.settimeout(0.2)
        self.ports = tuple(int(listener.getsockname()[1]) for listener in self._listeners)
        self.datagram_port = int(self._datagrams.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, args=(one,), daemon=True) for one in self._listeners]
        self._threads.append(threading.Thread(target=self._tell_lengths, daemon=True))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads, but those of peers that are still being served."""
        self._closed.set()
        for thread in self._threads:
            thread.join()
        for sock in (*self._listeners, self._datagrams):
            sock.close()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = listener.accept()
            except socket.timeout:
                continue
            except OSError:  # it has hung up, or there is no descriptor: not again at once
                self._closed.wait(PAUSE)
                continue
            try:
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()
            except RuntimeError:  # no thread can be started: the peer sees that it is not served
                sock.close()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, Error):  # the peer sees it and says so
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(5)
            sock.sendall(self._token)
            prove_as_server(sock, self._secret, time.monotonic() + 5)
            while True:
                want, seconds = WANTS.unpack(read_exactly(sock, WANTS.size, time.monotonic() + 5))
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
    begin = now = time.monotonic()
    count = 0
    while first and now - begin < seconds:
        sock.settimeout(max(0.001, begin + seconds - now))
        try:
            received = sock.recv_into(buffer)
        except socket.timeout:
            received = -1
        now = time.monotonic()
        if received == 0:
            break
        count += max(0, received)
    return count, now - begin
