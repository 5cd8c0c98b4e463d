"""An agent knows several addresses of ddlrun: some lead nowhere, or to somebody else, and one to the store."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, Iterator

import pytest
from ports import held_port

from ddl.errors import RendezvousError
from ddl.net.address import format_address
from ddl.store import client
from ddl.store.server import StoreServer
from ddl.store.watch import HostAgentClient

SECRET = bytes(range(32))


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    with held_port() as port:
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Somebody lets us connect and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield format_address(*listener.getsockname())


@contextlib.contextmanager
def full() -> Iterator[str]:
    """The kernel drops what would connect, as if the address were no host's."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield format_address(*listener.getsockname())


@contextlib.contextmanager
def another_job() -> Iterator[str]:
    with StoreServer(bytes(32), 1, agents=1) as server:
        yield server.address


OTHERS: Dict[str, Callable[[], contextlib.AbstractContextManager[str]]] = {
    "refused": nobody,
    "silent": silent,
    "dropped": full,
    "another job": another_job,
}


@pytest.mark.parametrize("kind", [kind for kind in OTHERS if kind != "silent"])
def test_one_of_several_addresses_is_enough(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_ANSWERS", 0.5)
    with OTHERS[kind]() as other, StoreServer(SECRET, 1, agents=2) as server:
        for host, known in enumerate([(other, server.address), (server.address, other)]):
            with HostAgentClient(known[0], SECRET, host, 60.0, others=known[1:]) as agent:
                assert agent.address == server.address


@pytest.mark.slow
def test_one_who_says_nothing_takes_his_share_of_the_time_only() -> None:
    with silent() as other, StoreServer(SECRET, 1, agents=1) as server:
        with HostAgentClient(other, SECRET, 0, 20.0, others=[server.address]) as agent:
            assert agent.address == server.address


@pytest.mark.slow
def test_what_is_wrong_with_each_address_is_told() -> None:
    with contextlib.ExitStack() as stack:
        known = {kind: stack.enter_context(make()) for kind, make in OTHERS.items()}
        first, *others = known.values()
        with pytest.raises(RendezvousError) as caught:
            HostAgentClient(first, SECRET, 0, 20.0, others=others)
    told = str(caught.value)
    for kind, words in [
        ("refused", "Connection refused"),
        ("silent", "did not finish the handshake"),
        ("dropped", "timed out"),
        ("another job", "secret"),
    ]:
        assert re.search(f"at {known[kind]} within 20 s: [^;]*{words}", told), (kind, told)


def test_a_store_that_comes_late_is_waited_for() -> None:
    with nobody() as other, held_port() as port, ThreadPoolExecutor(1) as pool:
        late = f"127.0.0.1:{port}"
        coming = pool.submit(HostAgentClient, other, SECRET, 0, 60.0, others=[late])
        time.sleep(0.1)  # so that it is refused before, mostly
        with StoreServer(SECRET, 1, port=port, agents=1), coming.result(60) as agent:
            assert agent.address == late
