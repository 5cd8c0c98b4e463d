"""The store as a rank sees it: ``StoreClient`` for keys and check-in, ``WatchClient`` for failures; and as ddlrun's
agent of a host does: ``AgentClient``.

The server is server.py. Both clients connect with a deadline, prove the job's secret, and claim their rank; a rank
that another process has already claimed is refused. A process that forks shares its sockets with the child, which
would keep a dead rank's connection open; so a child closes its copies at once.
"""

from __future__ import annotations

import collections
import os
import socket
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Deque, Dict, List, Optional, Tuple, Type, TypeVar

from ddl.bootstrap.address import notice_silence, parse_address
from ddl.bootstrap.auth import (
    AuthError,
    FrameReader,
    encode_frame,
    prove_as_client,
    recv_frame,
    send_frame,
    write_all,
)
from ddl.bootstrap.server import StoreServer
from ddl.errors import ConfigError, InvalidArgument, InvalidState, PeerLost, ProtocolError, RendezvousError

__all__ = ["AgentClient", "StoreClient", "StoreServer", "WatchClient"]

_GRACE = 10.0  #: seconds beyond a request's own timeout after which the store itself is taken for dead
_RETRY = 0.05  #: seconds between two attempts to connect

_Self = TypeVar("_Self", bound="_Client")


class _Client:
    """A connection to the store that has claimed its rank."""

    def __init__(self, role: str, address: str, secret: bytes, rank: int, timeout: float) -> None:
        self.rank = rank
        self.address = address
        self._sock, self.size = _join(role, address, secret, rank, timeout)
        _close_after_fork(self)

    @property
    def local_host(self) -> str:
        """The address of this host on the network that leads to the store."""
        return str(self._sock.getsockname()[0])

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._sock.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


class StoreClient(_Client):
    """A rank's connection for keys and check-in. Any thread may call; one request is under way at a time.

    Once the store is lost, every later call raises PeerLost.
    """

    def __init__(self, address: str, secret: bytes, rank: int, timeout: float) -> None:
        super().__init__("store", address, secret, rank, timeout)
        self._lock = threading.Lock()
        self._number = 0
        self._lost = ""

    def set(self, key: str, value: str, timeout: float = 30.0) -> None:
        """Set a key; a key that exists is overwritten. InvalidArgument if key or value is too long."""
        self._ask({"ask": "set", "key": key, "value": value}, timeout)

    def get(self, key: str, timeout: float) -> str:
        """Return the value of ``key``, waiting until some rank sets it. TimeoutError after ``timeout`` seconds."""
        answer = self._ask({"ask": "get", "key": key, "timeout": timeout}, timeout)
        if answer.get("timeout"):
            raise TimeoutError(f"rank {self.rank}: no rank set {key!r} in the store within {timeout:g} s")
        return str(answer["value"])

    def check_in(self, value: str, timeout: float, round: int = 0) -> List[str]:
        """Post this rank's value and wait for all ranks; return all values in rank order. Collective.

        RendezvousError names the ranks that had not come when the first of the waiting ranks ran out of time; from
        then on the round has failed for every rank. Each check-in of a job needs a ``round`` of its own.
        """
        answer = self._ask({"ask": "check_in", "value": value, "timeout": timeout, "round": round}, timeout)
        if "missing" in answer:
            raise RendezvousError(
                f"rank {self.rank} of {self.size} checked in, but {answer['missing']}; "
                "see what they printed, or give them more time (DDL_START_TIMEOUT)"
            )
        values: List[str] = answer["values"]
        if len(values) != self.size:
            raise ProtocolError(f"rank {self.rank}: the store sent {len(values)} values for {self.size} ranks")
        return values

    def _ask(self, request: Dict[str, Any], timeout: float) -> Dict[str, Any]:
        with self._lock:
            if self._lost:
                raise PeerLost(self._lost)
            if self._sock.fileno() < 0:
                raise InvalidState(f"rank {self.rank}: the store was asked for {request['ask']!r} after close()")
            deadline = time.monotonic() + timeout + _GRACE
            self._number += 1
            # Whatever interrupts us here, also Ctrl-C, leaves an answer on its way that is not for the next request.
            self._lost = f"rank {self.rank}: a {request['ask']!r} request to the store was interrupted"
            try:
                send_frame(self._sock, dict(request, number=self._number), deadline)
                answer = self._answer(deadline)
            except (PeerLost, RendezvousError, ProtocolError) as error:
                self._lost = f"rank {self.rank}: lost the store at {self.address} (is ddlrun still there?): {error}"
                raise PeerLost(self._lost) from error
            self._lost = ""
        if "error" in answer:
            raise InvalidArgument(f"rank {self.rank}: {request['ask']} in the store was refused: {answer['error']}")
        return answer

    def _answer(self, deadline: float) -> Dict[str, Any]:
        values: List[str] = []
        while True:
            answer = recv_frame(self._sock, deadline)
            if "values" in answer:  # a part of a check-in's answer
                values += answer["values"]
                if not answer["last"]:
                    continue
                return {"values": values}
            if answer.get("number") != self._number:
                raise ProtocolError(f"the store answered request {answer.get('number')}, not {self._number}")
            return answer


class WatchClient(_Client):
    """The connection whose life is this rank's life for the others; messages both ways are those of verdict.py.

    For a selector loop: ``receive`` never blocks. One thread may receive while others send.
    """

    def __init__(self, address: str, secret: bytes, rank: int, timeout: float, role: str = "watch") -> None:
        super().__init__(role, address, secret, rank, timeout)
        self._sending = threading.Lock()
        self._reader = FrameReader(f"the store at {address}")
        self._received: Deque[Dict[str, Any]] = collections.deque()

    def fileno(self) -> int:
        """The descriptor to select on; -1 after ``close``."""
        return self._sock.fileno()

    def send(self, message: Dict[str, Any]) -> None:
        """Send a message; PeerLost if the store is gone or has not read for ten seconds."""
        frame = encode_frame(message)
        try:
            with self._sending:
                write_all(self._sock, frame, time.monotonic() + _GRACE)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError; ValueError: our end is closed
            raise PeerLost(f"rank {self.rank}: lost the store at {self.address} while sending: {error}") from error

    def receive(self) -> Optional[Dict[str, Any]]:
        """Return the next message, ``{}`` if none is complete yet, None if the store closed the connection.

        After the descriptor became readable, call until it returns ``{}`` or None: several messages may have come at
        once, and the descriptor tells only of bytes that have not been read.
        """
        if not self._received:
            try:
                data = self._sock.recv(1 << 16, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return {}
            except ConnectionError:
                return None
            if not data:
                return None
            self._received.extend(self._reader.feed(data))
        return self._received.popleft() if self._received else {}


class AgentClient(WatchClient):
    """The connection of host ``host``'s agent; messages both ways are those of ddl/run/control.py."""

    def __init__(self, address: str, secret: bytes, host: int, timeout: float) -> None:
        super().__init__(address, secret, host, timeout, "agent")
        notice_silence(self._sock)  # ddlrun may be stopped (Ctrl-Z) for as long as it likes, its host may not be gone


def _join(role: str, address: str, secret: bytes, rank: int, timeout: float) -> Tuple[socket.socket, int]:
    """Connect, prove the secret and claim the rank, trying again until the time is over."""
    try:
        host, port = parse_address(address)
    except ValueError as error:
        raise ConfigError(f"rank {rank}: the store's address (DDL_STORE) is wrong: {error}") from error
    deadline = time.monotonic() + timeout
    while True:
        sock = None
        try:
            sock = socket.create_connection((host, port), timeout=max(0.01, deadline - time.monotonic()))
            size = _introduce(sock, role, secret, rank, deadline)
            joined, sock = sock, None
            return joined, size
        except (OSError, AuthError) as error:
            _check_retriable(error, address, rank)
            if time.monotonic() + _RETRY >= deadline:
                raise RendezvousError(
                    f"rank {rank} could not join the store at {address} within {timeout:g} s: {error}; "
                    "is ddlrun still running, and is the address reachable from this host?"
                ) from error
        finally:
            if sock is not None:
                sock.close()
        time.sleep(_RETRY)


def _introduce(sock: socket.socket, role: str, secret: bytes, rank: int, deadline: float) -> int:
    if sock.getsockname() == sock.getpeername():
        # Nobody listens, and the kernel happened to give us the very port that we were calling.
        raise ConnectionRefusedError("nobody is listening there")
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    prove_as_client(sock, secret, deadline)
    send_frame(sock, {"role": role, "rank": rank}, deadline)
    answer = recv_frame(sock, deadline)
    if "error" in answer:
        raise ConfigError(f"rank {rank} cannot join the job: {answer['error']}")
    return int(answer["size"])


def _check_retriable(error: Exception, address: str, rank: int) -> None:
    if isinstance(error, AuthError) and not error.closed:
        raise AuthError(f"rank {rank} cannot join the store at {address}: {error}") from error
    if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
        raise ConfigError(f"rank {rank}: the store's host in {address!r} (DDL_STORE) is unknown: {error}") from error


_open: weakref.WeakSet[_Client] = weakref.WeakSet()
_hooked = threading.Event()


def _close_after_fork(client: _Client) -> None:
    _open.add(client)
    if not _hooked.is_set():  # not at import: importing has no side effect
        _hooked.set()
        os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for client in list(_open):
        client._sock.close()
