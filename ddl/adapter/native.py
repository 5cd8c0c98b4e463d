"""Calls of the core for code that is no Python: a library that a framework loads, or an operator of its.

``csrc/python/native_calls.h`` says what the calls are. They need no interpreter lock.
"""

from __future__ import annotations

from ddl import _core
from ddl.communicator import Communicator

__all__ = ["address_of", "native_calls"]


def native_calls() -> int:
    """Return the address of the table of calls (``DdlNativeCalls``)."""
    return _core.NATIVE_CALLS


def address_of(communicator: Communicator) -> int:
    """Return what the calls take as their communicator. Keep ``communicator`` while they use it."""
    return communicator._core.address
