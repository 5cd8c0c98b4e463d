"""Ports at which nobody listens, and which stay ours: one that was given back may be anybody's a moment later."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path
from typing import Iterator, List


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Hold a port of 127.0.0.1: connections are refused. Who holds it may let a server listen there meanwhile."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def unused_ports(count: int) -> List[int]:
    """Return ports for a program that wants numbers, and cannot take over who holds them.

    The kernel gives them to nobody who asks for any port. They were free just now.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    chance = random.Random(os.urandom(8))
    ports: List[int] = []
    while len(ports) < count:
        port = chance.randrange(first // 2, first)
        with socket.socket() as holder, contextlib.suppress(OSError):
            holder.bind(("", port))
            ports += [port] if port not in ports else []
    return ports
