"""What is decided about a generation, the numbers of ballots, and what counts as a quorum. Plain data.

A process is an *incarnation*: a number that no other process of the job has or had. A member of a generation is an
incarnation, and its rank is its place in the record. The store votes, too, where it runs in a process of its own
(``WITNESS``): so of two ranks either may die.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, Dict, List, NamedTuple, Optional, Tuple

from ddl.errors import ProtocolError
from ddl.store.messages import Message

__all__ = ["FIRST_BALLOT", "WITNESS", "Accepted", "BallotNumber", "GenerationRecord", "ballot_of", "first_record"]
__all__ += ["is_quorum", "record_of"]

WITNESS = -1  #: the incarnation that stands for a store in a process of its own (ddlrun's)


class BallotNumber(NamedTuple):
    """Numbers of ballots are compared in this order; no two proposers ever use the same."""

    epoch: int  #: counts the stores of a job: 0 is the one that it began with
    owner: int  #: the incarnation whose process has that store
    attempt: int  #: counts what that store has proposed; 0 is its election

    @classmethod
    def parse(cls, value: Any) -> BallotNumber:
        """Read what came as JSON. ``ProtocolError`` unless it is three whole numbers."""
        if not isinstance(value, list) or len(value) != 3 or not all(type(part) is int for part in value):
            raise ProtocolError(f"the number of a ballot is {value!r:.100}, not three whole numbers")
        return cls(*value)


FIRST_BALLOT = BallotNumber(0, WITNESS, 0)  #: below all ballots that are proposed


@dataclass(frozen=True)
class GenerationRecord:
    """What is decided: the members of a generation, in the order of their ranks."""

    generation: int
    members: Tuple[int, ...]
    witness: bool  #: the store's process votes, too
    #: Those that leave, or have left, since they were asked to; the last of them. A store that is elected later was
    #: told nothing else of it, and would end them as if something were wrong with them.
    asked: Tuple[int, ...] = ()

    @property
    def voters(self) -> Tuple[int, ...]:
        """Who decides on the next generation: the members, and the witness if there is one."""
        return (*self.members, WITNESS) if self.witness else self.members

    def message(self) -> Dict[str, Any]:
        """Return it as what JSON can hold; ``parse`` reads it."""
        message = {"generation": self.generation, "members": list(self.members), "witness": self.witness}
        return {**message, "asked": list(self.asked)} if self.asked else message

    @staticmethod
    def parse(value: Any) -> GenerationRecord:
        """Read what came as JSON. ``ProtocolError`` if it is no record."""
        keys = {"generation", "members", "witness"}
        if isinstance(value, dict) and value.keys() - {"asked"} == keys:
            generation, members, witness = value["generation"], value["members"], value["witness"]
            asked = value.get("asked", [])
            lists = isinstance(members, list) and isinstance(asked, list)
            if type(generation) is int and generation >= 0 and lists and type(witness) is bool:
                whole = all(type(member) is int and member >= 0 for member in [*members, *asked])
                if whole and members and len({*members, *asked}) == len(members) + len(asked):
                    return GenerationRecord(generation, tuple(members), witness, tuple(asked))
        raise ProtocolError(f"the record of a generation is {value!r:.200}, which makes no sense")


def first_record(size: int, *, witness: bool) -> GenerationRecord:
    """Return the generation that a job of ``size`` ranks begins with: its launcher has decided it."""
    return GenerationRecord(0, tuple(range(size)), witness)


def is_quorum(votes: Collection[int], voters: Tuple[int, ...]) -> bool:
    """Whether ``votes`` decide for ``voters``: more than half, or half with the first voter among them.

    Any two quorums have a voter in common: of two halves only one has the first voter.
    """
    count = len(set(votes) & set(voters))
    return 2 * count > len(voters) or (2 * count == len(voters) and voters[0] in votes)


class Accepted(NamedTuple):
    """What an acceptor has accepted for the next generation, and with which ballot."""

    ballot: BallotNumber
    record: GenerationRecord

    def message(self) -> List[Any]:
        """Return it as what JSON can hold."""
        return [list(self.ballot), self.record.message()]

    @staticmethod
    def parse(value: Any) -> Optional[Accepted]:
        """Read what came as JSON; None stays None. ``ProtocolError``."""
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2:
            raise ProtocolError(f"what a voter has accepted is {value!r:.200}, which makes no sense")
        return Accepted(BallotNumber.parse(value[0]), GenerationRecord.parse(value[1]))


def record_of(message: Message, key: str) -> GenerationRecord:
    """Return the record in a message. ``ProtocolError``."""
    return GenerationRecord.parse(message.get(key))


def ballot_of(message: Message) -> BallotNumber:
    """Return the ballot that a message is about. ``ProtocolError``."""
    return BallotNumber.parse(message.get("ballot"))
