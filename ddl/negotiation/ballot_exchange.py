"""``BallotExchange``: gathers the ballots (ballot.py) of all ranks, for one driver at a time.

A driver that must not sleep leaves a round unfinished if it would have to wait. The next driver finishes it.
"""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from ddl import _core
from ddl.communicator import Communicator, Work
from ddl.negotiation.agreement import News
from ddl.plan.ir import Collective
from ddl.reduce_op import Sum

__all__ = ["BallotExchange", "Vote"]

Vote = NDArray[np.uint8]  #: a ballot: see ballot.py


class BallotExchange:
    """``cast``: a row of bytes for each rank of ``communicator``, of the last round."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._patience = communicator.timeout
        self._gather = communicator._calls.run_alike
        self.cast = np.empty((communicator.size, 0), np.uint8)
        #: A round that its driver has left, and what this rank has to say in it.
        self.flying: Optional[Tuple[Work, News]] = None

    def land(self) -> News:
        """Wait for the round that is under way; return what this rank has to say besides."""
        assert self.flying is not None
        work, news = self.flying
        work.wait()
        self.flying = None
        return news

    def gather(self, vote: Vote, news: News, patience: float, awake: bool) -> Optional[News]:
        """Begin a round by ``vote``, and wait for all ranks; return ``news``.

        patience: seconds that the others have. awake: if they are not there by now, leave the round and return None.
        """
        communicator = self._communicator
        if patience != self._patience:
            self._patience = patience
            communicator.set_timeout(patience)
        if vote.size != self.cast.shape[1]:
            self.cast = np.empty((communicator.size, vote.size), np.uint8)
        if not awake:
            self._gather(Collective.ALLGATHER, vote, self.cast, Sum, 0)
            return news
        under_way = communicator._calls.attempt(_core.Call(Collective.ALLGATHER, vote, self.cast, None))
        if under_way is None:
            return news
        self.flying = under_way, news
        return None
