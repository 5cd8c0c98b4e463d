"""What the agent of a process keeps: the communicators that it looks after, and connections that came too early."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from ddl import _core

__all__ = ["Arrivals", "Member", "NamedCalls"]


def _none() -> List[str]:
    return []


@dataclass
class NamedCalls:
    """What users have submitted by name, on a communicator whose own operations only agree on names.

    ``waiting``: says what a thread waits for, by its identifier. ``texts``: of all that is pending, the oldest
    first.
    """

    is_used: bool = False
    waiting: Dict[int, Callable[[], str]] = field(default_factory=dict)
    texts: Callable[[], List[str]] = _none


@dataclass
class Member:
    """A communicator as the agent knows it. ``ranks[r]`` is the world rank of its rank ``r``.

    ``title``: what people call it; empty: it is that of all ranks.
    """

    number: int
    core: _core.Communicator
    ranks: Tuple[int, ...]
    title: str = ""
    named: NamedCalls = field(default_factory=NamedCalls)


class DataConnection(NamedTuple):
    """A connection of ``rank``, for a stream of a communicator. ``fd`` is owned; ``tls`` encrypts it, if not None."""

    rank: int
    stream: int
    fd: int
    tls: Optional[_core.TlsSession]


@dataclass
class Arrivals:
    """What has connected and nobody has asked for yet; guarded by the agent's lock."""

    memories: Dict[int, _core.PeerMemory] = field(default_factory=dict)
    data: Dict[int, List[DataConnection]] = field(default_factory=dict)  # by communicator
