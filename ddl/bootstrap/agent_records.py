"""What the agent of a process keeps: the communicators that it looks after, and what has come for others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Tuple

from ddl import _core

__all__ = ["Arrivals", "Member"]


@dataclass
class Member:
    """A communicator as the agent knows it. ``ranks[r]`` is the world rank of its rank ``r``."""

    number: int
    core: _core.Communicator
    ranks: Tuple[int, ...]


@dataclass
class Arrivals:
    """What has connected and is not called for yet; guarded by the agent's lock."""

    memories: Dict[int, _core.PeerMemory] = field(default_factory=dict)
    data: Dict[int, List[Tuple[int, int, int]]] = field(default_factory=dict)  # communicator -> (rank, stream, fd)
