"""Tells people when a rail carries nothing any more, and when it works again.

Each stream of each communicator goes over all rails, and finds out for itself (csrc/transport/rails). People are told
once: when the first stream to a host has given a rail up, and when the last one uses it again.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Callable, Dict, NamedTuple, Optional, Tuple

__all__ = ["RailEnds", "RailNews"]

log = logging.getLogger("ddl")


class RailEnds(NamedTuple):
    """A rail to another rank, as people know it: ``peer`` is its rank and host."""

    peer: str
    own_address: str
    address: str


class RailNews:
    """The rails of rank ``rank``.

    ``ends_of`` names one, by the number of a process and of the rail; None: there is no such rail any more.
    """

    def __init__(self, rank: int, ends_of: Callable[[int, int], Optional[RailEnds]]) -> None:
        self._rank = rank
        self._ends_of = ends_of
        self._given_up: Dict[Tuple[str, str], Counter[int]] = {}  # streams of each communicator, by addresses

    def take(self, comm: int, peer: int, rail: int, works: bool, why: str = "") -> None:
        """A stream of communicator ``comm`` to process ``peer`` has given up a rail, or uses it again.

        ``why``: so its connection has ended; empty: it is silent.
        """
        ends = self._ends_of(peer, rail)
        if ends is None:
            return
        streams = self._given_up.setdefault(ends[1:], Counter())
        given_up_before = any(streams.values())
        streams[comm] += -1 if works else 1
        given_up = any(streams.values())
        if given_up and not given_up_before:
            log.warning(
                "rank %d: the rail from %s to %s (%s) is %s, and the job goes on over the others; look at the cables "
                "and ports of that rail",
                *(self._rank, ends.own_address, ends.address, ends.peer, f"closed: {why}" if why else "silent"),
            )
        elif given_up_before and not given_up:
            log.warning("rank %d: the rail from %s to %s works again", self._rank, ends.own_address, ends.address)

    def forget(self, comm: int) -> None:
        """The communicator has ended, and so have its streams. May be called by any thread."""
        for streams in list(self._given_up.values()):  # the agent's thread may add some meanwhile
            del streams[comm]
