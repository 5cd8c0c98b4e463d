"""The ways of a client to the store (watch.py): where each goes, its socket, and how a frame is sent over all."""

from __future__ import annotations

import math
import select
import socket
from typing import Dict, Mapping, NamedTuple, Tuple

from ddl import clock
from ddl.net.auth import FrameReader
from ddl.store.client import STORE_GRACE
from ddl.store.session import Way

__all__ = ["Route", "SocketWay", "write_to_all"]

_BEHIND = 1.0  # seconds that a way may take longer than another one for a message


class Route(NamedTuple):
    """Where a way goes: from an address of this host to one of the store's, on one network."""

    source: str
    target: Tuple[str, int]


class SocketWay(Way):
    def __init__(self, sock: socket.socket, place: Route, peer: str) -> None:
        self.sock = sock
        self.place = place
        self.reader = FrameReader(peer)


def write_to_all(ways: Mapping[int, SocketWay], frame: bytes) -> Dict[SocketWay, OSError]:
    """Write a frame to all ways, by their descriptors, at once; return those that failed.

    They have ten seconds, but only one more once one of them has taken it.
    """
    rest = {number: memoryview(frame) for number in ways}
    failed: Dict[SocketWay, OSError] = {}
    poller = select.poll()
    for number in rest:
        poller.register(number, select.POLLOUT)
    deadline = clock.now() + STORE_GRACE
    while rest:
        ready = [number for number, _ in poller.poll(max(0, math.ceil(1000 * (deadline - clock.now()))))]
        if not ready:
            failed.update((ways[number], TimeoutError("it takes nothing")) for number in rest)
            return failed
        for number in ready:
            try:
                sent = ways[number].sock.send(rest[number], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                continue
            except OSError as error:
                failed[ways[number]] = error
                sent = len(rest[number])
            else:
                if sent == len(rest[number]):
                    deadline = min(deadline, clock.now() + _BEHIND)
            rest[number] = rest[number][sent:]
            if not rest[number]:
                del rest[number]
                poller.unregister(number)
    return failed
