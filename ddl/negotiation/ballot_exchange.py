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

__all__ = ["BallotExchange"]


class BallotExchange:
    """``cast``: a row of bytes for each rank of ``communicator``, of the last round."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._patience = communicator.timeout
        self.cast = np.empty((communicator.size, 0), np.uint8)
        # A round that its driver has left, and what this rank has to say in it.
        self._flying: Optional[Tuple[Work, News]] = None

    @property
    def flying(self) -> bool:
        """Whether a round is under way that its driver has left."""
        return self._flying is not None

    def land(self) -> News:
        """Wait for the round that is under way; return what this rank has to say besides."""
        assert self._flying is not None
        work, news = self._flying
        work.wait()
        self._flying = None
        return news

    def gather(self, vote: NDArray[np.uint8], news: News, patience: float, awake: bool) -> Optional[News]:
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
            communicator.allgather(vote, out=self.cast)
            return news
        under_way = communicator._calls.attempt(_core.Call(Collective.ALLGATHER, vote, self.cast, None))
        if under_way is None:
            return news
        self._flying = under_way, news
        return None
