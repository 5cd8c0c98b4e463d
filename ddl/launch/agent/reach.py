"""Checks whether addresses of other hosts can be reached, and whether the right hosts answer. Many connections at once.

A host answers at its ``TokenPort`` with a token, by which the others know it. ``connect_all`` connects to those of the
others. It is used before a job starts (preflight.py) and by ``ddl doctor``. No failure is fatal here: the caller wants
to know which connections fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import socket
import time
from dataclasses import dataclass
from typing import Dict, Sequence, Tuple

from ddl import clock
from ddl.net.address import listen, socket_towards
from ddl.net.shortage import PAUSE, shortage

__all__ = ["TOKEN", "Attempt", "TokenPort", "Target", "connect_all"]

TOKEN = 16  #: bytes by which a port is known
_CONNECT_SECONDS = 3.5  #: two more tries of the kernel's, after 1 s and 3 s
#: What tells the MTU of the path, linux/in.h and in6.h; the socket module lacks it.
_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
_AT_ONCE = 200  #: connections under way at a time, well below any limit of descriptors


class TokenPort:
    """A port of ``address`` that greets everybody by ``token`` and hangs up. It lets nobody in."""

    def __init__(self, address: str, token: bytes = b"") -> None:
        self.token = token or secrets.token_bytes(TOKEN)
        self._socket = listen(address, 0)
        self.address = address
        self.port = int(self._socket.getsockname()[1])

    def __enter__(self) -> TokenPort:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more. Idempotent."""
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor that is readable when somebody knocks."""
        return self._socket.fileno()

    def greet(self) -> None:
        """Answer a connection, if it is still there. Without a free descriptor: at a later call."""
        try:
            visitor, _ = self._socket.accept()
            with visitor:
                visitor.setblocking(False)
                visitor.send(self.token)
        except OSError as error:
            if shortage(error):  # he still knocks
                time.sleep(PAUSE)


@dataclass(frozen=True)
class Target:
    """An address of another host, and the port there and its token."""

    host: int
    address: str
    port: int
    token: bytes


@dataclass(frozen=True)
class Attempt:
    """What came of connecting: a problem or none, and our own address on that way."""

    problem: str = ""
    stranger: bool = False
    source: str = ""
    mtu: int = 0


def connect_all(targets: Sequence[Target], own: Sequence[TokenPort] = ()) -> Dict[Target, Attempt]:
    """Connect to all, many at a time, and see who answers. Meanwhile greet those who come to our ``own`` ports."""
    attempts: Dict[Target, Attempt] = {}
    for start in range(0, len(targets), _AT_ONCE):
        attempts.update(_connect_some(targets[start : start + _AT_ONCE], own))
    return attempts


def _connect_some(targets: Sequence[Target], own: Sequence[TokenPort]) -> Dict[Target, Attempt]:
    attempts: Dict[Target, Attempt] = {}
    waiting: Dict[int, Tuple[Target, socket.socket]] = {}
    connected = set()
    poller = select.poll()
    with contextlib.ExitStack() as stack:
        for target in targets:
            sock = stack.enter_context(socket_towards(target.address))
            sock.setblocking(False)
            code = sock.connect_ex((target.address, target.port))
            if code not in (0, errno.EINPROGRESS):
                attempts[target] = Attempt(_named(code))
                continue
            waiting[sock.fileno()] = (target, sock)
            poller.register(sock, select.POLLOUT)
        own_ports = {port.fileno(): port for port in own}
        for number in own_ports:
            poller.register(number, select.POLLIN)
        deadline = clock.now() + _CONNECT_SECONDS
        while waiting and clock.now() < deadline:
            for fd, events in poller.poll(max(1, int(1000 * (deadline - clock.now())))):
                if fd in own_ports:
                    own_ports[fd].greet()
                    continue
                target, sock = waiting[fd]
                if fd in connected:
                    attempts[target] = _greeted(target, sock)
                    poller.unregister(fd)
                    del waiting[fd]
                elif events & (select.POLLOUT | select.POLLERR):
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code:
                        attempts[target] = Attempt(_named(code))
                        poller.unregister(fd)
                        del waiting[fd]
                    else:
                        connected.add(fd)
                        poller.modify(fd, select.POLLIN)
        for target, _ in waiting.values():
            attempts[target] = Attempt("timeout")
    return attempts


def _named(code: int) -> str:
    """Return a word for an error of connect: our own for the usual ones, which a verdict must tell apart."""
    names = {errno.ECONNREFUSED: "refused", errno.ETIMEDOUT: "timeout", errno.EHOSTUNREACH: "unreachable"}
    names.update({errno.ENETUNREACH: "no route", errno.EACCES: "forbidden", errno.EPERM: "forbidden"})
    return names.get(code) or os.strerror(code)


def _greeted(target: Target, sock: socket.socket) -> Attempt:
    try:
        token = sock.recv(TOKEN)
        source = str(sock.getsockname()[0])
        mtu = sock.getsockopt(*_MTU[sock.family])
    except OSError as error:
        return Attempt(_named(error.errno or 0))
    return Attempt("", token != target.token, source, mtu)
