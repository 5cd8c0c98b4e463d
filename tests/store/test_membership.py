"""Who belongs to a job: cases of the store's state machine that once went wrong, a few lines each."""

from __future__ import annotations

from typing import List, Tuple

from store.members import ELECTED, answered, here, kinds, two_members, voter

from ddl.store.membership.limits import ElasticLimits, Phase
from ddl.store.membership.membership import Membership
from ddl.store.membership.records import BallotNumber, GenerationRecord, first_record
from ddl.store.membership.roster import Roster
from ddl.store.messages import Outgoing


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
    for member in (3, 0):
        promise = {"type": "promise", "voter": member, "generation": 3, "ballot": ballot, "accepted": None}
        assert "left_out" not in {message["type"] for _, message in store.received(3, promise, 0.0)}
    out: Outgoing = []
    for member in (3, 0):
        out += store.received(3, {"type": "accepted", "voter": member, "generation": 3, "ballot": ballot}, 0.0)
    assert store.record.members == (3,)
    assert [(to, message["type"]) for to, message in out] == [(3, "commit"), (2, "left_out")]


def stopping(size: int) -> Tuple[Membership, List[int]]:
    """Return a store whose members are to stop for a newcomer, once they have all been told where, and the plan."""
    record = first_record(size, witness=True)
    store = Membership(record, ElasticLimits(script_patience=10.0))
    for number in (*record.members, size):
        store.received(number, here(record, newcomer=number == size), 0.0)
    (_, asked), *_ = store.received(size, {"type": "caught_up"}, 0.0)
    assert asked["type"] == "where"
    for member in record.members:
        told = store.received(member, {"type": "at", "plan": asked["plan"], "step": 4}, 1.0)
    assert kinds(told) == ["stop_at"] * size and store.phase is Phase.STOPPING
    return store, asked["plan"]


def test_members_in_a_long_step_are_not_given_up_for_a_newcomer() -> None:
    """One of them writes a checkpoint for minutes, and the others wait for it in an operation that has more time."""
    store, plan = stopping(3)
    for second in range(2, 100):
        assert store.tick(float(second)) == [] and store.blamed == []
    for member in range(3):
        out = store.received(member, {"type": "stopped", "plan": plan, "step": 5}, 100.0)
    assert "prepare" in kinds(out)


def test_a_member_that_keeps_others_from_a_planned_change_is_given_up() -> None:
    """They have ended all operations of the step, and so has it."""
    store, plan = stopping(3)
    for member in (0, 2):
        assert store.received(member, {"type": "stopped", "plan": plan, "step": 5}, 8.0) == []
    store.tick(10.9)
    assert store.blamed == []
    store.tick(11.1)
    assert store.blamed == [(1, "its program has not come to the change of ranks for 10 s")]


def test_a_member_that_does_not_say_where_it_is_is_given_up() -> None:
    """The others wait before their next step."""
    record = first_record(2, witness=True)
    store = Membership(record, ElasticLimits(script_patience=10.0))
    for number in range(3):
        store.received(number, here(record, newcomer=number == 2), 0.0)
    (_, asked), *_ = store.received(2, {"type": "caught_up"}, 0.0)
    store.received(0, {"type": "at", "plan": asked["plan"], "step": 4}, 1.0)
    store.tick(10.1)
    assert [number for number, _ in store.blamed] == [1]
