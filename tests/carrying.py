"""Somebody who sits between the two ends of a connection, and carries what they say: he may read it, and change it."""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Callable

__all__ = ["carry"]


def carry(here: socket.socket, there: socket.socket, change: Callable[[bytes], bytes] = bytes) -> None:
    """Carry bytes both ways until both ends have closed; what goes on is what ``change`` makes of each piece."""
    ways = {here: there, there: here}
    while ways:
        for source in select.select(list(ways), [], [])[0]:
            data = b""
            with contextlib.suppress(OSError):  # an end has closed with something unread
                data = source.recv(1 << 16)
                ways[source].sendall(change(data))
            if not data:
                with contextlib.suppress(OSError):
                    ways.pop(source).shutdown(socket.SHUT_WR)
