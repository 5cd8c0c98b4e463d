"""What planners know of each collective, said once: who passes which buffer, what is in it, and whether it is reduced.

The core has the same table (csrc/engine/collectives.cc), and tests/plan/test_collectives.py compares the two.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Dict

from ddl.plan.ir import Collective

__all__ = ["TRAITS", "CollectiveBuffer", "CollectiveTraits", "Content", "Holders"]


class Holders(enum.Enum):
    """Which ranks pass a buffer."""

    NOBODY = "nobody"
    ROOT = "root"
    ALL = "all"


class Content(enum.Enum):
    """What is in it."""

    NOTHING = "nothing"
    WHOLE = "whole"  #: as much as in the other buffer
    BLOCK = "block"  #: the block of one rank
    BLOCKS = "blocks"  #: a block for each rank


@dataclass(frozen=True)
class CollectiveBuffer:
    """The input or the output of a collective."""

    holders: Holders
    content: Content


@dataclass(frozen=True)
class CollectiveTraits:
    """``reduces``: it combines elements. ``rooted``: it has a root."""

    input: CollectiveBuffer
    output: CollectiveBuffer
    reduces: bool = False
    rooted: bool = False

    @property
    def splits(self) -> bool:
        """Whether it works on one buffer that is cut evenly; in others, block *i* of a buffer belongs to rank *i*."""
        return self.input.content is self.output.content is Content.WHOLE


_NONE = CollectiveBuffer(Holders.NOBODY, Content.NOTHING)
_WHOLE, _WHOLE_AT_ROOT = (CollectiveBuffer(holders, Content.WHOLE) for holders in (Holders.ALL, Holders.ROOT))
_BLOCK = CollectiveBuffer(Holders.ALL, Content.BLOCK)
_BLOCKS, _BLOCKS_AT_ROOT = (CollectiveBuffer(holders, Content.BLOCKS) for holders in (Holders.ALL, Holders.ROOT))

TRAITS: Dict[Collective, CollectiveTraits] = {
    Collective.ALLREDUCE: CollectiveTraits(_WHOLE, _WHOLE, reduces=True),
    Collective.REDUCESCATTER: CollectiveTraits(_BLOCKS, _BLOCK, reduces=True),
    Collective.ALLGATHER: CollectiveTraits(_BLOCK, _BLOCKS),
    Collective.BROADCAST: CollectiveTraits(_WHOLE_AT_ROOT, _WHOLE, rooted=True),
    Collective.ALLTOALL: CollectiveTraits(_BLOCKS, _BLOCKS),
    Collective.REDUCE: CollectiveTraits(_WHOLE, _WHOLE_AT_ROOT, reduces=True, rooted=True),
    Collective.GATHER: CollectiveTraits(_BLOCK, _BLOCKS_AT_ROOT, rooted=True),
    Collective.SCATTER: CollectiveTraits(_BLOCKS_AT_ROOT, _BLOCK, rooted=True),
    Collective.BARRIER: CollectiveTraits(_NONE, _NONE),
    Collective.SEND: CollectiveTraits(_WHOLE, _NONE),
    Collective.RECV: CollectiveTraits(_NONE, _WHOLE),
}
