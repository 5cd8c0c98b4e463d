"""What the kernel knows of a process's TCP connections: how much they have sent, and how long that took.

Another process of the same network namespace asks the kernel (sock_diag(7)), so the rank itself has no cost. No
privilege is needed. The kernel counts the time in which something that was sent is not acknowledged yet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import struct
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, List, Set, Tuple

__all__ = ["ConnectionView", "connections_of", "sent_by_rail", "watched"]

_LEAST = 1 << 20  # bytes, one way or the other: whoever has moved less tells nothing about the network
_TIMEOUT = 1.0  # seconds; the kernel answers at once
# Of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_INFO = 2  # INET_DIAG_INFO
_ESTABLISHED = 1 << 1
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
_ANSWER = struct.Struct("=BBBBHH16s16s12xIIIII")  # inet_diag_msg; the ports are in the order of the network
_ATTRIBUTE = struct.Struct("=HH")
# Of linux/tcp.h, struct tcp_info: milliseconds since the last acknowledgement; microseconds of the least round trip;
# bytes acknowledged and received; microseconds busy, and of these limited by the receiver; bytes sent again.
_LAST_ACK, _MIN_RTT = struct.Struct("=56xI"), struct.Struct("=148xI")
_BYTES, _BUSY, _AGAIN = struct.Struct("=120xQQ"), struct.Struct("=168xQQ"), struct.Struct("=208xQ")
_UNACKED = struct.Struct("=24xI")


@dataclass(frozen=True)
class ConnectionView:
    """A connection. Sums are since it was made, times in seconds."""

    local: str  #: ``10.77.0.2:41234``
    remote: str
    acknowledged: int  #: bytes that the peer's kernel has got
    received: int  #: bytes
    busy: float  #: in which something was on its way to the peer, and the peer had room for more
    unacknowledged: int  #: segments on their way now
    last_ack: float  #: since the peer's kernel has acknowledged anything
    round_trip: float  #: the shortest
    sent_again: int  #: bytes
    window: float = 0.0  #: for how long it was watched; 0: it was not
    acknowledged_in_window: int = 0  #: bytes
    busy_in_window: float = 0.0


def connections_of(pids: Iterable[int]) -> Dict[int, Tuple[ConnectionView, ...]]:
    """Return the connections of processes that have moved a MiB or more; none where the kernel does not tell."""
    sockets = {pid: _sockets(pid) for pid in pids}
    wanted = set().union(*sockets.values()) if sockets else set()
    if not wanted:
        return {pid: () for pid in sockets}
    views: Dict[int, ConnectionView] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # a kernel without it, or a container that may not ask
            views.update((inode, view) for inode, view in _ask(family) if inode in wanted)
    return {
        pid: tuple(sorted((views[inode] for inode in inodes & views.keys()), key=lambda view: view.local))
        for pid, inodes in sockets.items()
    }


def sent_by_rail(views: Iterable[ConnectionView]) -> List[Tuple[str, str, int]]:
    """Return the bytes that the peers' kernels have got, for each pair of own and far address, in their order."""
    sums: Dict[Tuple[str, str], int] = {}
    for view in views:
        pair = view.local.rpartition(":")[0], view.remote.rpartition(":")[0]
        sums[pair] = sums.get(pair, 0) + view.acknowledged
    return [(*pair, count) for pair, count in sorted(sums.items())]


def watched(
    before: Dict[int, Tuple[ConnectionView, ...]], after: Dict[int, Tuple[ConnectionView, ...]], seconds: float
) -> Dict[int, Tuple[ConnectionView, ...]]:
    """Return the views of ``after``, with what has become more since ``before``, which is so many seconds ago."""
    known = {(view.local, view.remote): view for views in before.values() for view in views}

    def with_window(view: ConnectionView) -> ConnectionView:
        earlier = known.get((view.local, view.remote))
        if earlier is None:
            return view
        return dataclasses.replace(
            view,
            window=seconds,
            acknowledged_in_window=view.acknowledged - earlier.acknowledged,
            busy_in_window=max(0.0, view.busy - earlier.busy),
        )

    return {pid: tuple(map(with_window, views)) for pid, views in after.items()}


def _sockets(pid: int) -> Set[int]:
    """Return the numbers by which the kernel knows the sockets of a process."""
    inodes: Set[int] = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                target = os.readlink(f"{folder}/{number}")
                if target.startswith("socket:["):
                    inodes.add(int(target[len("socket:[") : -1]))
    return inodes


def _ask(family: int) -> Iterator[Tuple[int, ConnectionView]]:
    """Yield all connections of this network namespace, by the numbers of their sockets."""
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as sock:
        sock.settimeout(_TIMEOUT)
        sock.sendto(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + body, (0, 0))
        while True:
            for kind, message in _parts(sock.recv(1 << 17)):
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    return
                yield from _connection(family, message)


def _parts(data: bytes) -> Iterator[Tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        size, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : size]
        data = data[size + -size % 4 :]


def _connection(family: int, message: bytes) -> Iterator[Tuple[int, ConnectionView]]:
    """Yield the connection that a message is about, if it has moved enough to tell anything."""
    _, _, _, _, source_port, target_port, source, target, *_, inode = _ANSWER.unpack_from(message)
    info = next((data for kind, data in _attributes(message[_ANSWER.size :]) if kind == _INFO), b"")
    if len(info) < _AGAIN.size:  # a kernel before 4.19
        return
    acknowledged, received = _BYTES.unpack_from(info)
    busy, receiver = _BUSY.unpack_from(info)
    if acknowledged + received < _LEAST:
        return
    yield (
        inode,
        ConnectionView(
            local=_address(family, source, source_port),
            remote=_address(family, target, target_port),
            acknowledged=acknowledged,
            received=received,
            busy=max(0, busy - receiver) / 1e6,
            unacknowledged=_UNACKED.unpack_from(info)[0],
            last_ack=_LAST_ACK.unpack_from(info)[0] / 1e3,
            round_trip=_MIN_RTT.unpack_from(info)[0] / 1e6,
            sent_again=_AGAIN.unpack_from(info)[0],
        ),
    )


def _attributes(data: bytes) -> Iterator[Tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if size < _ATTRIBUTE.size:
            return
        yield kind, data[_ATTRIBUTE.size : size]
        data = data[size + -size % 4 :]


def _address(family: int, address: bytes, port: int) -> str:
    host = socket.inet_ntop(family, address[: 4 if family == socket.AF_INET else 16])
    host = host[len("::ffff:") :] if host.startswith("::ffff:") and "." in host else host
    number = socket.ntohs(port)
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
