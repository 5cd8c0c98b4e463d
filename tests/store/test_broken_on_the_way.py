"""Somebody on the way changes what a rank and the store say to one another: both notice, and say so."""

from __future__ import annotations

import select
import socket
import threading
from typing import Iterator, List

import pytest
from carrying import carry

from ddl.errors import PeerLost
from ddl.launch.agent.control import cut_off, gone_since
from ddl.store.messages import Message
from ddl.store.server import StoreServer
from ddl.store.store import StoreClient
from ddl.store.watch import HostAgentClient, WatchClient

SECRET = bytes(range(32))
CHANGED = "its connection to the store broke: the encrypted connection is broken, or somebody on the way has changed it"


class Proxy:
    """Sits before the store of two ranks, and flips a bit of the next piece once ``flips`` is set."""

    def __init__(self) -> None:
        self.agent_said: List[Message] = []
        self.server = StoreServer(SECRET, 2, agents=1, from_agent=lambda _, said: self.agent_said.append(said))
        self.flips = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._carry, args=(here,), daemon=True))
            self._threads[-1].start()

    def _carry(self, here: socket.socket) -> None:
        host, port = self.server.address.split(":")
        with here, socket.create_connection((host, int(port))) as there:
            carry(here, there, self._change)

    def _change(self, data: bytes) -> bytes:
        if not self.flips or not data:
            return data
        self.flips = False
        return data[:-1] + bytes([data[-1] ^ 1])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # close alone would not wake the thread
        self._listener.close()
        self.server.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    between = Proxy()
    yield between
    between.close()


def heard(watch: WatchClient) -> List[Message]:
    """Return what the store says until a verdict comes, or nothing more will."""
    said: List[Message] = []
    while not said or said[-1].get("type") != "fail":
        assert select.select([watch], [], [], 60)[0], "nothing within a minute"
        message = watch.receive()
        if message is None:
            break
        said += [message] if message else []
    return said


def test_a_request_to_the_store(proxy: Proxy) -> None:
    with StoreClient(proxy.address, SECRET, 0, 60, encrypt=True) as store:
        store.set("key", "value")
        proxy.flips = True
        with pytest.raises(PeerLost, match="somebody on the way has changed it"):
            store.set("key", "other")
    with StoreClient(proxy.address, SECRET, 1, 60, encrypt=True) as other:
        assert other.get("key", 60) == "value"


@pytest.mark.parametrize("way", ["to the store", "from the store"])
def test_a_watch(proxy: Proxy, way: str) -> None:
    with WatchClient(proxy.address, SECRET, 0, 60, encrypt=True) as watch:
        with WatchClient(proxy.server.address, SECRET, 1, 60, encrypt=True) as other:
            proxy.flips = True
            if way == "to the store":
                watch.send({"type": "pace"})
            else:
                other.send({"type": "fail", "comm": 0, "kind": "Aborted", "reason": "a test", "members": [0, 1]})
            assert heard(watch) == [] and watch.broken.startswith(CHANGED)
            verdicts = [m for m in heard(other) if m["culprit"] == 0]
            if way == "to the store":  # there it was noticed
                assert verdicts[0]["reason"].startswith(CHANGED)


def test_an_agent(proxy: Proxy) -> None:
    with HostAgentClient(proxy.address, SECRET, 0, 60, encrypt=True) as agent:
        proxy.flips = True
        agent.send({"type": "say", "text": "the answer is 42"})
        assert heard(agent) == [] and agent.broken.startswith(CHANGED)
    proxy.server.close()
    (gone,) = proxy.agent_said
    assert gone["type"] == "gone" and gone["why"].startswith(CHANGED)
    assert "somebody on the way" in gone_since(gone["silent"], gone["why"])
    assert "somebody on the way" in cut_off("b", "a:1", 1.0, "rank 1", agent.broken)
