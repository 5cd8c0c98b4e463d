"""``Voting``: which voters the store asks what follows the present generation, and what it does when they are silent.

A ``Decision`` says what to ask, and counts. Here a question finds its way: to a voter, or if that is gone to those that
are there, as one of its host may cast its vote. The witness of a job that ddlrun has started is in this process.
"""

from __future__ import annotations

from typing import Optional, Sequence

from ddl.store.membership.acceptor import Acceptor, VoteCell
from ddl.store.membership.decision import Decision
from ddl.store.membership.records import FIRST_BALLOT, WITNESS, BallotNumber, GenerationRecord
from ddl.store.membership.roster import Roster
from ddl.store.messages import Message, Outgoing
from ddl.text.rank_names import name_ranks

__all__ = ["Voting"]


class Voting:
    """The votes on what follows the present generation of ``roster``. Used by one thread; knows no time."""

    def __init__(self, roster: Roster, ballot: BallotNumber) -> None:
        self.ballot = ballot  #: of the store's election; its attempt counts what it has proposed
        self.decision: Optional[Decision] = None  #: what is being decided
        self.witness = Acceptor(WITNESS, VoteCell(roster.record, ballot)) if ballot == FIRST_BALLOT else None
        self._roster = roster
        self._admits = False  # newcomers are in what is being decided

    def begin(self, *, planned: bool) -> Outgoing:
        """Ask anew, by the next ballot. ``planned``: all members have stopped between two steps."""
        # Newcomers come between two steps. A step that a death has broken off is done again by those who began it.
        self._admits = planned or (self._admits and self.decision is not None)
        self.ballot = self.ballot._replace(attempt=self.ballot.attempt + 1)
        record = self._roster.record
        expected = {member for member in record.members if member not in self._roster.absent}
        self.decision = Decision(record, self.ballot, expected, self._wanted)
        return self.questions()

    def _wanted(self) -> Optional[GenerationRecord]:
        """Return the next generation as it should be."""
        witness = self.witness is not None and self._roster.record.witness
        return self._roster.successor(admits=self._admits, witness=witness)

    def questions(self) -> Outgoing:
        """Ask every voter that has not answered the present question."""
        decision = self.decision
        assert decision is not None
        while self.witness is not None and WITNESS in decision.unanswered:
            question = decision.question(WITNESS)
            answer = self.witness.prepare if question["type"] == "prepare" else self.witness.accept
            decision.heard(answer(question))
        return [ask for voter in decision.unanswered for ask in self.ask(voter)]

    def ask(self, voter: int) -> Outgoing:
        """Ask a voter. If it is gone, ask those of its host, who may cast its vote."""
        decision = self.decision
        if decision is None or voter not in decision.base.voters or voter == WITNESS:
            return []
        question = decision.question(voter)
        if voter in self._roster.present:
            return [(voter, question)]
        return [(other, question) for other in self._roster.present]

    def excuse(self, voter: int) -> Outgoing:
        """``voter`` is gone: wait for it no longer, but ask for its vote."""
        assert self.decision is not None
        return self.questions() if self.decision.excuse(voter) else self.ask(voter)

    def heard(self, message: Message) -> Outgoing:
        """Take a voter's answer, and return what to ask then. ``ProtocolError`` if it makes no sense."""
        assert self.decision is not None
        return self.questions() if self.decision.heard(message) else []

    def ask_again(self, patience: float) -> Outgoing:
        """Agents have had ``patience`` seconds: leave out those that are silent, and ask those that still count."""
        decision = self.decision
        assert decision is not None
        if decision.has_quorum:
            for voter in sorted(decision.silent):
                self._roster.absent.setdefault(voter, f"its agent has not answered for {patience:g} s")
            decision.hurry()
        return self.questions()

    def outdo(self, ballot: BallotNumber) -> bool:
        """Have the next ballot be higher than ``ballot``; return False if that is of a later store.

        By epoch and owner: two generations may each elect a store in one epoch. The lower of the two would else be
        refused, and ask again at once, for ever.
        """
        if ballot[:2] > self.ballot[:2]:
            return False
        self.ballot = self.ballot._replace(attempt=max(self.ballot.attempt, ballot.attempt))
        return True

    def learn(self, record: GenerationRecord) -> None:
        """``record`` is decided."""
        if self.witness is not None:
            self.witness.learn(record)
        self.decision = None

    def no_majority(self, missing: Sequence[int], patience: float) -> str:
        """Say that too few voters have answered for ``patience`` seconds."""
        names = [name_ranks([voter]) if voter != WITNESS else "ddlrun" for voter in missing]
        return (
            f"no majority of the ranks of generation {self._roster.record.generation} has answered for "
            f"{patience:g} s (missing: {', '.join(names) or 'nobody'}), and fewer must not go on: the others may"
        )
