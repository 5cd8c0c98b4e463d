"""``Submissions``: what this rank has submitted by name, and the other ranks have not all submitted yet.

A name is submitted once at a time. Operations without a name share one, so they wait for one another: the next one is
submitted when the one before has been settled.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Optional

import numpy as np

from ddl.negotiation.agreement import UNNAMED, Agreement
from ddl.negotiation.pending import Pending

__all__ = ["Submissions"]


class Submissions:
    """The operations that ``agreement`` is told of. The negotiator's lock guards it."""

    def __init__(self, agreement: Agreement) -> None:
        self.rounds = 0  #: of ballots that have ended; the negotiator counts them
        self._agreement = agreement
        self._pending: Dict[str, Pending] = {}
        self._unnamed: Deque[Pending] = deque()  # behind the one that was submitted

    def add(self, pending: Pending) -> None:
        """Submit ``pending``, or let it wait behind another one without a name.

        ValueError, and nothing is done, if one of its name must end first, or its name cannot be sent.
        """
        name = pending.request.name
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a name must be Unicode text: {error}") from None
        if name not in self._pending:
            self._submit(pending, name)
        elif name == UNNAMED:
            self._unnamed.append(pending)
        else:
            raise ValueError(
                "an operation of this name is under way on this rank; wait for it, or give each its own name"
            )

    def _submit(self, pending: Pending, name: str) -> None:
        self._pending[name] = pending
        pending.round = self.rounds
        self._agreement.submit(name, pending.request.signature)

    def add_alone(self, pending: Pending) -> Optional[np.ndarray]:
        """Submit ``pending`` if all ranks know it and nothing else is submitted here; return the ballot to be cast.

        None: nothing was done.
        """
        request = pending.request
        vote = None if self._pending else self._agreement.vote_alone(request.name, request.signature)
        if vote is not None:
            self._pending[request.name] = pending
            pending.round = self.rounds
        return vote

    def settle(self, name: str) -> Optional[Pending]:
        """Return the operation if this rank had submitted it; one without a name makes way for the next."""
        pending = self._pending.pop(name, None)
        if pending is not None and name == UNNAMED and self._unnamed:
            self._submit(self._unnamed.popleft(), UNNAMED)
        return pending

    def take_all(self) -> List[Pending]:
        """Return all operations, and forget them."""
        everything = [*self._pending.values(), *self._unnamed]
        self._pending.clear()
        self._unnamed.clear()
        return everything

    @property
    def oldest(self) -> Optional[Pending]:
        """The operation that was submitted first."""
        return next(iter(self._pending.values()), None)

    def __contains__(self, pending: Pending) -> bool:
        return pending is self._pending.get(pending.request.name) or pending in self._unnamed

    def has_been_voted_on(self, pending: Pending) -> bool:
        """Whether all ranks have cast a ballot since ``pending`` was submitted: the last one tells who has not."""
        return self.rounds >= pending.round + 2

    def texts(self) -> List[str]:
        """Say what is submitted, the oldest first. Any thread may ask, without the lock."""
        return [operation.request.text() for operation in list(self._pending.values())]
