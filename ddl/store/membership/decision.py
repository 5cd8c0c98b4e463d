"""A proposer's part in deciding one generation: asks the voters of the last one, twice, and counts.

First it asks for promises (``prepare``). If a voter has accepted a record before, for an attempt that was interrupted,
the record of the highest ballot must be proposed, unless it certainly has not been decided. Otherwise the record that
is wanted now is proposed (``accept``). It is decided when a quorum of the voters of the last generation has accepted
it. A dead voter still counts; its host may cast its vote (acceptor.py).

When is that certain? Had it been decided, by some ballot, every later ballot would have had the same record, so each
voter of that quorum would still say that it has accepted this one. It is certain if too few say so, even together with
all that have not answered. To know that, the proposer waits for more than a quorum, until ``hurry``. Without this rule
one dead voter's record of members that are all dead was proposed again, and the last survivor was left out by it.
"""

from __future__ import annotations

from typing import Callable, Dict, Optional, Set, Tuple

from ddl.store.membership.records import Accepted, BallotNumber, GenerationRecord, ballot_of, is_quorum, record_of
from ddl.store.messages import Message

__all__ = ["Decision"]


class Decision:
    """One attempt, with ballot ``ballot``, to decide what follows ``base``. Used by one thread; knows no time.

    ``patient`` voters are those whose promises are waited for as long as ``hurry`` has not been called: they answer
    soon, and are to be in what is decided. Then ``wanted`` says what to propose.
    """

    def __init__(
        self,
        base: GenerationRecord,
        ballot: BallotNumber,
        patient: Set[int],
        wanted: Callable[[], Optional[GenerationRecord]],
    ) -> None:
        self.base = base
        self.ballot = ballot
        self.proposed: Optional[GenerationRecord] = None
        self.decided: Optional[GenerationRecord] = None
        self.overtaken: Optional[BallotNumber] = None  #: a voter has promised this higher ballot
        self._patient = patient & set(base.voters)
        self._wanted = wanted
        self._promises: Dict[int, Optional[Accepted]] = {}
        self._accepted: Set[int] = set()
        self._hurried = False

    def question(self, voter: int) -> Message:
        """Return what to ask ``voter`` now."""
        message: Message = {"base": self.base.message(), "ballot": list(self.ballot), "voter": voter}
        if self.proposed is None:
            return {"type": "prepare", **message}
        return {"type": "accept", **message, "record": self.proposed.message()}

    @property
    def silent(self) -> Set[int]:
        """Voters that are waited for, and have not promised yet."""
        return self._patient - self._promises.keys()

    @property
    def unanswered(self) -> Tuple[int, ...]:
        """Voters that have not answered the present question."""
        answered = self._promises.keys() if self.proposed is None else self._accepted
        return tuple(voter for voter in self.base.voters if voter not in answered)

    @property
    def has_quorum(self) -> bool:
        """Whether enough voters have promised."""
        return is_quorum(self._promises.keys(), self.base.voters)

    def excuse(self, voter: int) -> bool:
        """Wait for ``voter`` no longer. Return whether there is a new question for all now."""
        self._patient.discard(voter)
        return self._propose()

    def hurry(self) -> bool:
        """Wait for nobody beyond a quorum. Return whether there is a new question for all now."""
        self._patient.clear()
        self._hurried = True
        return self._propose()

    def heard(self, message: Message) -> bool:
        """Take a voter's answer. Return whether there is a new question for all now. ``ProtocolError``."""
        voter, ballot = message.get("voter"), ballot_of(message)
        if type(voter) is not int or voter not in self.base.voters or ballot != self.ballot:
            return False  # an answer to an earlier attempt
        kind = message.get("type")
        if kind == "promise":
            accepted = Accepted.parse(message.get("accepted"))
            if message.get("generation") == self.base.generation + 1:
                self._promises[voter] = accepted
            return self._propose()
        if kind == "accepted":
            if self.proposed is not None:
                self._accepted.add(voter)
                if is_quorum(self._accepted, self.base.voters):
                    self.decided = self.proposed
            return False
        self._refused(message)
        return False

    def _refused(self, message: Message) -> None:
        record = record_of(message, "record")
        promised = BallotNumber.parse(message.get("promised"))
        if record.generation > self.base.generation:
            self.decided = record  # by somebody else
        elif promised > self.ballot:
            self.overtaken = max(promised, self.overtaken or promised)

    def _propose(self) -> bool:
        """Choose what to propose, if it is time to."""
        if self.proposed is not None or self.silent or not self.has_quorum:
            return False
        earlier = self._earlier()
        if earlier is not None and self.unanswered and not self._hurried:
            return False  # who has not answered may show that it was not decided
        self.proposed = self._wanted() if earlier is None else earlier
        return self.proposed is not None

    def _earlier(self) -> Optional[GenerationRecord]:
        """Return the record that an earlier attempt may have decided; None if there can be none."""
        accepted = {voter: before for voter, before in self._promises.items() if before is not None}
        if not accepted:
            return None
        record = max(accepted.values(), key=lambda before: before.ballot).record
        backers = {voter for voter, before in accepted.items() if before.record == record}
        return record if is_quorum(backers | set(self.unanswered), self.base.voters) else None
