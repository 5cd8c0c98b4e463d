"""Connects by TCP to the first of several places that answers: a host may have several addresses, and lose a network.

A place that does not answer costs little: the next one is tried a tenth of a second later, while it may still answer.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ddl import clock
from ddl.net.address import format_address, parse_address, resolve, socket_towards

__all__ = ["Place", "connect", "connect_to_first", "first_to_answer"]

Place = Tuple[str, int]  #: an address in digits, and a port

#: Seconds by which a place is tried later than the one before. An election allows half a second for two calls.
_STAGGER = 0.1


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """Return a connection to the first of a host's addresses that answers; ``timeout`` is for all together.

    Raises OSError.
    """
    return connect_to_first([(address, port) for address in resolve(host)], timeout)[0]


def first_to_answer(addresses: Sequence[str], timeout: float) -> str:
    """Return which of several ``host:port`` takes a connection first, those that come first being preferred.

    Raises OSError.
    """
    places: List[Place] = []
    texts: List[str] = []
    for text in addresses:
        host, port = parse_address(text)
        resolved = resolve(host)
        places += [(address, port) for address in resolved]
        texts += [text] * len(resolved)
    sock, number = connect_to_first(places, timeout)
    sock.close()
    return texts[number]


def connect_to_first(
    places: Sequence[Place], timeout: float, prepare: Callable[[socket.socket], None] = lambda sock: None
) -> Tuple[socket.socket, int]:
    """Return a connection to the first of several places that answers, and which of them that is.

    A place is tried when the one before it has refused, or has not answered for a moment. ``timeout``: seconds for all,
    also set for the socket that is returned. ``prepare`` is called with each socket before it connects. Raises OSError:
    of several places the kind of the last one's, with what all have said.
    """
    deadline = clock.now() + max(0.01, timeout)
    with _Attempts(places, prepare) as attempts:
        for number in range(len(places)):
            attempts.begin(number)
            remaining = deadline - clock.now()
            left = len(places) - number
            connected = attempts.wait(remaining if left == 1 else min(_STAGGER, remaining / left))
            if connected is not None:
                connected[0].settimeout(max(0.01, timeout))
                return connected
        raise attempts.problem()


def _check(sock: socket.socket) -> None:
    """Raise OSError unless a socket that is ready is connected to somebody else."""
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if not code and sock.getsockname() == sock.getpeername():
        code = errno.ECONNREFUSED  # nobody listens, and the kernel gave us the very port that we call
    if code:
        raise OSError(code, os.strerror(code))


class _Attempts:
    """Connections of which one is wanted. Those that it has not returned are closed at the end of a ``with``."""

    def __init__(self, places: Sequence[Place], prepare: Callable[[socket.socket], None]) -> None:
        self._places = places
        self._prepare = prepare
        self._trying: Dict[int, Tuple[socket.socket, int]] = {}  # by descriptor; with the place's number
        self._refused: Dict[int, OSError] = {}  # by the place's number
        self._poller = select.poll()

    def __enter__(self) -> _Attempts:
        return self

    def __exit__(self, *error: object) -> None:
        for sock, _ in self._trying.values():
            sock.close()

    def begin(self, number: int) -> None:
        """Try a place."""
        place = self._places[number]
        try:
            sock = socket_towards(place[0])
        except OSError as error:
            self._refused[number] = error
            return
        self._trying[sock.fileno()] = sock, number
        try:
            self._prepare(sock)
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(place)
        except OSError as error:
            self._fail(sock.fileno(), error)
            return
        self._poller.register(sock, select.POLLOUT)

    def wait(self, seconds: float) -> Optional[Tuple[socket.socket, int]]:
        """Return a connection and its place's number; None if there is none by then, or all have refused."""
        deadline = clock.now() + seconds
        while self._trying:
            ready = self._poller.poll(max(0, math.ceil(1000 * (deadline - clock.now()))))
            for descriptor, _ in ready:
                self._poller.unregister(descriptor)
                try:
                    _check(self._trying[descriptor][0])
                except OSError as error:
                    self._fail(descriptor, error)
                else:
                    return self._trying.pop(descriptor)
            if not ready:
                return None
        return None

    def _fail(self, descriptor: int, error: OSError) -> None:
        sock, number = self._trying.pop(descriptor)
        sock.close()
        self._refused[number] = error

    def problem(self) -> OSError:
        """Return why there is no connection."""
        if not self._places:
            return OSError(errno.EDESTADDRREQ, "no address is known")
        problems = [self._refused.get(number, TimeoutError("timed out")) for number in range(len(self._places))]
        if len(problems) == 1:
            return problems[0]
        told = zip(self._places, problems)
        text = "; ".join(f"{format_address(*place)}: {problem.strerror or problem}" for place, problem in told)
        return OSError(problems[-1].errno or errno.ETIMEDOUT, text)
