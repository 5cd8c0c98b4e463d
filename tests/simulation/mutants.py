"""Deliberate faults in the state machines, a few lines each. The simulator must find every one of them.

A mutant is a context manager: the machines are wrong inside, and as they were outside.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, Iterator, List, Optional, Set, Tuple
from unittest import mock

from ddl.store import verdict
from ddl.store.membership import (
    acceptor,
    decision,
    election,
    membership,
    participant,
    planned_stop,
    records,
    roster,
    voting,
)
from ddl.store.membership.records import GenerationRecord
from ddl.store.messages import Message, Outgoing

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """A fault in the machines, and the faults of the world that bring it to light (all, if none are named)."""

    inside: Callable[[], contextlib.AbstractContextManager[None]]
    faults: Optional[Dict[str, int]]
    first: int  #: the first seed to try


MUTANTS: Dict[str, Mutant] = {}


def _mutant(first: int = 0, **faults: int) -> Callable[[Callable[[], Iterator[None]]], Mutant]:
    def add(work: Callable[[], Iterator[None]]) -> Mutant:
        MUTANTS[work.__name__] = Mutant(contextlib.contextmanager(work), faults or None, first)
        return MUTANTS[work.__name__]

    return add


@contextlib.contextmanager
def _quorum(rule: Callable[[Collection[int], Tuple[int, ...]], bool]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module in (decision, election, membership):
            stack.enter_context(mock.patch.object(module, "is_quorum", rule))
        yield


@_mutant()
def half_is_a_quorum() -> Iterator[None]:
    """Two halves decide on two generations."""
    with _quorum(lambda votes, voters: 2 * len(set(votes) & set(voters)) >= len(voters)):
        yield


@_mutant()
def the_dead_are_not_counted() -> Iterator[None]:
    """The denominator shrinks by those that are known to have ended."""
    dead: Set[int] = set()
    lost = membership.Membership.lost

    def noted(self: membership.Membership, incarnation: int, why: str, now: float) -> Outgoing:
        dead.add(incarnation)
        return lost(self, incarnation, why, now)

    def rule(votes: Collection[int], voters: Tuple[int, ...]) -> bool:
        alive = tuple(voter for voter in voters if voter not in dead)
        return bool(alive) and records.is_quorum(votes, alive)

    with mock.patch.object(membership.Membership, "lost", noted), _quorum(rule):
        yield


@_mutant(store_crash=4, slow=4, pause=1)
def two_votes_in_an_epoch() -> Iterator[None]:
    """A voter promises whoever asks that the epoch is theirs."""

    def elect(self: acceptor.Acceptor, message: Message) -> Message:
        base, ballot = records.record_of(message, "base"), records.ballot_of(message)
        cell = self._current(base)
        if base.generation < cell.record.generation or ballot.epoch < cell.promised.epoch:
            return self._refused(ballot)
        cell.promised = max(ballot, cell.promised)
        cell.keep()
        return self._promise(ballot)

    with mock.patch.object(acceptor.Acceptor, "elect", elect):
        yield


@_mutant()
def what_was_accepted_is_forgotten() -> Iterator[None]:
    """A promise does not tell of a record that may be decided."""

    def promise(self: acceptor.Acceptor, ballot: records.BallotNumber) -> Message:
        generation = self.cell.record.generation + 1
        told = {"voter": self.voter, "generation": generation, "ballot": list(ballot)}
        return {"type": "promise", **told, "accepted": None}

    with mock.patch.object(acceptor.Acceptor, "_promise", promise):
        yield


@_mutant(first=600, store_crash=4, pause=4, crash=2, pause_at_send=2)
def an_old_epoch_is_accepted() -> Iterator[None]:
    """A voter answers a store that has been succeeded as it answers its successor."""

    def prepare(self: acceptor.Acceptor, message: Message) -> Message:
        base, ballot = records.record_of(message, "base"), records.ballot_of(message)
        cell = self._current(base)
        if base.generation < cell.record.generation:
            return self._refused(ballot)
        cell.promised = ballot
        cell.keep()
        return self._promise(ballot)

    with mock.patch.object(acceptor.Acceptor, "prepare", prepare):
        yield


@_mutant()
def who_was_left_out_comes_back() -> Iterator[None]:
    """A store forgets who is gone once that is decided, and takes them for newcomers."""
    learn, here = membership.Membership._learn, membership.Membership._here

    def forgets(self: membership.Membership, record: GenerationRecord, now: float) -> Outgoing:
        before = self.record
        out = learn(self, record, now)
        for member in before.members:
            self._roster.absent.pop(member, None)
            if member not in record.members and member in self._roster.present:
                self._roster.newcomers[member] = True
        return out + self._plan_if_needed(now)

    with (
        mock.patch.object(membership.Membership, "_learn", forgets),
        mock.patch.object(membership.Membership, "_here", here),
    ):
        yield


@_mutant()
def a_commit_before_it_is_accepted() -> Iterator[None]:
    """What is proposed is taken for decided."""
    propose = decision.Decision._propose

    def hasty(self: decision.Decision) -> bool:
        proposed = propose(self)
        self.decided = self.decided or self.proposed
        return proposed

    with mock.patch.object(decision.Decision, "_propose", hasty):
        yield


@_mutant(join=3, crash=2, remove=1)
def a_learner_is_a_member() -> Iterator[None]:
    """A newcomer is admitted before it has caught up."""
    wanted = voting.Voting._wanted

    def early(self: voting.Voting) -> Optional[GenerationRecord]:
        self._roster.newcomers = {newcomer: True for newcomer in self._roster.newcomers}
        return wanted(self)

    with mock.patch.object(voting.Voting, "_wanted", early):
        yield


@_mutant(pause=5, host_off=1, crash=2, one_way=2)
def a_deadline_is_not_set_again() -> Iterator[None]:
    """A voter that is silent is waited for, although there is a quorum without it."""
    change = membership.Membership._change

    def unarmed(self: membership.Membership, now: float) -> Outgoing:
        out = change(self, now)
        self._deadlines.again = None
        return out

    with mock.patch.object(membership.Membership, "_change", unarmed):
        yield


@_mutant()
def the_stop_is_a_step_early() -> Iterator[None]:
    """All are to stop after a step that some have passed."""
    answered = planned_stop.PlannedStop.answered

    def early(self: planned_stop.PlannedStop, member: int, message: Message) -> Outgoing:
        out = answered(self, member, message)
        if out and self.step is not None:
            self.step -= 1
            out = [(asked, {**told, "step": max(0, told["step"] - 1)}) for asked, told in out]
        return out

    with mock.patch.object(planned_stop.PlannedStop, "answered", early):
        yield


@_mutant(first=1100, one_way=3, partition=3, join=1)
def hosts_that_do_not_hear_each_other_stay() -> Iterator[None]:
    """Both reach the store, which hears of it."""
    with mock.patch.object(verdict, "divide", lambda *_: {}):
        yield


@_mutant(first=2000)
def all_in_a_long_step_are_late() -> Iterator[None]:
    """Nobody has stopped for a change yet, since one of them takes long."""
    with mock.patch.object(planned_stop.PlannedStop, "late", planned_stop.PlannedStop.missing):
        yield


@_mutant(goodbye=3, join=2)
def lost_without_grace() -> Iterator[None]:
    """Who is said to be unreachable is blamed at once."""
    with mock.patch.object(verdict, "LOST_GRACE", 0.0):
        yield


@_mutant()
def go_before_all_are_ready() -> Iterator[None]:
    """All may go as soon as the first is ready."""

    def installed(self: membership.Membership, incarnation: int, message: Message, now: float) -> Outgoing:
        if message["generation"] != self.record.generation or self._values is not None:
            return []
        self._installed = {member: message["value"] for member in self.record.members}
        return self._let_go(now)

    with mock.patch.object(membership.Membership, "_has_installed", installed):
        yield


@_mutant()
def a_silent_voter_is_voted_for() -> Iterator[None]:
    """Whoever asks gets a promise of a voter that nobody has heard."""
    again = membership.Membership._ask_again

    def invented(self: membership.Membership, now: float) -> Outgoing:
        asked = self._voting.decision
        for voter in asked.unanswered if asked is not None else ():
            kind = "promise" if asked is not None and asked.proposed is None else "accepted"
            if asked is not None and voter >= 0:
                answer: Message = {"type": kind, "voter": voter, "ballot": list(asked.ballot), "accepted": None}
                asked.heard({**answer, "generation": asked.base.generation + 1})
        return again(self, now)

    with mock.patch.object(membership.Membership, "_ask_again", invented):
        yield


@_mutant()
def the_vote_of_a_dead_is_made_up() -> Iterator[None]:
    """A neighbour votes for a dead rank without its cell."""
    certain = participant.Participant.certain_death

    def empty(self: participant.Participant, incarnation: int, cell: Any, why: str, now: float) -> Outgoing:
        return certain(self, incarnation, acceptor.VoteCell(self.record, records.FIRST_BALLOT), why, now)

    with mock.patch.object(participant.Participant, "certain_death", empty):
        yield


@_mutant()
def who_accepts_does_not_break() -> Iterator[None]:
    """A member goes on with steps after it has accepted another generation."""
    vote = participant.Participant._vote

    def goes_on(self: participant.Participant, message: Message) -> Outgoing:
        return [(to, told) for to, told in vote(self, message) if told["type"] != "break"]

    with mock.patch.object(participant.Participant, "_vote", goes_on):
        yield


@_mutant(crash=2, join=3, remove=3)
def who_has_not_joined_need_not_leave() -> Iterator[None]:
    """A newcomer was to leave; the others change without it, and nobody remembers."""
    enter = roster.Roster.enter

    def forgets(self: roster.Roster, record: GenerationRecord) -> Dict[int, str]:
        gone = enter(self, record)
        self.leaving &= set(record.members)
        return gone

    with mock.patch.object(roster.Roster, "enter", forgets):
        yield


@_mutant()
def newcomers_come_first() -> Iterator[None]:
    """A newcomer gets the place of rank 0."""
    wanted = voting.Voting._wanted

    def turned(self: voting.Voting) -> Optional[GenerationRecord]:
        record = wanted(self)
        if record is None or record.members[-1] in self._roster.record.members:
            return record
        members: List[int] = [record.members[-1], *record.members[:-1]]
        return GenerationRecord(record.generation, tuple(members), record.witness, record.asked)

    with mock.patch.object(voting.Voting, "_wanted", turned):
        yield


@_mutant(first=100, store_crash=3, store_crash_at_send=3, crash=2, join=1)
def an_elected_store_asks_nobody_to_come() -> Iterator[None]:
    """What the last store had begun is left as it is."""

    def nothing(self: membership.Membership, now: float) -> Outgoing:
        self._deadlines.awaited = None
        return []

    with mock.patch.object(membership.Membership, "_all_came", nothing):
        yield


@_mutant(200)
def a_superseded_store_is_silent() -> Iterator[None]:
    """Its members wait for it."""
    look = membership.Membership._look_at_decision

    def silent(self: membership.Membership, now: float) -> Outgoing:
        out = look(self, now)
        return [] if self.superseded else out

    with mock.patch.object(membership.Membership, "_look_at_decision", silent):
        yield


@_mutant(pause=4, crash=2)
def a_retry_leaves_out_who_has_answered() -> Iterator[None]:
    """When questions are asked again, those that have answered are taken for silent."""
    again = membership.Membership._ask_again

    def confused(self: membership.Membership, now: float) -> Outgoing:
        asked = self._voting.decision
        if asked is not None and asked.has_quorum:
            for voter in asked.base.members[-1:]:
                self._roster.absent.setdefault(voter, "its agent has not answered")
        return again(self, now)

    with mock.patch.object(membership.Membership, "_ask_again", confused):
        yield


@_mutant(crash=3, remove=1, join=1)
def a_store_lets_too_few_go_on() -> Iterator[None]:
    """The job trains with fewer ranks than it needs."""
    with mock.patch.object(membership.Membership, "_enough", True):
        yield
