"""Lets a rank wait until the store has asked it about an operation: so others wait there, and have for a second."""

from __future__ import annotations

import threading
from typing import Any, Dict

import ddl
from ddl.bootstrap.agent import Agent


def asked_about(*communicators: ddl.Communicator) -> None:
    """Return when the store has asked this rank about all of them: others wait there."""
    wanted = {communicator._group.number for communicator in communicators}
    asked = threading.Event()
    answer = Agent._answer

    def counting(agent: Agent, question: Dict[str, Any]) -> None:
        answer(agent, question)
        wanted.discard(question["comm"])
        if not wanted:
            asked.set()

    Agent._answer = counting  # type: ignore[method-assign]
    assert asked.wait(100)
