"""What one side of the core waits for the other: no more than the other side waits for it."""

from __future__ import annotations

from ddl import _core
from ddl.negotiation import negotiator


def test_an_operation_waits_longer_than_the_core_waits_for_the_stores_verdict() -> None:
    assert negotiator._VERDICT > _core.VERDICT_PATIENCE > 0
