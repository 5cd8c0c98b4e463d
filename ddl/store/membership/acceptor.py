"""A voter's part in deciding the next generation: it promises and accepts, and never takes a word back.

What a voter has said is in its *vote cell* before it is said. Ranks of one host have one another's cells in shared
memory. So when a voter has died for certain, another process of its host casts its vote: it answers from the dead
one's cell. To count a dead voter as absent instead would be wrong: of five, three may decide on a generation and die at
once; the other two, as "two of two", would decide on another one of the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ddl.store.membership.records import Accepted, BallotNumber, GenerationRecord, ballot_of, record_of
from ddl.store.messages import Message

__all__ = ["Acceptor", "VoteCell"]


@dataclass
class VoteCell:
    """All that a voter must never forget. ``load`` and ``keep`` are for cells that other processes can read."""

    record: GenerationRecord  #: the last generation that it knows to be decided
    promised: BallotNumber  #: it answers no lower ballot any more
    accepted: Optional[Accepted] = None  #: for the generation after ``record``

    def load(self) -> None:
        """Bring the fields up to date: somebody else may have written."""

    def keep(self) -> None:
        """Make the fields last: what they say is about to be told."""


class Acceptor:
    """Answers ``prepare``, ``accept`` and ``elect`` for ``voter``. Used by one thread.

    Messages have been authenticated but not checked: a malformed one raises ``ProtocolError`` and has no effect.
    """

    def __init__(self, voter: int, cell: VoteCell) -> None:
        self.voter = voter
        self.cell = cell

    def prepare(self, message: Message) -> Message:
        """Answer a proposer that asks for the generation after ``base``: ``promise`` or ``refused``."""
        base, ballot = record_of(message, "base"), ballot_of(message)
        cell = self._current(base)
        if base.generation < cell.record.generation or ballot < cell.promised:
            return self._refused(ballot)
        cell.promised = ballot
        cell.keep()
        return self._promise(ballot)

    def elect(self, message: Message) -> Message:
        """Answer a candidate for the store: a promise, once for each epoch, is the vote for it; else ``refused``."""
        base, ballot = record_of(message, "base"), ballot_of(message)
        cell = self._current(base)
        again = ballot == cell.promised
        if base.generation < cell.record.generation or (ballot.epoch <= cell.promised.epoch and not again):
            return self._refused(ballot)
        cell.promised = ballot
        cell.keep()
        return self._promise(ballot)

    def refuse(self, message: Message, rival: BallotNumber) -> Message:
        """Answer a candidate that this process itself is ``rival`` of, and promise nothing."""
        cell = self._current(record_of(message, "base"))
        return {**self._refused(ballot_of(message)), "promised": list(max(rival, cell.promised))}

    def accept(self, message: Message) -> Message:
        """Answer a proposer that has chosen the ``record`` after ``base``: ``accepted`` or ``refused``."""
        base, ballot, record = record_of(message, "base"), ballot_of(message), record_of(message, "record")
        cell = self._current(base)
        if base.generation < cell.record.generation or ballot < cell.promised:
            return self._refused(ballot)
        cell.promised, cell.accepted = ballot, Accepted(ballot, record)
        cell.keep()
        return {"type": "accepted", "voter": self.voter, "generation": record.generation, "ballot": list(ballot)}

    def learn(self, record: GenerationRecord) -> None:
        """Take in that ``record`` is decided. What was promised holds for later generations, too."""
        self.cell.load()
        if record.generation > self.cell.record.generation:
            self.cell.record, self.cell.accepted = record, None
            self.cell.keep()

    def _current(self, base: GenerationRecord) -> VoteCell:
        """Return the cell, which knows at least ``base``: who proposes its successor knows that ``base`` is decided."""
        self.learn(base)
        return self.cell

    def _promise(self, ballot: BallotNumber) -> Message:
        accepted = self.cell.accepted
        return {
            "type": "promise",
            "voter": self.voter,
            "generation": self.cell.record.generation + 1,
            "ballot": list(ballot),
            "accepted": None if accepted is None else accepted.message(),
        }

    def _refused(self, ballot: BallotNumber) -> Message:
        """Tell a proposer what it did not know: a higher ballot, or that its generation is decided."""
        return {
            "type": "refused",
            "voter": self.voter,
            "ballot": list(ballot),
            "promised": list(self.cell.promised),
            "record": self.cell.record.message(),
        }
