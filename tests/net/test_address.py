"""Addresses of IPv4 and IPv6: their order, that a listener takes both, and whether somebody is at the other end."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Any, Iterator, List

import pytest
from ipv6 import needs_ipv6

from ddl.net import address
from ddl.net.address import EVERYWHERE, family_of, fell_silent, listen, notice_silence, resolve, silent_for
from ddl.net.auth import name_of
from ddl.net.connecting import connect

HERE = ["127.0.0.1", "::1"]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """The addresses to which every name leads, in the order of the name service."""
    leads: List[str] = []
    real = socket.getaddrinfo

    def ask(host: str, *rest: Any, **more: Any) -> List[Any]:
        asked = [host] if family_of(host) == socket.AF_INET6 or host.startswith("127.") else leads
        return [entry for each in asked for entry in real(each, *rest, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    return leads


@contextlib.contextmanager
def port_at(host: str) -> Iterator[int]:
    with listen(host, 0) as listener:
        yield int(listener.getsockname()[1])


def test_ipv4_is_first(names: List[str]) -> None:
    names += ["::1", "127.0.0.1", "::1"]
    assert resolve("both") == HERE
    assert resolve("::1") == ["::1"] and resolve("127.0.0.1") == ["127.0.0.1"]


@needs_ipv6
def test_a_listener_everywhere_takes_both() -> None:
    with listen(EVERYWHERE, 0) as listener:
        port = listener.getsockname()[1]
        listener.setblocking(True)
        for host in HERE:
            with connect(host, port, 100.0), listener.accept()[0] as visitor:
                shown = f"[{host}]" if ":" in host else host
                assert name_of(visitor).startswith(f"the peer at {shown}:")


def test_a_host_whose_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without(family: int = socket.AF_INET, *rest: Any, **more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *rest, **more)

    monkeypatch.setattr(address.socket, "socket", without)
    with listen(EVERYWHERE, 0) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
        answered = threading.Thread(target=lambda: listener.accept()[0].close())
        listener.setblocking(True)
        answered.start()
        connect("127.0.0.1", listener.getsockname()[1], 100.0).close()
        answered.join()


@pytest.mark.parametrize("seconds", [4, 4.5, 7, 100, 102, 103, 1000, 3600])
def test_a_host_may_be_silent_for_so_long(seconds: float) -> None:
    """Whether nothing is under way, and the kernel asks, or something, and it sends that again."""
    with socket.socket() as sock:
        notice_silence(sock, seconds)

        def option(name: int) -> int:
            return sock.getsockopt(socket.IPPROTO_TCP, name)

        count = option(socket.TCP_KEEPCNT)  # the kernel takes no more than 127
        asked = option(socket.TCP_KEEPIDLE) + option(socket.TCP_KEEPINTVL) * count
        assert seconds <= asked <= 1.1 * seconds + 1
        assert option(socket.TCP_USER_TIMEOUT) == 1000 * seconds
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_a_host_that_answers_every_two_seconds_is_not_silent() -> None:
    assert fell_silent(2.3, 4, "its host") == fell_silent(6.4, 7, "its host") == ""
    assert fell_silent(8.7, 7, "its host") == "nothing has come from its host for 9 s: it is down, or the network to it"


@pytest.mark.parametrize("watched", [False, True])
def test_an_idle_connection_is_not_silent_unless_its_host_was_asked(watched: bool) -> None:
    """A process that is killed with something unread resets it: what came last may be an hour ago."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2]) as near:
        listener.setblocking(True)
        far, _ = listener.accept()
        if watched:
            notice_silence(near, 7)
        time.sleep(0.1)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        with pytest.raises(ConnectionResetError):
            near.recv(1)
        assert silent_for(near) >= 0.1 if watched else silent_for(near) == 0.0
