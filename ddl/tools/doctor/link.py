"""What a probe measures of the links to other hosts: whether they work, latency, bandwidth, and the other's clock.

A ``Responder`` (responder.py) answers there. Every wait has a deadline. A link that does not work is a result, not an
error.
"""

from __future__ import annotations

import contextlib
import select
import socket
import statistics
import struct
import time
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ddl import clock
from ddl.errors import Error
from ddl.launch.agent.reach import TOKEN, Target
from ddl.net.address import family_of, socket_towards
from ddl.net.auth import prove_as_client, read_exactly
from ddl.net.connecting import connect
from ddl.tools.doctor.responder import CHUNK, FLOOD, TIME, WANTS
from ddl.tuning.tournament import tournament

__all__ = ["measure", "schedule", "try_large_packets"]

_AT_ONCE = 200  #: sockets at a time, well below any limit of descriptors
_LARGE_SECONDS = 1.2
_RETRY_SECONDS = 0.3
_ANSWER_SECONDS = 2.0  # that whoever is measured has for its next word
_ROUND_TRIPS = 64
#: What lets a socket send packets whole, or not: linux/in.h and in6.h; the socket module lacks it.
_PROBING = {socket.AF_INET: (socket.IPPROTO_IP, 10, 3), socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 3)}
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # bytes of IP and UDP


# --- whether large packets pass ---


def try_large_packets(targets: Sequence[Target], mtus: Sequence[int]) -> List[Optional[bool]]:
    """Return for each target whether a packet of ``mtu`` bytes comes to its datagram port; None: not even small ones.

    They are sent whole or not at all, whatever the kernel has heard about the path: some switch on the way drops what
    is too long for it and tells nobody, and then a connection works until it has much to say.
    """
    arrived: Dict[Target, List[int]] = {target: [] for target in targets}
    sizes = [mtu - _HEADERS[family_of(target.address)] for target, mtu in zip(targets, mtus)]
    for start in range(0, len(targets), _AT_ONCE):
        batch = range(start, min(start + _AT_ONCE, len(targets)))
        _send_datagrams({targets[at]: (TOKEN, sizes[at]) for at in batch}, arrived)
    return [size in arrived[target] if arrived[target] else None for target, size in zip(targets, sizes)]


def _send_datagrams(sizes: Dict[Target, Tuple[int, int]], arrived: Dict[Target, List[int]]) -> None:
    """Send each target datagrams of its sizes, again and again, until all have been confirmed or time is over."""
    with contextlib.ExitStack() as stack:
        socks: Dict[int, Tuple[Target, socket.socket]] = {}
        poller = select.poll()
        for target in sizes:
            sock = stack.enter_context(socket_towards(target.address, socket.SOCK_DGRAM))
            sock.setblocking(False)
            sock.setsockopt(*_PROBING[sock.family])
            with contextlib.suppress(OSError):  # no way there, which connect_all has told already
                sock.connect((target.address, target.port))
                poller.register(sock, select.POLLIN)
                socks[sock.fileno()] = (target, sock)
        deadline = clock.now() + _LARGE_SECONDS
        again = 0.0
        while clock.now() < deadline and any(len(arrived[target]) < 2 for target, _ in socks.values()):
            if clock.now() >= again:
                again = clock.now() + _RETRY_SECONDS
                for target, sock in socks.values():
                    for size in sizes[target]:
                        if size not in arrived[target]:
                            with contextlib.suppress(OSError):  # too long for our own interface, or refused
                                sock.send(target.token.ljust(size, b"."))
            for fd, _ in poller.poll(20):
                target, sock = socks[fd]
                with contextlib.suppress(OSError):
                    answer = sock.recv(1 << 16)
                    size = int.from_bytes(answer[TOKEN:], "big")
                    if answer.startswith(target.token) and size not in arrived[target]:
                        arrived[target].append(size)


# --- how far, how wide, how late ---


@dataclass(frozen=True)
class LinkMeasurement:
    """What one connection showed; None is what did not come in time."""

    latency: Optional[float] = None
    bandwidth: Optional[float] = None
    offset: Optional[float] = None
    uncertainty: float = 0.0


def measure(target: Target, secret: bytes, sample: float) -> LinkMeasurement:
    """Measure round trips, clocks and, for ``sample`` seconds, how much one connection carries."""
    latency = bandwidth = offset = None
    uncertainty = 0.0
    with contextlib.suppress(OSError, Error), _connection(target, secret) as sock:
        trips = []
        clocks = []
        for _ in range(_ROUND_TRIPS):
            begin, wall = clock.now(), time.time()
            sock.sendall(WANTS.pack(b"t", 0))
            (theirs,) = TIME.unpack(read_exactly(sock, TIME.size, begin + 2))
            trips.append(clock.now() - begin)
            clocks.append((trips[-1], theirs - (wall + trips[-1] / 2)))
        latency = statistics.median(trips) / 2
        shortest, offset = min(clocks)
        uncertainty = shortest / 2
        bandwidth = _flood(sock, sample)
    return LinkMeasurement(latency, bandwidth, offset, uncertainty)


@contextlib.contextmanager
def _connection(target: Target, secret: bytes) -> Iterator[socket.socket]:
    with connect(target.address, target.port, 2) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if read_exactly(sock, TOKEN, clock.now() + _ANSWER_SECONDS) == target.token:
            prove_as_client(sock, secret, clock.now() + _ANSWER_SECONDS)
            yield sock
        else:
            raise ConnectionError("somebody else answers there")


def _flood(sock: socket.socket, seconds: float) -> Optional[float]:
    """Send as much as goes until the other side says how much came; None if next to nothing passed."""
    deadline = clock.now() + seconds + _ANSWER_SECONDS
    sock.sendall(WANTS.pack(b"f", seconds))
    data = memoryview(bytes(CHUNK))
    sock.setblocking(False)
    poller = select.poll()
    poller.register(sock, select.POLLIN | select.POLLOUT)
    while clock.now() < deadline:
        events = [event for _, event in poller.poll(100)]
        if events and events[0] & select.POLLIN:
            count, took = FLOOD.unpack(read_exactly(sock, FLOOD.size, deadline))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # what is unsent is nothing
            return 8 * count / took if took > 0 and count > CHUNK // 16 else None
        if events:
            with contextlib.suppress(BlockingIOError):
                sock.send(data)
    return None


def schedule(hosts: int) -> List[Tuple[int, int]]:
    """Return all ordered pairs of hosts, in an order in which each host's turns are spread over the whole time.

    It is the order of a tournament, one match after the other: links may share a cable, so only a pair that is alone
    measures it. Each match is played both ways.
    """
    return [pair for met in tournament(range(hosts)) for a, b in met for pair in ((a, b), (b, a))]
