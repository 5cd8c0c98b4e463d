"""What the kernel tells of the connections of a process, as another process sees it."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import threading
import time
from typing import Iterator, Tuple

import pytest
from bounds import Measured, at_most
from ipv6 import needs_ipv6

from ddl.records.connections import connections_of, watched

MIB = 1 << 20
_BYTES_RETRANS = 208  # in linux/tcp.h's struct tcp_info


@pytest.fixture(
    params=[(socket.AF_INET, "127.0.0.1"), pytest.param((socket.AF_INET6, "::1"), marks=needs_ipv6)],
    ids=["IPv4", "IPv6"],
)
def pair(request: pytest.FixtureRequest) -> Iterator[Tuple[socket.socket, socket.socket]]:
    family, address = request.param
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as sender:
            receiver, _ = listener.accept()
            with receiver:
                yield sender, receiver


def send(sender: socket.socket, receiver: socket.socket, size: int) -> None:
    """Send so much, and wait until the other side has it, and its kernel has said so."""
    thread = threading.Thread(target=sender.sendall, args=(bytes(size),))
    thread.start()
    while size > 0:
        size -= len(receiver.recv(min(size, MIB)))
    thread.join()
    while struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4))) != (0,):  # bytes not acknowledged
        time.sleep(0.001)


def name(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def test_bytes_of_both_sides(pair: Tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    send(sender, receiver, 3 * MIB)
    views = {view.local: view for view in connections_of([os.getpid()])[os.getpid()]}
    ours, theirs = views[name(sender)], views[name(receiver)]
    assert ours.remote == name(receiver) and theirs.remote == name(sender)
    assert 3 * MIB <= ours.acknowledged <= 3 * MIB + 1 and theirs.received == 3 * MIB  # its first segment counts as one
    # On a busy machine the kernel may take an acknowledgement that is late for a loss.
    again = struct.unpack_from("Q", sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _BYTES_RETRANS)
    assert ours.unacknowledged == 0 and (ours.sent_again,) == again and 0 < ours.round_trip < 1
    assert 0 <= ours.busy < 60 and ours.window == 0


def test_what_becomes_more_while_it_is_watched(pair: Tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    send(sender, receiver, 2 * MIB)
    before = connections_of([os.getpid()])
    send(sender, receiver, 5 * MIB)
    after = watched(before, connections_of([os.getpid()]), 0.5)[os.getpid()]
    view = next(view for view in after if view.local == name(sender))
    assert view.acknowledged_in_window == 5 * MIB and view.window == 0.5
    assert 0 <= view.busy_in_window <= view.busy


def test_what_is_acknowledged_no_more(pair: Tuple[socket.socket, socket.socket]) -> None:
    """The receiver reads nothing, so its kernel takes no more: that is not the network's doing."""
    sender, receiver = pair
    send(sender, receiver, 2 * MIB)
    sender.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            sender.send(bytes(MIB))

    def busy() -> float:
        (view,) = (view for view in connections_of([os.getpid()])[os.getpid()] if view.local == name(sender))
        return view.busy

    def measured() -> Measured:
        before, begin = busy(), time.monotonic()
        time.sleep(0.5)
        return [(busy() - before, time.monotonic() - begin)]

    at_most(0.5, measured, "of the time, busy")


def test_small_traffic_other_processes_and_those_that_have_ended(pair: Tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    send(sender, receiver, 1000)
    gone = 1 << 30
    assert connections_of([os.getpid(), os.getppid(), gone]) == {os.getpid(): (), os.getppid(): (), gone: ()}
    assert connections_of([]) == {}
