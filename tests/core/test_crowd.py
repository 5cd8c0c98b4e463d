"""Strangers at a rank's ports: however many, they cost it a bounded number of handshakes, and ranks come through."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from typing import Any, Callable, Iterator, List

import numpy as np
import pytest
import ranks
from core.jobs import connected
from hang_up import hang_up_within
from pestering import pestering

import ddl
from ddl import clock
from ddl.bootstrap import peer_handshake
from ddl.net import newcomers
from ddl.net.auth import prove_as_client
from ddl.net.newcomers import Complaints, Door, in_a_thread
from ddl.net.shortage import Shortage

SECRET = os.urandom(32)


class Served:
    """A door that is served by a thread, as an agent serves it; ``welcomed`` counts who has proved the secret."""

    def __init__(self) -> None:
        self.listener = peer_handshake.listen_data("127.0.0.1")
        self.address = self.listener.getsockname()
        self.welcomed = 0
        self.most = 0  # strangers at a time
        self._selector = selectors.DefaultSelector()
        self._stop = threading.Event()
        complaints = Complaints("rank 3", Shortage("rank 3 cannot make connections"))
        welcome = in_a_thread(self._welcome, complaints)
        self.door = Door(self.listener, SECRET, self._selector, complaints, welcome)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _welcome(self, sock: socket.socket) -> None:
        self.welcomed += 1

    def _serve(self) -> None:
        while not self._stop.is_set():
            ready = self._selector.select(min(0.02, self.door.patience()))
            for key, _ in ready:
                key.data()
            self.door.tick()
            self.most = max(self.most, len(self.door._strangers))

    def come(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=60)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.door.close()
        self._selector.close()


@pytest.fixture
def served() -> Iterator[Served]:
    door = Served()
    yield door
    door.close()


def until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_strangers_that_stay_make_room(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    """They are not cut off for their silence here: only that there are others behind them ends their stay."""
    monkeypatch.setattr(newcomers, "LONGEST", 1000.0)
    with contextlib.ExitStack() as crowd:
        for _ in range(3 * newcomers.PLACES):
            crowd.enter_context(served.come())
        with served.come() as friend:
            prove_as_client(friend, SECRET, time.monotonic() + 60)
            assert until(lambda: served.welcomed == 1)
    assert served.most <= newcomers.PLACES


def come_through(served: Served) -> None:
    """Come in as a rank does: a moment later once more, if it took so long that others were let in instead."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with served.come() as friend:
                prove_as_client(friend, SECRET, deadline)
                assert until(lambda: served.welcomed == 1)
            return
        except (OSError, ddl.Error):
            if time.monotonic() > deadline:
                raise


def test_strangers_that_come_again_and_again_get_no_more_than_their_share(
    monkeypatch: pytest.MonkeyPatch, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """They are sent away at once, and come back at once; a friend comes through, and there is one warning."""
    monkeypatch.setattr(newcomers, "_QUIET", 1000.0)  # of the time between two warnings
    caplog.set_level(logging.INFO, logger="ddl")
    began = time.monotonic()
    with pestering(served.address) as sent_away:
        time.sleep(1.5)
        come_through(served)
        number, seconds = sent_away[0], time.monotonic() - began
    assert 0 < number <= newcomers.PLACES * (seconds / newcomers._LEAST + 1)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and warnings[0].startswith("rank 3: turned a connection away: the peer at 127.0.0.1:")


def test_a_stranger_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setattr(newcomers, "LONGEST", 0.3)
    with served.come() as silent:
        assert hang_up_within(silent, 60)
    with served.come() as slow:
        slow.sendall(b"DDLa")
        assert hang_up_within(slow, 60)
    assert served.welcomed == 0


def test_warnings_are_counted_while_they_are_not_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    complaints = Complaints("rank 7", Shortage("rank 7 cannot make connections"))
    for number in range(5):
        complaints.about(OSError(f"number {number}"))
    now[0] += newcomers._QUIET
    complaints.about(OSError("the last"))
    assert [record.getMessage() for record in caplog.records] == [
        "rank 7: turned a connection away: number 0",
        "rank 7: turned a connection away: the last (and 4 more since the last such message)",
    ]


# --- around a job ---


def crowded_start() -> int:
    """Strangers fill rank 0's Unix socket, and the queue before it, before rank 1 comes to swap memory."""
    crowd: List[socket.socket] = []
    listen = peer_handshake.listen_memory

    def listen_in_a_crowd() -> Any:
        listener, name = listen()
        for _ in range(250):
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stranger.connect("\0" + name)
            crowd.append(stranger)
        return listener, name

    if os.environ["DDL_RANK"] == "0":
        ddl._comm.job.listen_memory = listen_in_a_crowd
    ddl.init()
    shared = len(ddl.world()._group.job.memories)
    ddl.barrier()
    for stranger in crowd:
        stranger.close()
    return shared


@pytest.mark.processes
def test_a_crowd_at_the_start_does_not_cost_shared_memory() -> None:
    assert ranks.run(2, crowded_start, initialise=False) == [1, 1]


def crowded_job() -> bool:
    """Connect a new communicator while strangers, which nobody cuts off for their silence, hold all places."""
    newcomers.LONGEST = 1000.0  # longer than the deadline
    ddl.allreduce(np.ones(3))
    job, crowd = ddl.world()._group.job, []
    for rank in range(2):
        for _ in range(200):
            crowd.append(socket.create_connection(job.address(rank, 0), timeout=60))
    ddl.barrier()
    part = ddl.split(0)
    right = float(part.allreduce(1.0, op=ddl.Sum)) == 2 and part.allreduce(np.ones(300_000))[-1] == 1
    ddl.barrier()
    for stranger in crowd:
        stranger.close()
    return bool(right)


@pytest.mark.processes
def test_ranks_connect_through_a_crowd() -> None:
    assert ranks.run(2, crowded_job, **connected("tcp")) == [True] * 2
