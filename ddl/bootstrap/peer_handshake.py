"""Makes and accepts connections: TCP for messages, Unix sockets to prove that two ranks share memory.

On every connection both ends first prove that they know the job's secret (ddl/net/auth.py). Then one frame says what
it is for. Two ranks share memory if each has mapped the arena of the other: the descriptor goes over a Unix socket, and
the arena must hold, at a known place, the nonce that its owner has published in the store. The rank with the higher
number connects.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddl import _core, clock
from ddl.errors import ConfigError, ProtocolError
from ddl.net import rails
from ddl.net.address import family_of
from ddl.net.auth import AuthError, prove_as_client, recv_frame, send_frame
from ddl.net.connecting import Place, connect_to_first
from ddl.net.rails import RailOffer

__all__ = [
    "Neighbour",
    "Nonce",
    "accept_data",
    "accept_memory",
    "choose_congestion_control",
    "connect_data",
    "connect_memory",
]
__all__ += ["listen_data", "listen_memory", "listen_on_rails", "reconsider_congestion_control"]

_ACCEPT_SECONDS = 5.0  # for one side of a handshake
_HELLO_LIMIT = 256 << 10  # bytes: what a member says of a new store has the numbers of all members
_RETRY_SECONDS = 0.05
_CROWDED = (BlockingIOError, TimeoutError, ConnectionResetError, BrokenPipeError)  # its queue is full, or it hung up
_CREDENTIALS = struct.Struct("3i")  # of SO_PEERCRED: process, user, group
_LONG_WAY_US = 1000  # a round trip from which on the system's congestion control may know better


@dataclass(frozen=True)
class Nonce:
    """Random bytes at a known place of an arena: who can read them has mapped it."""

    offset: int
    text: str  # hex

    @staticmethod
    def place() -> Tuple[Nonce, Any]:
        """Return a new nonce in this process's arena, and the block that holds it (keep it alive)."""
        block = _core.SharedBlock(32)
        value = secrets.token_bytes(32)
        memoryview(block).cast("B")[:32] = value
        return Nonce(_core.arena_offset(block), value.hex()), block

    def check(self, memory: _core.PeerMemory, rank: int) -> None:
        if memory.read(self.offset, 32).hex() != self.text:
            raise ProtocolError(f"rank {rank} passed memory that is not its own arena; shared memory refused")


def listen_data(host: str, congestion: str = "system") -> socket.socket:
    """Return a TCP socket that listens on ``host`` at a free port; what it accepts has ``congestion``, see below."""
    listener = socket.socket(family_of(host), socket.SOCK_STREAM)
    try:
        choose_congestion_control(listener, congestion)
        listener.bind((host, 0))
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def listen_on_rails(
    interface: str, congestion: str, towards_store: str, *, dead: bool = False
) -> Tuple[List[socket.socket], List[RailOffer]]:
    """Listen for data wherever there may be a rail; only the first must work. ``dead``: see ``rails.places``."""
    listeners: List[socket.socket] = []
    offers = []
    for place in rails.places(interface, towards_store, dead=dead):
        try:
            listener = listen_data(place.address, congestion)
        except OSError:
            if not listeners:
                raise
            continue
        listeners.append(listener)
        offers.append(place._replace(port=listener.getsockname()[1]))
    return listeners, offers


def choose_congestion_control(sock: socket.socket, wanted: str) -> None:
    """Set the congestion control of a data socket to ``wanted``, before it listens or connects.

    "system" leaves it. "auto" replaces bbr, which paces by timers, by cubic: within a data centre pacing halves the
    rate and nothing is gained. Not after connecting: a connection that began under bbr is paced for good.
    Raises ``ConfigError`` for a name that the kernel refuses.
    """
    if wanted == "system" or (wanted == "auto" and not _control_of(sock).startswith("bbr")):
        return
    for name in ("cubic", "reno") if wanted == "auto" else (wanted,):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            return
        except OSError as error:
            if wanted != "auto":
                raise ConfigError(
                    f"DDL_TCP_CONGESTION={wanted!r}: the kernel refuses it ({error.strerror}); "
                    "see /proc/sys/net/ipv4/tcp_allowed_congestion_control"
                ) from error


def reconsider_congestion_control(sock: socket.socket, wanted: str) -> None:
    """Give a connection the system's congestion control back if "auto" changed it and the path proves to be long."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 152)
    # tcpi_min_rtt of linux/tcp.h. Not the mean: a delayed acknowledgement makes 40 ms of 40 us.
    round_trip_us = int.from_bytes(info[148:152], sys.byteorder)
    if wanted != "auto" or round_trip_us < _LONG_WAY_US:
        return
    with socket.socket(sock.family, socket.SOCK_STREAM) as fresh:
        system = _control_of(fresh)
    if system != _control_of(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, system.encode())


def _control_of(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def listen_memory() -> Tuple[socket.socket, str]:
    """Return a Unix socket that listens, and its name: abstract, so it leaves no file and ends with the process."""
    name = "ddl-" + secrets.token_hex(16)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + name)
    listener.listen(256)
    return listener, name


def connect_data(
    places: Sequence[Place],
    secret: bytes,
    hello: Dict[str, Any],
    deadline: float,
    congestion: str = "system",
    source: str = "",
    *,
    encrypt: bool,
) -> socket.socket:
    """Connect to the first of ``places`` of one process that answers, prove the secret and send ``hello``.

    All that by ``deadline`` (monotonic seconds). ``source``: the address of this host to connect from; empty: as the
    routing table says. To ``encrypt``, the socket is an ``EncryptedSocket``.
    """

    def prepare(sock: socket.socket) -> None:
        choose_congestion_control(sock, congestion)
        if source:
            sock.bind((source, 0))

    sock, _ = connect_to_first(places, max(0.1, deadline - clock.now()), prepare)
    try:
        sock = prove_as_client(sock, secret, deadline, encrypt=encrypt, read_ahead=True)
        send_frame(sock, hello, deadline)
        reconsider_congestion_control(sock, congestion)
    except BaseException:
        sock.close()
        raise
    return sock


def accept_data(sock: socket.socket, congestion: str = "system") -> Dict[str, Any]:
    """Return the hello of a new connection that has proved itself."""
    hello = recv_frame(sock, clock.now() + _ACCEPT_SECONDS, limit=_HELLO_LIMIT)
    reconsider_congestion_control(sock, congestion)
    return hello


class Neighbour(NamedTuple):
    """A rank of this host, as it has shown itself: its arena, its vote cell (-1: it has none) and its process."""

    rank: int
    memory: _core.PeerMemory
    cell_fd: int
    pid: int


def _swap_memory(
    sock: socket.socket, nonce_of: Callable[[int], Nonce], rank: int, cell_fd: int, deadline: float
) -> Neighbour:
    """Send my arena and vote cell, map the peer's, and tell each other that it worked. Takes a copy of the socket."""
    sock.settimeout(max(0.1, deadline - clock.now()))
    own = [_core.arena_fd(), *([cell_fd] if cell_fd >= 0 else [])]
    socket.send_fds(sock, [_core.arena_bytes().to_bytes(8, "little")], own)
    data, fds, _, _ = socket.recv_fds(sock, 8, 2)
    if len(data) != 8 or len(fds) != len(own):
        for fd in fds:
            os.close(fd)
        raise ProtocolError(f"rank {rank} did not pass its shared memory")
    peer_cell = fds[1] if len(fds) > 1 else -1
    try:
        try:
            memory = _core.PeerMemory(fds[0], int.from_bytes(data, "little"), os.dup(sock.fileno()))
        except ProtocolError as error:
            raise ProtocolError(f"rank {rank}'s memory is refused: {error}") from error
        nonce_of(rank).check(memory, rank)
        send_frame(sock, {"mapped": True}, deadline)
        if recv_frame(sock, deadline, limit=4096) != {"mapped": True}:
            raise ProtocolError(f"rank {rank} could not map this rank's shared memory")
    except BaseException:
        if peer_cell >= 0:
            os.close(peer_cell)
        raise
    pid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
    return Neighbour(rank, memory, peer_cell, pid)


def connect_memory(
    name: str, secret: bytes, me: int, peer: int, nonce_of: Callable[[int], Nonce], deadline: float, cell_fd: int = -1
) -> Optional[Neighbour]:
    """Return the arena of ``peer``, or None where its Unix socket cannot be reached: then no memory is shared.

    Tries again, by ``deadline`` (monotonic seconds), where others crowd the socket so that the peer has no time for us.
    ``cell_fd``: this rank's vote cell, where ranks come and go.
    """
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            try:
                _prove_for_memory(sock, name, secret, deadline)
            except ConnectionRefusedError:
                return None  # another host, or another network namespace
            except (OSError, AuthError) as error:
                crowded = error.closed if isinstance(error, AuthError) else isinstance(error, _CROWDED)
                if not crowded or clock.now() + _RETRY_SECONDS >= deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
                continue
            send_frame(sock, {"rank": me}, deadline)
            return _swap_memory(sock, nonce_of, peer, cell_fd, deadline)


def _prove_for_memory(sock: socket.socket, name: str, secret: bytes, deadline: float) -> None:
    limit = min(deadline, clock.now() + _ACCEPT_SECONDS)
    sock.settimeout(max(0.1, limit - clock.now()))
    sock.connect("\0" + name)
    prove_as_client(sock, secret, limit)


def accept_memory(sock: socket.socket, nonce_of: Callable[[int], Nonce], cell_fd: int = -1) -> Neighbour:
    """Swap arenas over a new connection that has proved itself; return the peer and its memory."""
    deadline = clock.now() + _ACCEPT_SECONDS
    rank = recv_frame(sock, deadline, limit=4096).get("rank")
    if not isinstance(rank, int):
        raise ProtocolError("a peer did not say its rank")
    return _swap_memory(sock, nonce_of, rank, cell_fd, deadline)
