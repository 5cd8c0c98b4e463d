"""A store and the members of its job, as the tests of membership have them talk."""

from __future__ import annotations

from typing import Dict, List, Tuple

from ddl.store.membership.acceptor import VoteCell
from ddl.store.membership.limits import ElasticLimits
from ddl.store.membership.membership import Membership
from ddl.store.membership.participant import STORE, Participant
from ddl.store.membership.records import FIRST_BALLOT, BallotNumber, GenerationRecord, first_record
from ddl.store.messages import Message, Outgoing

ELECTED = BallotNumber(1, 0, 0)


def here(record: GenerationRecord, **more: object) -> Message:
    return {"type": "here", "host": "h", "record": record.message(), "newcomer": False, **more}


def voter(incarnation: int, record: GenerationRecord) -> Participant:
    return Participant(incarnation, "h", VoteCell(record, FIRST_BALLOT))


def two_members(witness: bool) -> Tuple[Membership, Dict[int, Participant]]:
    """A store, and the two members of its first generation, who have come to it."""
    record = first_record(2, witness=witness)
    store = Membership(record, ElasticLimits())
    for incarnation in record.members:
        store.received(incarnation, here(record), 0.0)
    return store, {incarnation: voter(incarnation, record) for incarnation in record.members}


def kinds(outgoing: Outgoing) -> List[str]:
    return [message["type"] for _, message in outgoing]


def answered(store: Membership, members: Dict[int, Participant], outgoing: Outgoing, now: float = 0.0) -> Outgoing:
    """Bring messages from the store to members and their answers back; return what members tell their processes."""
    told: Outgoing = []
    while outgoing:
        member, message = outgoing.pop(0)
        for where, answer in members[member].heard(message, now) if member in members else []:
            if where == STORE:
                outgoing += store.received(member, answer, now)
            else:
                told.append((member, answer))
    return told
