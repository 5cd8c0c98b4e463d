"""Who belongs to a job: cases of the ranks' state machine that once went wrong, a few lines each."""

from __future__ import annotations

from store.members import kinds, voter

from ddl.net.address import HOST_TIMEOUT
from ddl.store.membership.acceptor import VoteCell
from ddl.store.membership.election import cut_off_after
from ddl.store.membership.participant import SELF, Participant
from ddl.store.membership.records import FIRST_BALLOT, GenerationRecord, first_record
from ddl.store.messages import Message


def told_of_store(owner: int, address: str, generation: int = 0) -> Message:
    """What a member says that has been elected to have the job's store, by those of ``generation``."""
    return {"type": "elected", "ballot": [1, owner, 0], "address": address, "generation": generation}


def test_a_member_goes_to_the_higher_of_two_stores_of_an_epoch() -> None:
    """A generation and its successor may both elect, as their quorums may have no voter in common."""
    member = voter(1, first_record(3, witness=False))
    member.store_lost(0.0)
    assert kinds(member.heard_member(0, told_of_store(0, "a"), 0.1)) == ["follow"]
    assert kinds(member.heard_member(2, told_of_store(2, "b"), 0.2)) == ["follow"]
    assert member.heard_member(0, told_of_store(0, "a"), 0.3) == []


def test_a_member_does_not_go_to_the_store_of_an_earlier_generation() -> None:
    """Who was left out may be elected by the dead of its host; the store of this generation would miss the member."""
    member = voter(1, GenerationRecord(3, (1, 2), False))
    assert member.heard_member(0, told_of_store(0, "a", generation=2), 0.1) == []
    assert kinds(member.heard_member(0, told_of_store(0, "a", generation=3), 0.1)) == ["follow"]


def is_cut_off(*, from_second: float, times: int, place: int = 1, size: int = 3) -> bool:
    """Whether member ``place`` finds that it is cut off, if others answer that they have the store, so many times."""
    member = voter(place, first_record(size, witness=True))
    out = member.store_lost(0.0)
    while not member.over:
        now = member.next_deadline()
        assert now is not None
        if now > 20.0:
            break
        out = member.tick(now)
        if "elect" in kinds(out) and now >= from_second and times > 0:
            times -= 1
            answer = {"type": "has_store", "ballot": list(FIRST_BALLOT), "address": "a", "reached": True}
            assert member.heard_member(0, answer, now + 0.01) == []
    return out == [(SELF, {"type": "left_out", "reason": member.over})]


def test_a_member_is_cut_off_if_others_still_have_the_store() -> None:
    assert is_cut_off(from_second=0.0, times=100)


def test_a_process_that_was_stopped_cuts_nobody_off() -> None:
    """It answers before it has looked whether its connection to the store has ended."""
    assert not is_cut_off(from_second=cut_off_after(HOST_TIMEOUT), times=1)


def test_a_late_candidate_of_many_is_cut_off_too() -> None:
    """It asks less often than the first ones."""
    assert is_cut_off(from_second=0.0, times=100, place=30, size=40)


def test_the_death_of_a_process_counts_before_its_generation_is_known() -> None:
    """Its neighbour has not heard yet that it is a member; nobody tells the neighbour of its end again."""
    record = first_record(2, witness=True)
    member = voter(0, record)
    member.connected(0.0)
    joined = GenerationRecord(1, (0, 1, 2), True)
    assert kinds(member.certain_death(2, VoteCell(joined, FIRST_BALLOT), "it died", 0.0)) == ["died"]
    member.heard({"type": "commit", "record": joined.message()}, 0.1)
    question = {"type": "prepare", "base": joined.message(), "ballot": [0, -1, 5], "voter": 2}
    assert kinds(member.heard(question, 0.2)) == ["promise"]


def test_the_end_of_an_old_store_does_not_matter_once_the_next_is_reached() -> None:
    """The connection to the old one may end while that to the next is made; an election would cut this member off."""
    member = voter(1, first_record(3, witness=True))
    member.store_lost(0.0)
    member.heard_member(0, told_of_store(0, "a"), 0.1)
    assert member.store_lost(0.11) == []
    assert kinds(member.connected(0.12)) == ["here"]
    assert member.next_deadline() is None


def test_a_member_elects_again_if_the_next_store_is_not_reached() -> None:
    member = voter(0, first_record(3, witness=True))
    member.store_lost(0.0)
    member.heard_member(2, told_of_store(2, "a"), 0.1)
    assert member.not_connected(5.0) == []
    assert kinds(member.tick(5.6)) == ["elect", "elect"]


def test_a_member_tries_a_store_again_that_it_did_not_reach() -> None:
    """That store's process may have been stopped. Whoever had reached it, and lost it, is cut off in the end."""
    member = voter(0, first_record(3, witness=True))
    member.store_lost(0.0)
    member.heard_member(2, told_of_store(2, "a"), 0.1)
    assert member.not_connected(5.0) == []
    has_store = {"type": "has_store", "ballot": [1, 2, 0], "address": "a", "reached": True}
    assert kinds(member.tick(5.6)) == ["elect", "elect"]
    assert kinds(member.heard_member(1, has_store, 5.7)) == ["follow"]
    member.connected(5.8)
    member.store_lost(6.0)
    assert member.heard_member(1, has_store, 6.1) == []


def test_members_do_not_send_one_another_to_a_store_that_none_of_them_has_reached() -> None:
    """Its host may have died in the moment in which it was elected. They would try again and again."""
    member, other = (voter(place, first_record(3, witness=True)) for place in (0, 1))
    for each in (member, other):
        each.store_lost(0.0)
        assert kinds(each.heard_member(2, told_of_store(2, "a"), 0.1)) == ["follow"]
    assert member.not_connected(5.0) == []  # the other one still tries
    (_, question), *_ = member.tick(5.6)
    ((_, answer),) = other.heard_member(0, question, 5.7)
    assert answer["type"] == "has_store" and member.heard_member(1, answer, 5.7) == []


def test_a_member_does_not_connect_twice_to_one_store() -> None:
    """The second connection would be refused, and taken for the loss of the store that the first one has reached."""
    member = voter(0, first_record(3, witness=True))
    member.store_lost(0.0)
    assert kinds(member.heard_member(2, told_of_store(2, "a"), 0.1)) == ["follow"]
    assert member.store_lost(0.11) == []  # the store before has ended only now
    has_store = {"type": "has_store", "ballot": [1, 2, 0], "address": "a", "reached": True}
    assert member.heard_member(1, has_store, 0.2) == []
    assert kinds(member.connected(0.3)) == ["here"]
    assert member.not_connected(0.4) == [] and member.next_deadline() is None


def test_a_candidate_gives_its_own_vote_last() -> None:
    """Else one that was cut off could not vote for what the others' store proposes, and nor could its host for it."""
    record = first_record(3, witness=True)
    member = voter(0, record)
    (_, question), *_ = member.store_lost(0.0)
    member.tick(5.0)
    ballot = {"ballot": [0, -1, 1], "base": record.message(), "voter": 0}
    assert kinds(member.heard({"type": "prepare", **ballot}, 6.0)) == ["promise"]
    member, other = voter(0, record), voter(1, record)
    other.store_lost(0.0)
    (_, question), *_ = member.store_lost(0.0)
    (_, promise), *_ = other.heard_member(0, question, 0.0)
    assert kinds(member.heard_member(1, promise, 0.0)) == ["serve"]  # half of the votes, with the first member's


def test_a_plan_ends_with_its_store_also_for_who_has_not_missed_it() -> None:
    """Else it would stop alone, while the others, who have missed the store, go on and wait for it."""
    record = first_record(3, witness=True)
    member = Participant(2, "host", VoteCell(record, FIRST_BALLOT))
    member.step_finished(8)
    member.heard({"type": "where", "plan": [0, -1, 1]}, 0.0)
    member.heard({"type": "stop_at", "plan": [0, -1, 1], "step": 9}, 0.0)
    assert member.stop.is_planned
    member.heard_member(0, told_of_store(0, "new"), 0.0)
    assert not member.stop.is_planned and member.step_finished(9) == [] and member.stop.may_begin


def test_a_step_that_began_late_because_of_the_store_is_nobodys_fault() -> None:
    """The store waits for a rank that is stopped before it says where to stop, and the others' deadlines pass."""
    record = first_record(3, witness=True)
    member = Participant(2, "host", VoteCell(record, FIRST_BALLOT))
    member.step_finished(8)
    assert not member.is_held
    member.heard({"type": "where", "plan": [0, -1, 1]}, 0.0)
    assert member.stop.may_begin and not member.is_held  # it is in step 9
    member.step_finished(9)
    assert not member.stop.may_begin and member.is_held
    member.heard({"type": "stop_at", "plan": [0, -1, 1], "step": 11}, 4.0)
    assert member.stop.may_begin and member.is_held
    member.step_finished(10)
    assert member.stop.may_begin and not member.is_held


def test_who_waits_for_the_next_generation_is_late_for_no_operation() -> None:
    """Its communicators are over. Others, whom the store has not told before it ended, may still wait in them."""
    record = first_record(3, witness=True)
    base = {"base": record.message(), "ballot": [0, -1, 1], "voter": 2}
    following = GenerationRecord(1, (0, 2), True).message()
    member = Participant(2, "host", VoteCell(record, FIRST_BALLOT))
    assert kinds(member.heard({"type": "accept", **base, "record": following}, 0.0)) == ["break", "accepted"]
    assert member.is_held
    member.heard({"type": "commit", "record": following}, 0.0)
    assert not member.is_held

    failed = Participant(2, "host", VoteCell(record, FIRST_BALLOT))  # another verdict has ended its communicators
    assert kinds(failed.wants_next(0)) == ["ready"]
    assert failed.is_held
