"""A store with a secret, and a way to open clients that are closed again whatever the test does.

Each test that opens them so runs twice: with clients that encrypt, too.
"""

from __future__ import annotations

import contextlib
from typing import Callable, Iterator, List

import pytest

from ddl.store.server import StoreServer
from ddl.store.store import StoreClient
from ddl.store.watch import WatchClient

SECRET = bytes(range(32))


@pytest.fixture
def secret() -> bytes:
    return SECRET


@pytest.fixture
def server() -> Iterator[StoreServer]:
    """The store of a job of four ranks."""
    with StoreServer(SECRET, 4) as running:
        yield running


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def encrypt(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def connect(server: StoreServer, encrypt: bool) -> Iterator[Callable[[int], StoreClient]]:
    with contextlib.ExitStack() as stack:
        yield lambda rank: stack.enter_context(StoreClient(server.address, SECRET, rank, 60, encrypt=encrypt))


@pytest.fixture
def watch(server: StoreServer, encrypt: bool) -> Iterator[Callable[[int], WatchClient]]:
    opened: List[WatchClient] = []

    def open_one(rank: int) -> WatchClient:
        opened.append(WatchClient(server.address, SECRET, rank, 60, encrypt=encrypt))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()
