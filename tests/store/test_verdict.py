"""The verdict's state machine without sockets: ranks that die, leave or lie, by example; then any history."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store.verdicts import DIED, LEFT, fail, job, lost, stalled, state, told

from ddl.errors import ProtocolError
from ddl.store.messages import Message
from ddl.store.verdict import ALL, LOST_GRACE, JobVerdicts
from ddl.text.rank_names import name_ranks

# --- ranks that die, leave, or are called lost ---


def test_a_rank_that_drops_without_goodbye_is_lost_for_every_communicator() -> None:
    verdict = job()
    died = fail(ALL, "PeerLost", 2, DIED)
    assert verdict.dropped(2, 1.0) == told([0, 1, 3], died)
    assert verdict.first_failure == died
    also = fail(ALL, "PeerLost", 3, DIED)
    assert verdict.dropped(3, 1.1) == told([0, 1], also)  # for communicators that had 3, but not 2
    assert verdict.first_failure == died
    assert verdict.dropped(2, 1.2) == []
    assert verdict.joined(2, 2.0) == [(2, died), (2, also)]  # late joiners get them at once, in their order
    assert verdict.blamed == [(2, DIED), (3, DIED)]


def test_a_communicator_without_the_lost_rank_goes_on_and_may_lose_another() -> None:
    verdict = job()
    verdict.dropped(3, 1.0)
    assert verdict.received(0, lost(1, comm=5) | {"members": [0, 1, 2]}, 1.0) == []
    assert verdict.tick(1.0 + LOST_GRACE) == told([0, 1, 2], fail(5, "PeerLost", 1, "connection reset"))
    assert verdict.received(0, lost(1, comm=6) | {"members": [0, 1, 3]}, 2.0) == []
    assert verdict.next_deadline() is None  # it had rank 3: its verdict was there


def test_ranks_are_called_by_their_number_of_now() -> None:
    verdict = job()
    verdict.dropped(0, 1.0)
    verdict.renumber([1, 2, 3, 7])
    verdict.joined(7, 1.0)
    members = [1, 2, 3, 7]
    verdict.received(1, stalled(final=True) | {"members": members}, 2.0)
    for rank in (2, 3):
        verdict.received(rank, state(), 2.0)
    (_, told_first), *_ = verdict.tick(5.0) or verdict.tick(9.0)
    assert (told_first["culprit"], told_first["reason"][:23]) == (7, "rank 3 does not answer ")


def test_the_server_may_know_better_why_a_rank_dropped() -> None:
    assert job(2).dropped(1, 0, "it spoke nonsense") == told([0], fail(ALL, "PeerLost", 1, "it spoke nonsense"))


def test_a_rank_that_says_goodbye_is_not_lost() -> None:
    verdict = job()
    assert verdict.received(1, {"type": "bye"}, 1.0) == []
    assert verdict.dropped(1, 1.0) == []
    assert verdict.first_failure is None and verdict.next_deadline() is None
    assert verdict.joined(1, 2.0) == []
    assert verdict.dropped(1, 3.0) == told([0, 2, 3], fail(ALL, "PeerLost", 1, DIED))  # its second life counts


def test_lost_waits_for_the_suspect_to_turn_out_dead() -> None:
    verdict = job()
    assert verdict.received(0, lost(2), 1.0) == []
    assert verdict.next_deadline() == 1.0 + LOST_GRACE
    assert verdict.tick(1.0 + LOST_GRACE / 2) == []
    assert verdict.dropped(2, 1.15) == told([0, 1, 3], fail(ALL, "PeerLost", 2, DIED))
    assert verdict.next_deadline() is None and verdict.tick(9.0) == []


def test_lost_names_another_rank_than_the_suspect_if_that_one_died() -> None:
    verdict = job()
    verdict.received(0, lost(1), 1.0)  # rank 1 gave up because of rank 2
    assert verdict.dropped(2, 1.1) == told([0, 1, 3], fail(ALL, "PeerLost", 2, DIED))
    assert verdict.tick(2.0) == []


def test_lost_and_then_goodbye() -> None:
    verdict = job()
    verdict.received(0, lost(2), 1.0)
    assert verdict.received(2, {"type": "bye"}, 1.1) == told([0, 1, 3], fail(0, "PeerLost", 2, LEFT))


def test_lost_after_goodbye() -> None:
    verdict = job()
    verdict.received(2, {"type": "bye"}, 1.0)
    assert verdict.received(0, lost(2, comm=3), 1.1) == told([0, 1, 3], fail(3, "PeerLost", 2, LEFT))


@pytest.mark.parametrize("how", ["lost", "suspected before", "stalled"])
def test_who_leaves_after_a_failure_elsewhere_is_lost_because_of_that(how: str) -> None:
    verdict = job(3)
    elsewhere = {**fail(5, "CollectiveTimeout", 1, "rank 1 has not called it"), "members": [1, 2]}
    assert verdict.received(1, elsewhere, 1.0) == told([0, 1, 2], fail(5, *list(elsewhere.values())[2:5]))
    reason = f"{LEFT} after the communicator of ranks 1, 2 had failed: CollectiveTimeout: rank 1 has not called it"
    expected = told([0, 1], fail(0, "PeerLost", 2, reason))
    if how == "suspected before":
        verdict.received(0, lost(2), 1.05)
        assert verdict.received(2, {"type": "bye"}, 1.1) == expected
        return
    verdict.received(2, {"type": "bye"}, 1.1)
    if how == "lost":
        assert verdict.received(0, lost(2), 1.2) == expected
    else:
        verdict.received(0, stalled(), 1.2)
        assert verdict.received(1, state(), 1.2) == expected


def test_who_leaves_is_not_lost_because_of_what_it_does_not_know() -> None:
    verdict = job(4)
    verdict.received(1, {**fail(5, "Aborted", -1, "abort() was called"), "members": [0, 1]}, 1.0)
    verdict.received(2, {"type": "bye"}, 1.1)  # no member
    assert verdict.received(3, lost(2), 1.2) == told([0, 1, 3], fail(0, "PeerLost", 2, LEFT))
    verdict = job(3)
    verdict.received(2, {"type": "bye"}, 1.0)
    verdict.received(1, {**lost(2, comm=5), "members": [1, 2]}, 1.1)  # failed because it left
    assert verdict.received(0, lost(2), 1.2) == told([0, 1], fail(0, "PeerLost", 2, LEFT))


def test_lost_though_alive_is_believed_after_a_while() -> None:
    verdict = job()
    verdict.received(0, lost(2, reason="no route to host"), 1.0)
    verdict.received(1, lost(2, reason="something later"), 1.1)  # does not prolong it, does not replace it
    unreachable = fail(0, "PeerLost", 2, "no route to host")
    assert verdict.tick(1.0 + LOST_GRACE) == told([0, 1, 2, 3], unreachable)
    assert verdict.tick(9.0) == [] and verdict.next_deadline() is None


def test_lost_after_the_verdict_changes_nothing() -> None:
    verdict = job()
    verdict.dropped(2, 1.0)
    assert verdict.received(0, lost(2), 1.1) == []
    assert verdict.received(0, stalled(), 1.1) == []
    assert verdict.next_deadline() is None


# --- failures that ranks report ---


def test_the_first_failure_of_a_communicator_is_kept() -> None:
    verdict = job(3)
    first = fail(1, "Aborted", 0, "abort() was called")
    assert verdict.received(0, dict(first), 0) == told([0, 1, 2], first)
    assert verdict.received(1, fail(1, "ProtocolError", 2, "junk"), 0) == []
    other = fail(2, "ProtocolError", 2, "junk")
    assert verdict.received(1, dict(other), 0) == told([0, 1, 2], other)
    everything = fail(ALL, "PeerLost", 2, DIED)
    assert verdict.dropped(2, 0) == told([0, 1], everything)
    assert verdict.received(1, fail(5, "Aborted", 1, ""), 0) == []  # what failed for all has failed for 5
    assert verdict.first_failure == first
    assert verdict.joined(2, 0) == [(2, first), (2, other), (2, everything)]


def test_a_failure_ends_only_its_own_communicators_questions() -> None:
    verdict = job()
    verdict.received(0, lost(2, comm=1), 0.0)
    verdict.received(0, lost(2, comm=2), 0.0)
    verdict.received(3, fail(1, "Aborted", 3, ""), 0.1)
    assert verdict.tick(1.0) == told([0, 1, 2, 3], fail(2, "PeerLost", 2, "connection reset"))


# --- malformed messages ---

GOOD = (stalled(peer=1, reason="", members=[0, 1]), lost(1), fail(0, "Aborted", 1, ""), state(), {"type": "bye"})


@pytest.mark.parametrize("message", [{}, {"type": "?"}, {"type": 1}, {"type": "suspect", "comm": 0, "kind": "sad"}])
def test_unknown_messages_are_refused(message: Message) -> None:
    with pytest.raises(ProtocolError, match="rank 1"):
        job().received(1, message, 0)


@pytest.mark.parametrize("good", GOOD, ids=lambda message: message.get("kind", message["type"]))
@pytest.mark.parametrize("wrong", ["x", -2, 2**64, True, 1.0, None, [], {}])
def test_any_field_of_a_wrong_kind_is_refused_or_harmless(good: Message, wrong: Any) -> None:
    for key in good:
        verdict = job(2)
        try:
            verdict.received(0, {**good, key: wrong}, 0.0)
        except ProtocolError as error:
            assert "rank 0" in str(error)
            assert verdict.first_failure is None and verdict.next_deadline() is None
        verdict.tick(1.0)


def test_texts_are_bounded() -> None:
    [(_, message)] = job(1).received(0, fail(0, "Aborted", 0, "x" * 1_000_000), 0)
    assert len(message["reason"]) <= 4096


def test_names_of_ranks() -> None:
    assert [name_ranks(ranks) for ranks in ([3], [2, 5], [0, 1], [1, 2, 3, 7, 8, 10])] == [
        "rank 3",
        "ranks 2, 5",
        "ranks 0, 1",
        "ranks 1-3, 7, 8, 10",
    ]


# --- any history ---

SIZE = 3
MESSAGES = st.one_of(
    st.just({"type": "bye"}),
    st.builds(lost, st.integers(0, SIZE - 1), st.integers(0, 1)),
    st.builds(
        lambda op, seq, final: stalled(op, seq, final=final), st.sampled_from("ab"), st.integers(0, 3), st.booleans()
    ),
    st.builds(lambda comm, culprit: fail(comm, "Aborted", culprit, ""), st.integers(-1, 1), st.integers(-1, SIZE - 1)),
    st.builds(state, st.integers(1, 4), st.integers(-1, 4), st.sampled_from(["a", "b", ""])),
)
EVENTS = st.tuples(
    st.sampled_from(["joined", "dropped", "received", "received", "received", "tick"]),
    st.integers(0, SIZE - 1),
    MESSAGES,
    st.floats(0, 0.3),
)


@given(st.lists(EVENTS, max_size=40))
def test_any_history_keeps_the_promises(history: List[Tuple[str, int, Message, float]]) -> None:
    verdict = JobVerdicts(SIZE)
    now = 0.0
    present = set()
    verdicts: Dict[Tuple[int, int], Message] = {}  # by communicator; those of all also by the rank that was lost
    heard: Dict[int, Dict[Tuple[int, int], Message]] = {}  # by rank, since it joined
    for what, rank, message, pause in history:
        now += pause
        if what == "tick":
            out = verdict.tick(now)
        elif what == "joined" and rank not in present:
            present.add(rank)
            heard[rank] = {}
            out = verdict.joined(rank, now)
        elif what == "dropped" and rank in present:
            present.discard(rank)
            out = verdict.dropped(rank, now)
            assert verdict.first_failure is not None
        elif what == "received" and rank in present:
            out = verdict.received(rank, message, now)
            if message["type"] == "bye":
                present.discard(rank)
        else:
            continue
        for receiver, sent in out:
            assert receiver in present  # nobody is told who cannot hear
            if sent["type"] == "fail":
                key = sent["comm"], sent["culprit"] if sent["comm"] == ALL else 0
                assert key not in heard[receiver]  # one verdict per communicator, told once
                heard[receiver][key] = sent
                assert verdicts.setdefault(key, sent) == sent  # the same for everybody
        for receiver in present:
            assert list(heard[receiver]) == list(verdicts)  # everybody knows everything, in the same order
    for later in (1.0, 3.0):  # those that have not come get more time once
        verdict.tick(now + later)
    assert verdict.next_deadline() is None  # nothing waits for ever
