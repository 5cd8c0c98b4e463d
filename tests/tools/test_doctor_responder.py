"""The doctor's port on each host: strangers cost it a bounded number of threads, and other hosts are answered."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Iterator

import pytest

from ddl.launch.agent import reach
from ddl.launch.agent.reach import TOKEN, Target, connect_all
from ddl.tools.doctor import link
from ddl.tools.doctor.link import measure
from ddl.tools.doctor.responder import Responder

SECRET = os.urandom(32)


@pytest.fixture
def place() -> Iterator[Target]:
    """Where a responder listens."""
    token = os.urandom(TOKEN)
    responder = Responder(SECRET, token)
    yield Target(0, "127.0.0.1", responder.ports[0], token)
    responder.close()


def test_whoever_comes_learns_whom_it_has_reached(place: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_CONNECT_SECONDS", 100.0)
    attempt = connect_all([place])[place]
    assert (attempt.problem, attempt.stranger) == ("", False)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is measured take a hundred seconds longer than usual until it is given up."""

    monkeypatch.setattr(link, "_ANSWER_SECONDS", 100.0)


@pytest.mark.usefixtures("patient")
def test_who_knows_the_secret_is_answered_and_others_are_not(place: Target) -> None:
    assert measure(place, SECRET, 0.01).latency is not None
    assert measure(place, os.urandom(32), 0.01).latency is None


@pytest.mark.usefixtures("patient")
def test_strangers_that_stay_get_no_threads(place: Target) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as crowd:
        for _ in range(300):
            crowd.enter_context(socket.create_connection((place.address, place.port), timeout=100))
        assert measure(place, SECRET, 0.01).latency is not None
        assert threading.active_count() <= before + 2
