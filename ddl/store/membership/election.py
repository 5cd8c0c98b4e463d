"""Finds a successor for the job's store when its process has ended: one of the members is elected to have it.

A member that has lost the store becomes a candidate after a moment: the first member of the generation at once, each
later one 50 ms after the one before, so that rivals are rare. A candidate asks all members for their votes in an epoch
that no store had. A vote is a promise (acceptor.py), which every voter gives once in an epoch. A member that still has
the store does not vote, but says so: then the candidate was cut off. A quorum of votes makes the store. Records that
voters had accepted before are not lost: the new store asks for them (decision.py).

A candidate gives its own vote last, when it decides. A promise binds for ever, and against the present store, too: a
member that was cut off asked again and again, died, and left a vote that the others' store needed and could not have
any more.
"""

from __future__ import annotations

from typing import Dict, Optional, Set, Tuple

from ddl.store.membership.acceptor import Acceptor
from ddl.store.membership.records import Accepted, BallotNumber, ballot_of, is_quorum, record_of
from ddl.store.messages import Message, Outgoing, text

__all__ = ["CANDIDATE_STEP", "ELECTION_GRACE", "Election", "cut_off_after"]

CANDIDATE_STEP = 0.05  #: seconds by which a member becomes a candidate later than the member before it
ELECTION_GRACE = 0.5  #: seconds that a candidate has to be elected, and to tell


def cut_off_after(host_timeout: float) -> float:
    """Return the seconds after which a member is cut off whose store is gone, but not that of the others.

    They may not know yet that the store's host is off: its silence may have begun for this member before it did for
    them.
    """
    return host_timeout + 2


class Election:
    """What member ``incarnation`` does from the loss of the store until there is another. Used by one thread.

    ``acceptors``: its own, and those of the dead for whom it votes. ``store`` is the ballot of the store that is gone.
    ``first``: when the first member may become a candidate. ``cut_off``: seconds after which this one is cut off.
    """

    def __init__(
        self,
        incarnation: int,
        acceptors: Dict[int, Acceptor],
        store: BallotNumber,
        now: float,
        first: float,
        cut_off: float,
    ) -> None:
        self.won: Optional[BallotNumber] = None
        self.interrupted = False  #: a voter has accepted a record that may not be decided
        self.cut_off = False
        self._incarnation = incarnation
        self._acceptors = acceptors
        self._store = store
        self._cut_off_at = now + cut_off
        #: When a member first (without a pause since) and last said that it still has the store.
        self._others_had_it: Optional[Tuple[float, float]] = None
        self._ballot: Optional[BallotNumber] = None  # while this member is a candidate
        self._votes: Set[int] = set()
        self._epoch = 0  # of candidates that others have voted for
        self._next = first + self._turn()

    def next_deadline(self) -> Optional[float]:
        """When ``tick`` has something to do."""
        return None if self.won is not None or self.cut_off else self._next

    def tick(self, now: float) -> Outgoing:
        """It is this member's turn to be a candidate, or to try again."""
        if self.won is not None or self.cut_off or now < self._next:
            return []
        if now >= self._cut_off_at and self._others_have_it(now):
            self.cut_off = True
            return []
        own = self._acceptors[self._incarnation]
        own.cell.load()
        epoch = max(self._store.epoch, own.cell.promised.epoch, self._epoch) + 1
        self._ballot = BallotNumber(epoch, self._incarnation, 0)
        self._votes = set()
        self._next = now + ELECTION_GRACE + self._turn()
        self._vote_for_itself()
        return [(member, self._question()) for member in own.cell.record.members if member not in self._acceptors]

    def another(self, acceptor: Acceptor) -> None:
        """This member now votes for a dead one, too."""
        self._acceptors[acceptor.voter] = acceptor
        self._vote_for_itself()

    def _question(self) -> Message:
        assert self._ballot is not None
        base = self._acceptors[self._incarnation].cell.record
        return {"type": "elect", "base": base.message(), "ballot": list(self._ballot)}

    def _vote_for_itself(self) -> None:
        """Give this member's vote, and those of its dead, when they are all that is missing."""
        voters = self._acceptors[self._incarnation].cell.record.voters
        if self._ballot is None or self.won is not None:
            return
        if is_quorum(self._votes | self._acceptors.keys(), voters):
            question = self._question()
            for acceptor in list(self._acceptors.values()):
                self._count(acceptor.elect(question))

    def asked(self, sender: int, question: Message, now: float) -> Outgoing:
        """Another member is a candidate: vote, also for the dead of this host. ``ProtocolError``."""
        answers: Outgoing = []
        rival = self._ballot if self._ballot is not None and ballot_of(question).epoch <= self._ballot.epoch else None
        for acceptor in self._acceptors.values():
            answer = acceptor.elect(question) if rival is None else acceptor.refuse(question, rival)
            if answer["type"] == "promise" or acceptor.voter == self._incarnation:
                answers.append((sender, answer))
            if answer["type"] == "promise" and acceptor.voter == self._incarnation:
                self._ballot = None
                self._next = now + ELECTION_GRACE + self._turn()
        return answers

    def answered(self, message: Message, now: float) -> None:
        """A member has answered this candidate: ``promise``, ``refused`` or ``has_store``. ``ProtocolError``."""
        kind = message.get("type")
        if kind == "has_store":
            # Who has only been told of it, and has not reached it yet, may have been told by others like him.
            if ballot_of(message) == self._store and message.get("reached") is True:
                first = self._others_had_it[0] if self._is_recent(now) and self._others_had_it else now
                self._others_had_it = first, now
                text(self._incarnation, message, "address")
                self._next = max(self._next, now + CANDIDATE_STEP)
            return
        if self._ballot is None or ballot_of(message) != self._ballot:
            return
        if kind == "promise":
            self._count(message)
            self._vote_for_itself()
            return
        own = self._acceptors[self._incarnation]
        record, promised = record_of(message, "record"), BallotNumber.parse(message.get("promised"))
        own.learn(record)
        self._epoch = max(self._epoch, promised.epoch)
        self._ballot = None
        self._next = min(self._next, now + self._turn() + CANDIDATE_STEP)

    def _is_recent(self, now: float) -> bool:
        """Whether a member said that it has the store since this member could ask the last time."""
        said = self._others_had_it
        return said is not None and now - said[1] <= 2 * ELECTION_GRACE + self._turn()

    def _others_have_it(self, now: float) -> bool:
        """Whether members say, again and again, that they still have the store.

        Once is not enough: a process that was stopped may answer before it sees that its connection has ended.
        """
        said = self._others_had_it
        return said is not None and self._is_recent(now) and said[1] - said[0] >= ELECTION_GRACE

    def _count(self, answer: Message) -> None:
        if answer["type"] != "promise" or self._ballot is None:
            return
        voter, accepted = answer.get("voter"), Accepted.parse(answer.get("accepted"))
        if type(voter) is not int:
            return
        self._votes.add(voter)
        self.interrupted |= accepted is not None
        if is_quorum(self._votes, self._acceptors[self._incarnation].cell.record.voters):
            self.won = self._ballot

    def _turn(self) -> float:
        """Return how long this member lets others go first."""
        members = self._acceptors[self._incarnation].cell.record.members
        before = [m for m in members if m not in self._acceptors or m == self._incarnation]
        place = before.index(self._incarnation) if self._incarnation in before else len(before)
        return CANDIDATE_STEP * place
