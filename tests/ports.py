"""A port at which nobody listens, and which stays ours: one that was given back may be anybody's a moment later."""

from __future__ import annotations

import contextlib
import socket
from typing import Iterator


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Hold a port of 127.0.0.1: connections are refused. Who holds it may let a server listen there meanwhile."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
