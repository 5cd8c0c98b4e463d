"""DDL_TCP_CONGESTION: what data connections get, what is left alone, and how a name that makes no sense is told."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from pathlib import Path
from typing import Iterator, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected
from proving import prove_as_server

import ddl
from ddl.bootstrap import peer_handshake
from ddl.bootstrap.peer_handshake import accept_data, choose_congestion_control, connect_data, listen_data

pytestmark = pytest.mark.processes

KIB = 1 << 10


def usable() -> List[str]:
    """Names that this process may set."""
    names = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    return names if os.geteuid() == 0 else [name for name in names if name in allowed]


def control_of(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@pytest.fixture
def pair() -> Iterator[Tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            other, _ = listener.accept()
            with other:
                yield client, other


def test_system_leaves_it(pair: Tuple[socket.socket, socket.socket]) -> None:
    for sock, name in itertools.product(pair, usable()):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        choose_congestion_control(sock, "system")
        assert control_of(sock) == name


def test_a_name_is_set(pair: Tuple[socket.socket, socket.socket]) -> None:
    assert "reno" in usable()
    for sock, name in itertools.product(pair, usable()):
        choose_congestion_control(sock, name)
        assert control_of(sock) == name


def test_auto_replaces_bbr_and_nothing_else(pair: Tuple[socket.socket, socket.socket]) -> None:
    for sock, name in itertools.product(pair, usable()):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        choose_congestion_control(sock, "auto")
        wanted = next(known for known in ("cubic", "reno") if known in usable()) if name == "bbr" else name
        assert control_of(sock) == wanted


@pytest.mark.parametrize("name", ["nonsense", "x" * 40, "Cubic"])
def test_a_name_that_the_kernel_refuses(pair: Tuple[socket.socket, socket.socket], name: str) -> None:
    before = control_of(pair[0])
    with pytest.raises(ddl.ConfigError, match=f"DDL_TCP_CONGESTION='{name}'.*allowed_congestion_control"):
        choose_congestion_control(pair[0], name)
    assert control_of(pair[0]) == before


def test_a_connection_has_it_from_its_beginning() -> None:
    """What is accepted has the listener's, as a connection that changed it later would go on being paced."""
    secret = bytes(32)
    with listen_data("127.0.0.1", "reno") as listener:
        heard: List[str] = []

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                heard.append(control_of(sock))
                prove_as_server(sock, secret, time.monotonic() + 60)
                assert accept_data(sock, "reno") == {"rank": 1}

        server = threading.Thread(target=serve)
        server.start()
        deadline = time.monotonic() + 60
        with connect_data([listener.getsockname()], secret, {"rank": 1}, deadline, "reno", encrypt=False) as sock:
            assert control_of(sock) == "reno"
        server.join()
    assert heard == ["reno"]


def test_a_long_way_gets_the_system_s_back(
    pair: Tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    other = next(name for name in usable() if name != system)
    for long_way, wanted, expected in [(10**6, "auto", other), (0, other, other), (0, "auto", system)]:
        monkeypatch.setattr(peer_handshake, "_LONG_WAY_US", long_way)
        for sock in pair:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, other.encode())
            peer_handshake.reconsider_congestion_control(sock, wanted)
            assert control_of(sock) == expected


def controls() -> List[str]:
    """Of all connections that carry a large operation; the connection to the store is none of them."""
    ddl.allreduce(np.ones(400_000))
    names = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as sock:
                if sock.family != socket.AF_INET or sock.type != socket.SOCK_STREAM:
                    continue
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                if info[0] == 1 and int.from_bytes(info[128:136], "little") > 64 * KIB:
                    names.append(control_of(sock))
        except OSError:
            continue
    ddl.barrier()  # a rank that ends closes its connections
    return sorted(names)


@pytest.mark.parametrize("wanted", ["auto", "system", "reno", "cubic"])
def test_data_connections_have_what_was_asked_for(wanted: str) -> None:
    if wanted not in ("auto", "system", *usable()):
        pytest.skip(f"this kernel has no {wanted}")
    default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    expected = {"system": default, "auto": "cubic" if default == "bbr" else default}.get(wanted, wanted)
    for names in ranks.run(2, controls, **connected("tcp", DDL_TCP_CONGESTION=wanted)):
        assert names and set(names) == {expected}, names


def nonsense() -> Tuple[str, str]:
    try:
        ddl.init()
        ddl.allreduce(np.ones(300_000))
    except ddl.Error as error:
        return type(error).__name__, str(error)
    return "returned", ""


def test_nonsense_is_told_to_every_rank_and_nothing_hangs() -> None:
    """No rank waits for a deadline: that would be another error."""
    job = connected("tcp", DDL_TCP_CONGESTION="nonsense", DDL_LOG="error")
    for kind, text in ranks.run(2, nonsense, initialise=False, **job):
        assert kind in ("ConfigError", "PeerLost") and "DDL_TCP_CONGESTION='nonsense'" in text, (kind, text)
