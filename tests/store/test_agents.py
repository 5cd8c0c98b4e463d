"""Agents of ddlrun at the store: a host has one, and gets another one after that only if ddlrun lets it in."""

from __future__ import annotations

import queue
import time
from typing import Any, Dict, List, Tuple

import pytest

from ddl.errors import ConfigError
from ddl.store.server import StoreServer
from ddl.store.watch import HostAgentClient

SECRET = bytes(range(32))
News = Tuple[int, str]


def received(agent: HostAgentClient, count: int = 1) -> List[Dict[str, Any]]:
    """Return the next messages that an agent gets."""
    deadline = time.monotonic() + 60
    messages: List[Dict[str, Any]] = []
    while len(messages) < count:
        assert time.monotonic() < deadline
        message = agent.receive()
        assert message is not None
        messages += [message] if message else []
        time.sleep(0.001)
    return messages


def test_a_host_has_one_agent_until_another_one_is_let_in() -> None:
    heard: queue.Queue[News] = queue.Queue()
    with StoreServer(SECRET, 2, agents=2, from_agent=lambda host, said: heard.put((host, said["type"]))) as server:

        def call(host: int) -> HostAgentClient:
            return HostAgentClient(server.address, SECRET, host, 60.0)

        first = call(1)
        with pytest.raises(ConfigError, match="host 1 of 2 is none of this job's hosts, or has"):
            call(1)
        first.close()
        assert heard.get(timeout=60) == (1, "gone")
        with pytest.raises(ConfigError, match=r"or has \(or had\) an agent already"):
            call(1)  # nobody has said yet that what was meant for the first one is settled
        server.post(1, {"type": "for the first"})
        server.readmit(1)
        deadline = time.monotonic() + 60
        second = None
        while second is None:
            try:
                second = call(1)
            except ConfigError:  # the word has not come to the server's thread yet
                assert time.monotonic() < deadline
        with second:
            server.post(1, {"type": "for the second"})
            assert received(second) == [{"type": "for the second"}]
        with pytest.raises(ConfigError, match="host 2 of 2 is none of this job's hosts"):
            call(2)
