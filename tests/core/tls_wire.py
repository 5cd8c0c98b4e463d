"""An encrypted connection that one who sits between its ends carries, record by record."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import ExitStack
from typing import List, Tuple

from ddl import _core

__all__ = ["HEADER", "KEY", "SECONDS", "Wire", "all_of", "flipped", "shaken"]

KEY = bytes(range(32))
SECONDS = 60.0  # for what ends by itself
HEADER = 5  # bytes before each record: type, version, length


def shaken(sock: socket.socket, server: bool, key: bytes = KEY, **options: int) -> _core.TlsSession:
    """Return a session that has shaken hands."""
    session = _core.TlsSession(sock.fileno(), server, key, True, **options)
    while not session.shake_hands():
        assert select.select([sock], [], [], SECONDS)[0], "the other end is silent"
    return session


class Wire:
    """Two sockets that one who sits between them joins, by ``carry``."""

    def __init__(self, stack: ExitStack) -> None:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def pair() -> Tuple[socket.socket, socket.socket]:
            near = stack.enter_context(socket.create_connection(listener.getsockname()))
            return near, stack.enter_context(listener.accept()[0])

        self.client, self.client_side = pair()
        self.server, self.server_side = pair()
        self.seen = b""

    def shake_hands(self, server_key: bytes = KEY, **options: int) -> Tuple[_core.TlsSession, _core.TlsSession]:
        """Return the client's session and the server's."""
        over = threading.Event()
        between = threading.Thread(target=self._carry_all, args=(over,))
        sessions: List[_core.TlsSession] = []
        errors: List[Exception] = []

        def serve() -> None:
            try:
                sessions.append(shaken(self.server, True, server_key, **options))
            except Exception as error:
                errors.append(error)

        server = threading.Thread(target=serve)
        between.start()
        server.start()
        try:
            client = shaken(self.client, False, **options)
        finally:
            server.join()
            over.set()
            between.join()
        if errors:
            raise errors[0]
        return client, sessions[0]

    def _carry_all(self, over: threading.Event) -> None:
        ways = {self.client_side: self.server_side, self.server_side: self.client_side}
        while ways and (not over.is_set() or select.select(list(ways), [], [], 0.0)[0]):
            for source in select.select(list(ways), [], [], 0.01)[0]:
                data = source.recv(1 << 16)
                if data:
                    ways[source].sendall(data)
                else:
                    ways.pop(source).shutdown(socket.SHUT_WR)

    def record(self) -> bytes:
        """Take a record that the client has sent; it does not go on."""
        header = self._take(HEADER)
        return header + self._take(int.from_bytes(header[3:], "big"))

    def _take(self, count: int) -> bytes:
        taken = self.client_side.recv(count, socket.MSG_WAITALL)
        self.seen += taken
        return taken


def all_of(session: _core.RecordSession, sock: socket.socket, count: int) -> bytes:
    """Read so many bytes."""
    text = b""
    while len(text) < count:
        piece = session.read(count - len(text))
        if not piece:
            assert select.select([sock], [], [], SECONDS)[0], f"{len(text)} of {count} bytes came"
        text += piece
    return text


def flipped(records: List[bytes]) -> bytes:
    first = bytearray(records[0])
    first[HEADER + 3] ^= 1
    return bytes(first)
