"""What ranks conclude from ballots: the same everywhere, each operation once, whatever the order of submission."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ddl
from ddl.negotiation import ballot
from ddl.negotiation.agreement import Agreement, RoundOutcome
from ddl.negotiation.signature import ANY, Signature

SMALL = Signature("allreduce", (("float32", (3,)),), "op=Sum")
LARGE = Signature("allreduce", (("float32", (4, 5)),), "op=Sum")


def play(agreements: List[Agreement]) -> RoundOutcome:
    """One round of all ranks; all must come to the same, also those who do not look whether all are of one opinion."""
    alone = [voting_alone(agreement) for agreement in agreements]
    votes = [agreement.vote() for agreement in agreements]
    ballots = np.stack([vote for vote, _ in votes])
    flags, entries = ballot.unpack(ballots)
    news = [said for _, said in votes] if any(flag & ballot.NEWS for flag in flags) else ()
    outcomes = []
    for agreement, quickest in zip(agreements, alone):
        slow = copy.deepcopy(agreement)
        if quickest is not None:
            after_voting_alone(quickest, copy.deepcopy(agreement), ballots, news)
        outcome = slow.decide(flags, entries, news)
        quick = agreement.unanimous(ballots)
        if quick is None:
            assert agreement.decide(flags, entries, news) == outcome
        else:
            assert (RoundOutcome(quick), vars(agreement)) == (outcome, {**vars(slow), "_ballot": agreement._ballot})
            assert np.array_equal(slow._ballot, agreement._ballot)
        outcomes.append(outcome)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    return outcomes[0]


def voting_alone(agreement: Agreement) -> Optional[Agreement]:
    """Return a copy that has voted on the one operation that is submitted, without having been told of it before."""
    if len(agreement._submitted) != 1 or not agreement._bits or not agreement.fresh or agreement._join:
        return None
    alone = copy.deepcopy(agreement)
    ((name, signature),) = alone._submitted.items()
    alone._submitted.clear()
    alone._bits, alone.fresh = 0, False
    assert alone.vote_alone(name, signature) is not None
    assert alone.vote_alone("what nobody knows", signature) is None
    return alone


def after_voting_alone(alone: Agreement, agreement: Agreement, ballots: np.ndarray, news: Sequence[Any]) -> None:
    """Whoever has voted alone comes to the same as ``agreement``, which has submitted and voted."""
    ((name, signature),) = agreement._submitted.items()
    flags, entries = ballot.unpack(ballots)
    run = alone.unanimous(ballots)
    assert run == agreement.unanimous(ballots)
    if run is None:
        alone.was_not_alone(name, signature)
        assert alone.decide(flags, entries, news) == agreement.decide(flags, entries, news)
    assert np.array_equal(alone._ballot, agreement._ballot)
    assert vars(alone) == {**vars(agreement), "_ballot": alone._ballot}


def test_a_name_runs_when_all_have_submitted_it_and_then_costs_a_bit() -> None:
    here, other = ranks = [Agreement(range(2)), Agreement(range(2))]
    for _ in range(3):
        here.submit("a", SMALL)
        here.submit("b", LARGE)
        other.submit("b", LARGE)
        assert play(ranks).run == [("b", LARGE)]
        assert here.missing("a") == [1]
        other.submit("a", SMALL)
        assert play(ranks).run == [("a", SMALL)]
    other.submit("b", LARGE)
    vote, news = other.vote()
    assert len(vote) == 2 and not news


def test_what_all_have_submitted_alike_takes_the_short_way() -> None:
    here, other = ranks = [Agreement(range(2)), Agreement(range(2))]
    for time in range(3):
        for rank in ranks:
            rank.submit("a", SMALL)
            rank.submit("b", LARGE)
        votes = [rank.vote() for rank in ranks]
        ballots = np.stack([vote for vote, _ in votes])
        quick = here.unanimous(ballots)
        if time == 0:  # they are not known yet
            assert quick is None
            flags, entries = ballot.unpack(ballots)
            for rank in ranks:
                rank.decide(flags, entries, [news for _, news in votes])
            continue
        assert quick == [("a", SMALL), ("b", LARGE)]
        assert other.unanimous(ballots) == quick
    here.submit("a", SMALL)
    assert here.unanimous(np.stack([here.vote()[0], other.vote()[0]])) is None


def test_different_submissions_under_a_name_fail_and_the_name_can_be_used_again() -> None:
    here, other = ranks = [Agreement(range(2)), Agreement(range(2))]
    for rank in ranks:
        rank.submit("a", SMALL)
    play(ranks)
    for first, second in [(SMALL, LARGE), (LARGE, SMALL)]:
        here.submit("a", first)
        other.submit("a", second)
        ((name, reason),) = play(ranks).failed
        assert name == "a" and f"rank 0 submitted {first.text()} but rank 1 {second.text()}" == reason
        assert not here.waiting and not other.waiting
    for rank in ranks:
        rank.submit("a", LARGE)
    assert play(ranks).run == [("a", LARGE)]


def test_a_quiet_round_is_one_in_which_nobody_says_anything_new() -> None:
    here, other = ranks = [Agreement(range(2)), Agreement(range(2))]
    here.submit("a", SMALL)
    other.submit("b", SMALL)
    assert not play(ranks).quiet
    assert play(ranks).quiet


def test_who_has_joined_is_not_waited_for_and_the_last_one_is_named() -> None:
    ranks = [Agreement([0, 2, 5]) for _ in range(3)]
    ranks[1].join()
    ranks[0].submit("a", SMALL)
    ranks[2].submit("a", SMALL)
    outcome = play(ranks)
    assert outcome.run == [("a", SMALL)] and outcome.joined == {1} and outcome.last_joined == -1
    ranks[2].join()
    ranks[0].submit("b", SMALL)
    assert play(ranks).run == [("b", SMALL)]
    ranks[0].join()
    outcome = play(ranks)
    assert outcome.last_joined == 0 and not outcome.run
    ranks[0].submit("a", SMALL)
    assert not play(ranks).run  # all are back: the others are waited for again


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_operation_is_settled_once_and_alike(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4))
    names = [str(number) for number in range(data.draw(st.integers(1, 6)))]
    rounds = data.draw(st.integers(1, 3))
    capacity = data.draw(st.integers(1, 4))
    ranks = [Agreement(range(size), capacity) for _ in range(size)]
    wanted: Dict[Tuple[str, int], List[Signature]] = {
        (name, time): [data.draw(st.sampled_from([SMALL, LARGE, LARGE])) for _ in range(size)]
        if data.draw(st.booleans())
        else [SMALL] * size
        for name in names
        for time in range(rounds)
    }
    left = [[data.draw(st.permutations(names)) for _ in range(rounds)] for _ in range(size)]
    plan = [[(name, time) for time, order in enumerate(own) for name in order] for own in left]
    submitted: List[Set[Tuple[str, int]]] = [set() for _ in range(size)]
    settled: Set[Tuple[str, int]] = set()
    pending: List[Set[str]] = [set() for _ in range(size)]
    idle = 0
    while any(plan) or any(pending):
        for rank, todo in enumerate(plan):
            for _ in range(data.draw(st.integers(0, 3)) if idle < 3 else 99):
                if todo and todo[0][0] not in pending[rank]:
                    name, time = todo.pop(0)
                    ranks[rank].submit(name, wanted[name, time][rank])
                    submitted[rank].add((name, time))
                    pending[rank].add(name)
        outcome = play(ranks)
        idle = 0 if outcome.run or outcome.failed else idle + 1
        assert idle < 6, "nothing moves"
        for name in [name for name, _ in outcome.run] + [name for name, _ in outcome.failed]:
            time = sum((name, t) in settled for t in range(rounds))
            assert all((name, time) in own for own in submitted)
            settled.add((name, time))
            alike = len(set(wanted[name, time])) == 1
            assert alike == ((name, wanted[name, time][0]) in outcome.run)
            for own in pending:
                own.remove(name)
    assert settled == set(wanted)
    assert not any(agreement.waiting for agreement in ranks)


@pytest.mark.parametrize("known", [0, 1, 8, 9, 300])
def test_a_ballot_is_what_was_put_in(known: int) -> None:
    every_third = [number for number in range(known) if number % 3 == 0]
    entries = sum(1 << number for number in every_third)
    packed = ballot.pack(ballot.JOINED, entries, known)
    assert packed.size == 1 + -(-known // 8)
    flags, unpacked = ballot.unpack(np.stack([packed, ballot.pack(0, 0, known)]))
    assert flags == [ballot.JOINED, 0] and unpacked == [entries, 0] and list(ballot.numbers(entries)) == every_third


def test_signatures_are_plain_data_and_can_be_read() -> None:
    signature = Signature("grouped_allgather", (("int8", (ANY, 3)), ("bool", ()), *[("int8", (1,))] * 3), "op=Max")
    assert Signature.parse(signature.plain()) == signature
    assert signature.text() == "grouped_allgather(int8 of shape anyx3, bool of shape (), 3 more, op=Max)"


@pytest.mark.parametrize(
    "news",
    [
        7,
        [7],
        ["ab"],
        [["a"]],
        [["a", 7]],
        [[7, ["allreduce", [], ""]]],
        [[["a"], ["allreduce", [], ""]]],
        [["a", ["allreduce", [["float32", [3]]]]]],
        [["a", [["allreduce"], [], ""]]],
        [["a", ["allreduce", [["float32", 3]], ""]]],
        [["a", ["allreduce", [["float32", ["3"]]], ""]]],
        [["a", ["allreduce", [[["float32"], [3]]], ""]]],
        [["a", ["allreduce", [], ["op"]]]],
    ],
    ids=repr,
)
def test_news_that_are_none_name_the_rank(news: Any) -> None:
    agreement = Agreement([4, 9])
    with pytest.raises(ddl.ProtocolError, match="rank 9 submitted .* which names no operations"):
        agreement.decide([ballot.NEWS, ballot.NEWS], [0, 0], [[], news])


def test_a_ballot_with_bits_beyond_the_table_is_refused() -> None:
    agreement = Agreement(range(2))
    with pytest.raises(ddl.ProtocolError, match="bits of operations beyond the 0 known ones"):
        agreement.decide([ballot.FRESH, ballot.FRESH], [0, 1])
