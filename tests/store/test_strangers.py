"""Strangers at the store's port: whatever they send, nothing is interpreted, and real ranks are served meanwhile."""

from __future__ import annotations

import logging
import os
import random
import socket
import struct
import time
from typing import Callable, List

import pytest
from hang_up import hang_up_within
from pestering import pestering

from ddl.net import newcomers
from ddl.net.address import parse_address
from ddl.net.auth import AuthError, encode_frame, prove_as_client
from ddl.store import server_connections
from ddl.store.server import StoreServer
from ddl.store.store import StoreClient
from ddl.store.watch import WatchClient


def works(server: StoreServer, secret: bytes, rank: int) -> None:
    with StoreClient(server.address, secret, rank, 60) as client:
        client.set("a", "b")
        assert client.get("a", 60) == "b"


JUNK = {
    "zeros": bytes(1000),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10,
    "million-byte header": struct.pack("!I", 1_000_000) + b"x" * 100_000,
    "json without proof": encode_frame({"role": "watch", "rank": 0}) * 10,
    "random": random.Random(1).randbytes(100_000),
}


@pytest.mark.parametrize("name", JUNK)
def test_junk_is_cut_off(server: StoreServer, secret: bytes, name: str) -> None:
    with socket.create_connection(parse_address(server.address)) as stranger:
        try:
            stranger.sendall(JUNK[name])
        except ConnectionError:
            pass  # cut off already
        assert hang_up_within(stranger, 100)
    works(server, secret, 0)
    assert server.first_failure is None


def test_a_wrong_secret_is_told_at_once(server: StoreServer, secret: bytes) -> None:
    with pytest.raises(AuthError, match="rank 1 cannot join the store at .*secret"):
        StoreClient(server.address, os.urandom(32), 1, 1000)  # longer than the test may take
    works(server, secret, 1)


def test_many_silent_strangers_do_not_keep_ranks_out(server: StoreServer, secret: bytes) -> None:
    strangers: List[socket.socket] = []
    try:
        for _ in range(3 * newcomers.PLACES):
            strangers.append(socket.create_connection(parse_address(server.address)))
        for rank in range(4):
            works(server, secret, rank)
        assert len(server._door._strangers) <= newcomers.PLACES
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_burst_of_junk_costs_a_bounded_number_of_handshakes_and_one_warning(
    server: StoreServer, secret: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers come back as fast as they are sent away; a rank gets in meanwhile."""
    monkeypatch.setattr(newcomers, "_QUIET", 1000.0)  # longer than the test may take
    most = served = 0
    begin = time.monotonic()
    with pestering(parse_address(server.address), strangers=8) as sent_away:
        while served < 5 * newcomers.PLACES:  # so often all places are taken, one after the other
            most = max(most, len(server._door._strangers))
            time.sleep(0.01)
            served = sent_away[0]
        works(server, secret, 0)
        served = sent_away[0]
        took = time.monotonic() - begin
    assert served <= newcomers.PLACES * (took / newcomers._LEAST + 1)
    assert 0 < most <= newcomers.PLACES
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1 and warnings[0].startswith("the job's store: turned a connection away: the peer at ")
    assert server.first_failure is None


def test_a_slow_stranger_is_cut_off_though_it_keeps_sending(
    monkeypatch: pytest.MonkeyPatch, server: StoreServer, secret: bytes
) -> None:
    with monkeypatch.context() as patch, socket.create_connection(parse_address(server.address)) as stranger:
        patch.setattr(newcomers, "LONGEST", 0.5)
        with pytest.raises(ConnectionError):
            while True:  # the test's timeout is on
                stranger.sendall(b"D")
                time.sleep(0.05)
    works(server, secret, 0)


def test_a_proven_connection_that_says_nothing_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, server: StoreServer, secret: bytes
) -> None:
    monkeypatch.setattr(server_connections, "HELLO_SECONDS", 0.3)
    with socket.create_connection(parse_address(server.address)) as silent:
        prove_as_client(silent, secret, time.monotonic() + 60)
        assert hang_up_within(silent, 100)


@pytest.mark.parametrize(
    "hello",
    [
        encode_frame({}),
        encode_frame({"role": "watch"}),
        encode_frame({"role": "root", "rank": 0}),
        encode_frame({"role": "watch", "rank": "0"}),
        encode_frame({"role": "watch", "rank": True}),
        struct.pack("!I", 2**31),
        struct.pack("!I", 3) + b"[1]",
    ],
)
def test_a_rank_that_speaks_nonsense_is_cut_off(server: StoreServer, secret: bytes, hello: bytes) -> None:
    with socket.create_connection(parse_address(server.address)) as sock:
        prove_as_client(sock, secret, time.monotonic() + 60)
        sock.sendall(hello)
        assert hang_up_within(sock, 100)
    assert server.first_failure is None
    works(server, secret, 0)


def test_a_rank_that_breaks_the_watch_protocol_is_the_culprit(
    server: StoreServer, secret: bytes, watch: Callable[[int], WatchClient]
) -> None:
    broken, witness = watch(2), watch(0)
    broken.send({"type": "suspect", "comm": "0"})
    deadline = time.monotonic() + 60
    message = {}
    while not message and time.monotonic() < deadline:
        message = witness.receive() or {}
    assert (message["kind"], message["culprit"], message["comm"]) == ("PeerLost", 2, -1)
    assert "protocol" in message["reason"]
    assert server.first_failure == message
    works(server, secret, 2)
