"""Who belongs to a job: cases of the store's and the ranks' state machines that once went wrong, a few lines each."""

from __future__ import annotations

from typing import Dict, List, Tuple

from ddl.store.membership.acceptor import VoteCell
from ddl.store.membership.election import CUT_OFF
from ddl.store.membership.limits import ElasticLimits, Phase
from ddl.store.membership.membership import Membership
from ddl.store.membership.participant import SELF, STORE, Participant
from ddl.store.membership.records import FIRST_BALLOT, BallotNumber, GenerationRecord, first_record
from ddl.store.membership.roster import Roster
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


def told_of_store(owner: int, address: str, generation: int = 0) -> Message:
    """What a member says that has been elected to have the job's store, by those of ``generation``."""
    return {"type": "elected", "ballot": [1, owner, 0], "address": address, "generation": generation}


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


def test_a_store_ends_when_another_of_its_epoch_has_the_votes() -> None:
    """It would be refused for ever, and would ask again at once."""
    record = GenerationRecord(3, (0, 1, 2), False)
    store = Membership(record, ElasticLimits(), ELECTED)
    for member in record.members:
        store.received(member, here(record), 0.0)
    rival = BallotNumber(1, 2, 0)
    refusal = {"voter": 1, "promised": list(rival), "record": record.message()}
    asked = store.lost(2, "it died", 0.1)
    ballot = next(message["ballot"] for _, message in asked if message["type"] == "prepare")
    told = store.received(1, {"type": "refused", "ballot": ballot, **refusal}, 0.2)
    assert kinds(told) == ["superseded"] * 3  # nobody waits for it any more
    assert store.superseded and store.phase is Phase.OVER
    assert kinds(store.received(2, here(record), 0.3)) == ["superseded"]
    member = voter(1, record)
    assert kinds(member.heard({"type": "superseded"}, 0.3)) == []
    assert kinds(member.tick(0.4)) == ["elect", "elect"]


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


def test_an_elected_store_that_learns_a_generation_learns_that_its_members_went_on() -> None:
    """Nobody says ``installed`` again: the store would wait, and then take all of them for late."""
    before, after = GenerationRecord(0, (0, 1, 2), False), GenerationRecord(1, (1,), False)
    store = Membership(before, ElasticLimits(script_patience=10.0), ELECTED)
    store.received(1, here(after, went=[[1, "x"]]), 0.0)
    store.tick(0.0)
    assert (store.record, store.phase, store.next_deadline()) == (after, Phase.STEADY, None)


def test_communicators_that_cannot_be_made_lead_to_another_generation() -> None:
    record = first_record(2, witness=True)
    store = Membership(record, ElasticLimits())
    members = {incarnation: voter(incarnation, record) for incarnation in record.members}
    for incarnation, member in members.items():
        for _, message in member.connected(0.0):
            store.received(incarnation, message, 0.0)
    answered(store, members, store.received(0, {"type": "ready", "generation": 0}, 0.0))
    assert (store.record.generation, store.phase) == (1, Phase.INSTALLING)
    (_, ready), *_ = members[1].wants_next(1)
    answered(store, members, store.received(1, ready, 1.0))
    assert (store.record.generation, store.record.members) == (2, (0, 1))


def test_an_elected_store_waits_for_all_before_it_replaces_what_is_broken() -> None:
    record = GenerationRecord(0, (0, 1), False)
    store = Membership(record, ElasticLimits(), ELECTED)
    store.received(0, here(record), 0.0)
    assert store.received(0, {"type": "ready", "generation": 0}, 0.0) == []
    store.received(1, here(record), 0.1)
    assert kinds(store.tick(0.1)) == ["prepare", "prepare"]


def test_the_last_that_have_the_state_stay_although_they_are_to_leave() -> None:
    """A newcomer alone would undo the steps after its snapshot; and no plan is made again and again."""
    store, members = two_members(witness=True)
    assert kinds(store.remove(1, 0.0)) == ["where", "where"]
    told = answered(store, members, store.gone(0, "it died", 0.1), 0.1)
    assert (store.record.members, kinds(told)) == ((1,), ["break", "generation"])
    assert kinds(store.received(1, {"type": "installed", "generation": 1, "value": ""}, 0.2)) == ["go"]
    assert store.phase is Phase.STEADY


def test_who_was_asked_to_leave_before_it_was_a_member_leaves_when_it_is_one() -> None:
    """A rank that died in between is no reason to forget that: the process would have stayed until it was ended."""
    roster = Roster(GenerationRecord(0, (0, 1), True))
    roster.newcomers[2] = True
    roster.leaving.add(2)
    roster.absent[0] = "it died"
    roster.enter(GenerationRecord(1, (1,), True))
    assert roster.to_leave() == set()
    roster.enter(GenerationRecord(2, (1, 2), True))
    assert roster.to_leave() == {2}
    roster.enter(GenerationRecord(3, (1,), True, (2,)))
    assert roster.leaving == set() and roster.left_out(2)["asked"] is True


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
    assert not is_cut_off(from_second=CUT_OFF, times=1)


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


def test_who_was_asked_to_leave_is_part_of_what_is_decided() -> None:
    """The store that had been told so may end in between; its successor must not end that rank as if it had failed."""
    store, members = two_members(witness=False)
    record = store.record
    answered(store, members, store.remove(1, 0.0))
    out: Outgoing = []
    for incarnation, member in members.items():
        for _, message in member.step_finished(1):
            out += store.received(incarnation, message, 0.1)
    while "accept" not in kinds(out):
        (number, question), *out = out
        out += [
            each for _, answer in members[number].heard(question, 0.2) for each in store.received(number, answer, 0.2)
        ]
    for number, question in out:
        members[number].heard(question, 0.3)  # the answers come to nobody
    successor = Membership(record, ElasticLimits(), ELECTED, interrupted=True)
    for incarnation in members:
        successor.received(incarnation, here(record), 0.4)
    told = answered(successor, members, successor.tick(0.4), 0.4)
    left_out = [message for number, message in told if message["type"] == "left_out"]
    assert len(left_out) == 1 and members[1].asked_to_leave
    assert successor.record.members == (0,)


def test_a_store_that_was_stopped_itself_takes_nobody_for_late() -> None:
    """Its members have connected meanwhile, and nobody has looked."""
    record = GenerationRecord(0, (0, 1, 2), False)
    store = Membership(record, ElasticLimits(), ELECTED)
    store.received(0, here(record), 0.0)
    store.received(1, here(record), 0.0)
    assert store.tick(30.0) == []
    store.received(2, here(record), 30.1)
    assert store.tick(30.1) == [] and store.blamed == []


def test_a_member_that_is_lost_but_answers_votes_until_it_is_left_out() -> None:
    """The first of two members is late: without its vote the other one is no quorum, and both would end."""
    store, members = two_members(witness=False)
    told = answered(store, members, store.lost(0, "its script is late", 0.1), 0.1)
    assert store.record.members == (1,)
    assert [message["type"] for number, message in told if number == 0] == ["break", "left_out"]


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


def test_a_newcomer_that_comes_when_all_have_left_ends() -> None:
    """No step ends any more at which it could join."""
    store, _ = two_members(witness=True)
    record = store.record
    store.received(2, here(record, newcomer=True), 0.0)
    assert store.left(0, 0.1) == []
    assert store.received(2, {"type": "caught_up"}, 0.2) == []
    assert kinds(store.left(1, 0.3)) == ["end"]
    assert kinds(store.received(3, here(record, newcomer=True), 0.4)) == ["end"]


def test_an_elected_store_does_not_wait_without_end_for_a_quorum() -> None:
    """Those that elected it may be gone before they come to it."""
    record = GenerationRecord(0, (0, 1, 2, 3, 4), False)
    store = Membership(record, ElasticLimits(patience=3.0), ELECTED)
    store.received(0, here(record), 0.0)
    out: Outgoing = []
    while not out:
        now = store.next_deadline()
        assert now is not None
        out = store.tick(now)
    assert (kinds(out), now) == (["end"], 3.0)


def test_an_elected_store_waits_while_members_come_one_after_the_other() -> None:
    """They ask one another for a store, in turns; who comes last is not lost as long as others still come."""
    record = GenerationRecord(1, (0, 1, 2, 3, 4), False)
    store = Membership(record, ElasticLimits(), ELECTED)
    for number, moment in ((0, 0.0), (1, 0.6), (2, 1.2), (3, 1.8)):
        store.received(number, here(record), moment)
        store.tick(moment + 0.55)
    assert store.blamed == []
    store.received(4, here(record), 2.4)
    assert store.tick(2.4) == [] and store.blamed == []
    store = Membership(record, ElasticLimits(), ELECTED)
    for number in range(4):
        store.received(number, here(record), 0.0)
    store.tick(1.0)
    assert [number for number, _ in store.blamed] == [4]


def test_the_program_of_who_has_not_come_to_an_elected_store_is_not_blamed() -> None:
    """Its members may not be able to reach it: nobody has told their programs of a change yet."""
    record = GenerationRecord(1, (0, 1, 2, 3), False)
    store = Membership(record, ElasticLimits(script_patience=10.0, patience=40.0), ELECTED)
    store.received(0, here(record), 0.0)
    for tenth in range(1, 300):
        assert store.tick(tenth / 10) == [] and store.blamed == []
    store.received(1, here(record), 30.0)
    store.received(2, here(record), 30.0)
    store.received(3, here(record), 30.0)
    assert store.tick(30.0) == [] and store.blamed == []
    for tenth in range(1, 100):
        store.tick(30.0 + tenth / 10)
    assert store.blamed == []
    store.tick(40.0)  # now they have had their time
    assert [number for number, _ in store.blamed] == [0, 1, 2, 3]


def test_an_elected_store_plans_no_stop_before_all_members_have_come() -> None:
    """One that comes later would not hear of it, and would wait in its next step for those that have stopped."""
    record = GenerationRecord(1, (0, 1), False)
    store = Membership(record, ElasticLimits(), ELECTED)
    store.received(0, here(record, went=[[0, ""], [1, ""]]), 0.0)
    store.received(2, here(record, newcomer=True), 0.0)
    assert store.received(2, {"type": "caught_up"}, 0.0) == []
    store.received(1, here(record), 0.1)
    assert kinds(store.tick(0.1)) == ["where", "where"]


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
    assert member.stop_is_planned
    member.heard_member(0, told_of_store(0, "new"), 0.0)
    assert not member.stop_is_planned and member.step_finished(9) == [] and member.may_begin


def test_a_step_that_began_late_because_of_the_store_is_nobodys_fault() -> None:
    """The store waits for a rank that is stopped before it says where to stop, and the others' deadlines pass."""
    record = first_record(3, witness=True)
    member = Participant(2, "host", VoteCell(record, FIRST_BALLOT))
    member.step_finished(8)
    assert not member.is_held
    member.heard({"type": "where", "plan": [0, -1, 1]}, 0.0)
    assert member.may_begin and not member.is_held  # it is in step 9
    member.step_finished(9)
    assert not member.may_begin and member.is_held
    member.heard({"type": "stop_at", "plan": [0, -1, 1], "step": 11}, 4.0)
    assert member.may_begin and member.is_held
    member.step_finished(10)
    assert member.may_begin and not member.is_held


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


def test_who_is_left_out_is_told_when_what_is_under_way_is_decided() -> None:
    """It may have an elected store, and cast the votes of the dead of its host: ended before, it takes them along."""
    record = GenerationRecord(2, (0, 1, 3), False)
    store = Membership(record, ElasticLimits(), BallotNumber(4, 2, 0))
    here = {"type": "here", "host": "a", "newcomer": False}
    assert store.received(2, {**here, "record": record.message()}, 0.0) == []  # of an older generation
    store.received(3, {**here, "host": "b", "record": record.message(), "went": []}, 0.0)
    for dead in (0, 1):
        store.received(2, {"type": "died", "incarnation": dead, "why": "killed"}, 0.0)
    ballot = [*store.ballot]
    for voter in (3, 0):
        promise = {"type": "promise", "voter": voter, "generation": 3, "ballot": ballot, "accepted": None}
        assert "left_out" not in {message["type"] for _, message in store.received(3, promise, 0.0)}
    out: Outgoing = []
    for voter in (3, 0):
        out += store.received(3, {"type": "accepted", "voter": voter, "generation": 3, "ballot": ballot}, 0.0)
    assert store.record.members == (3,)
    assert [(to, message["type"]) for to, message in out] == [(3, "commit"), (2, "left_out")]
