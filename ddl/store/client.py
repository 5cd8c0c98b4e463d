"""Connects to the store: what its clients, store.py and watch.py, have in common. What they ask is in asking.py.

They connect with a deadline, prove the job's secret, and claim their rank; a rank that another process has already
claimed is refused. A process that forks shares its sockets with the child, which would keep a dead rank's connection
open; so a child closes its copies at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Dict, Optional, Sequence, Tuple, Type, TypeVar

from ddl import clock
from ddl.errors import ConfigError, RendezvousError
from ddl.net.address import notice_silence, parse_address
from ddl.net.auth import AuthError, prove_as_client, recv_frame, send_frame
from ddl.net.connecting import connect, first_to_answer

__all__ = ["STORE_GRACE", "Client", "introduce"]

STORE_GRACE = 10.0  #: seconds beyond a request's own timeout after which the store itself is taken for dead
_RETRY = 0.05  #: seconds between two attempts to connect
_ANSWERS, _ADMITS = 2.0, 5.0  #: seconds that one of several addresses has at least, to connect and to let us in

_Self = TypeVar("_Self", bound="Client")


class Client:
    """A connection to the store that has claimed its rank. ``others``: further addresses of the store."""

    def __init__(
        self,
        role: str,
        address: str,
        secret: bytes,
        rank: int,
        timeout: float,
        encrypt: bool,
        others: Sequence[str] = (),
    ) -> None:
        self.rank = rank
        self._sock, self._welcome, self.address = _join(role, (address, *others), secret, rank, timeout, encrypt)
        self.size = int(self._welcome["size"])
        #: Seconds that a host of this job may be silent.
        self.host_timeout = float(self._welcome["host_timeout"])
        if self._welcome["watched"]:
            notice_silence(self._sock, self.host_timeout)
        #: The address of this host on the network that leads to the store.
        self.local_host = str(self._sock.getsockname()[0])
        _close_after_fork(self)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._sock.fileno() < 0

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._sock.close()

    def close_in_child(self) -> None:
        """After a fork, in the child: close the copy that it has."""
        self._sock.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


def _join(
    role: str, addresses: Sequence[str], secret: bytes, rank: int, timeout: float, encrypt: bool
) -> Tuple[socket.socket, Dict[str, Any], str]:
    """Connect, prove the secret and claim the rank, trying all addresses again until the time is over."""
    try:
        places = {address: parse_address(address) for address in addresses}
    except ValueError as error:
        raise ConfigError(f"rank {rank}: the store's address (DDL_STORE) is wrong: {error}") from error
    deadline = clock.now() + timeout
    hello = {"role": role, "rank": rank, "host": socket.gethostname()}
    problems: Dict[str, Exception] = {}
    while True:
        for address in _best_first(addresses, deadline):
            if address in problems and clock.now() + _RETRY >= deadline:
                continue  # what was wrong before says more than that there was no time
            answer, end = _time_for_one(deadline, len(places))
            sock = None
            try:
                sock = connect(*places[address], answer)
                joined, welcome = introduce(sock, hello, secret, end, encrypt)
                sock = None
                return joined, welcome, address
            except (OSError, AuthError) as error:
                if len(places) == 1:
                    _check_retriable(error, address, rank)
                problems[address] = error
            finally:
                if sock is not None:
                    sock.close()
        if clock.now() + _RETRY >= deadline:
            told = "; ".join(f"at {address} within {timeout:g} s: {error}" for address, error in problems.items())
            raise RendezvousError(
                f"rank {rank} could not join the store {told}; "
                "is ddlrun (or the program with the ddl.JobStore) still running, and is the address reachable from "
                "this host?"
            ) from problems[addresses[-1]]
        time.sleep(_RETRY)


def _best_first(addresses: Sequence[str], deadline: float) -> Sequence[str]:
    """Return the store's addresses, beginning with that which answers first: a network may be lost."""
    if len(addresses) > 1:
        with contextlib.suppress(OSError):  # each will say why
            best = first_to_answer(addresses, min(_ANSWERS, deadline - clock.now()))
            return sorted(addresses, key=lambda address: address != best)
    return addresses


def _time_for_one(deadline: float, addresses: int) -> Tuple[float, float]:
    """Return how many seconds an address of the store has to answer, and when we must have been let in there.

    Of several addresses some may lead nowhere, or to somebody else.
    """
    remaining = max(0.01, deadline - clock.now())
    if addresses == 1:
        return remaining, deadline
    return min(remaining, _ANSWERS), clock.now() + min(remaining, max(_ADMITS, remaining / addresses))


def introduce(
    sock: socket.socket, hello: Dict[str, Any], secret: bytes, deadline: float, encrypt: bool
) -> Tuple[socket.socket, Dict[str, Any]]:
    """Prove the secret on a new connection and say hello. Return the socket to use, and the store's welcome.

    ConfigError if it has none.
    """
    if sock.getsockname() == sock.getpeername():
        # Nobody listens, and the kernel happened to give us the very port that we were calling.
        raise ConnectionRefusedError("nobody is listening there")
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    proved = prove_as_client(sock, secret, deadline, encrypt=encrypt)
    try:
        send_frame(proved, hello, deadline)
        welcome = recv_frame(proved, deadline)
        if "error" in welcome:
            raise ConfigError(f"rank {hello['rank']} cannot join the job: {welcome['error']}")
    except BaseException:
        proved.close()  # it may have taken ``sock`` over
        raise
    return proved, welcome


def _check_retriable(error: Exception, address: str, rank: int) -> None:
    if isinstance(error, AuthError) and not error.closed:
        raise AuthError(f"rank {rank} cannot join the store at {address}: {error}") from error
    if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
        raise ConfigError(f"rank {rank}: the store's host in {address!r} (DDL_STORE) is unknown: {error}") from error


_open: weakref.WeakSet[Client] = weakref.WeakSet()
_hooked = threading.Event()


def _close_after_fork(client: Client) -> None:
    _open.add(client)
    if not _hooked.is_set():  # not at import: importing has no side effect
        _hooked.set()
        os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for client in list(_open):
        client.close_in_child()
