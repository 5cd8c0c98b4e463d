"""The verdict's state machine without sockets: every rule by example, then its promises by random histories."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl.bootstrap.messages import Message, Outgoing
from ddl.bootstrap.verdict import ALL, DOUBT_GRACE, LOST_GRACE, PROBE_GRACE, Verdict, name_ranks
from ddl.errors import ProtocolError

DIED = "its process ended (connection closed without goodbye)"
LEFT = "it has shut down (its program ended)"


def job(size: int = 4) -> Verdict:
    verdict = Verdict(size)
    for rank in range(size):
        assert verdict.joined(rank, 0.0) == []
    return verdict


def fail(comm: int, kind: str, culprit: int, reason: str) -> Message:
    return {"type": "fail", "comm": comm, "kind": kind, "culprit": culprit, "reason": reason}


def told(ranks: List[int], message: Message) -> Outgoing:
    return [(rank, message) for rank in ranks]


def lost(peer: int, comm: int = 0, reason: str = "connection reset") -> Message:
    return {"type": "suspect", "comm": comm, "seq": 1, "kind": "lost", "peer": peer, "reason": reason, "op": "x"}


def stalled(op: str = "allreduce", seq: int = 7, *, final: bool = False, **more: Any) -> Message:
    return {"type": "suspect", "comm": 0, "seq": seq, "kind": "stalled", "op": op, "final": final, **more}


def state(probe: int = 1, submitted: int = 7, op: str = "allreduce", completed: int = 6, **more: Any) -> Message:
    return {"type": "state", "probe": probe, "submitted": submitted, "completed": completed, "op": op, **more}


def probe(comm: int = 0, seq: int = 7, number: int = 1) -> Message:
    return {"type": "probe", "probe": number, "comm": comm, "seq": seq}


def stall(text: str) -> Message:
    return {"type": "stall", "comm": 0, "seq": 7, "text": text}


# --- ranks that die, leave, or are called lost ---


def test_a_rank_that_drops_without_goodbye_is_lost_for_every_communicator() -> None:
    verdict = job()
    died = fail(ALL, "PeerLost", 2, DIED)
    assert verdict.dropped(2, 1.0) == told([0, 1, 3], died)
    assert verdict.first_failure == died
    assert verdict.dropped(3, 1.1) == []  # a consequence: the first verdict stands
    assert verdict.dropped(2, 1.2) == []
    assert verdict.joined(2, 2.0) == told([2], died)  # late joiners get it at once


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


# --- stalls ---


def test_a_stall_is_asked_about_once_and_answered_to_who_asked() -> None:
    verdict = job()
    assert verdict.received(0, stalled(), 1.0) == told([1, 2, 3], probe())
    assert verdict.received(1, stalled(), 1.1) == []  # the same round; who complains need not answer
    assert verdict.next_deadline() == 1.0 + PROBE_GRACE
    assert verdict.received(2, state(), 1.1) == []
    text = "rank 3 has not called it; its last operation is #5 (broadcast 8 B)"
    behind = state(submitted=5, op="", last="broadcast 8 B")
    assert verdict.received(3, behind, 1.15) == told([0, 1], stall(text))
    assert verdict.next_deadline() is None and verdict.first_failure is None
    assert verdict.received(0, stalled(), 5.0) == told([1, 2, 3], probe(number=2))  # a new round


def test_stalls_of_different_operations_are_different_rounds() -> None:
    verdict = job(2)
    assert verdict.received(0, stalled(seq=7), 1.0) == told([1], probe(seq=7, number=1))
    assert verdict.received(0, stalled(seq=8), 1.0) == told([1], probe(seq=8, number=2))


@pytest.mark.parametrize("final", [False, True])
def test_silent_ranks(final: bool) -> None:
    verdict = job()
    verdict.received(1, stalled(final=final), 1.0)
    verdict.received(0, state(submitted=2, op=""), 1.1)  # also behind, but it answers
    text = "ranks 2, 3 do not answer (stopped, or their hosts are unreachable or very slow)"
    expected = told([0, 1, 2, 3], fail(0, "CollectiveTimeout", 2, text)) if final else told([1], stall(text))
    judged = 1.0 + PROBE_GRACE
    if final:  # nobody knows yet whether they are only slow
        assert verdict.tick(judged) == []
        judged += DOUBT_GRACE
        assert verdict.next_deadline() == judged
    assert verdict.tick(judged) == expected
    assert verdict.received(3, state(), judged) == []  # too late


def test_a_slow_rank_is_not_blamed_for_a_stopped_one() -> None:
    """Rank 1 is stopped; rank 0 has so much to do that it answers late, and is the first of those that are silent."""
    verdict = job(3)
    verdict.received(2, stalled(final=True), 1.0)
    assert verdict.tick(1.0 + PROBE_GRACE) == []
    assert verdict.received(0, state(), 1.6) == []
    text = "rank 1 does not answer (stopped, or its host is unreachable or very slow)"
    assert verdict.tick(1.0 + PROBE_GRACE + DOUBT_GRACE) == told([0, 1, 2], fail(0, "CollectiveTimeout", 1, text))


def test_a_rank_that_has_long_been_silent_is_blamed_without_delay() -> None:
    verdict = job(2)
    verdict.received(0, stalled(), 1.0)
    assert [message["type"] for _, message in verdict.tick(1.0 + PROBE_GRACE)] == ["stall"]
    verdict.received(0, stalled(final=True), 2.0)
    text = "rank 1 does not answer (stopped, or its host is unreachable or very slow)"
    assert verdict.tick(2.0 + PROBE_GRACE) == told([0, 1], fail(0, "CollectiveTimeout", 1, text))


def test_of_silent_ranks_the_one_that_fell_silent_first_is_named() -> None:
    verdict = job(3)
    verdict.received(2, stalled(), 1.0)
    verdict.received(0, state(), 1.1)
    verdict.tick(1.0 + PROBE_GRACE)
    verdict.received(2, stalled(final=True), 2.0)
    assert verdict.tick(2.0 + PROBE_GRACE) == []
    text = "ranks 0, 1 do not answer (stopped, or their hosts are unreachable or very slow)"
    assert verdict.tick(2.0 + PROBE_GRACE + DOUBT_GRACE) == told([0, 1, 2], fail(0, "CollectiveTimeout", 1, text))


def test_a_rank_that_answers_too_late_is_silent_no_more() -> None:
    verdict = job(2)
    verdict.received(0, stalled(), 1.0)
    verdict.tick(1.0 + PROBE_GRACE)
    assert verdict.received(1, state(), 1.4) == []
    verdict.received(0, stalled(final=True), 2.0)
    assert verdict.tick(2.0 + PROBE_GRACE) == []


def test_one_silent_rank() -> None:
    verdict = job(2)
    verdict.received(0, stalled(final=True), 1.0)
    text = "rank 1 does not answer (stopped, or its host is unreachable or very slow)"
    assert verdict.tick(2.0) == []
    assert verdict.tick(2.0 + DOUBT_GRACE) == told([0, 1], fail(0, "CollectiveTimeout", 1, text))


@pytest.mark.parametrize("final", [False, True])
def test_ranks_that_have_not_called_it(final: bool) -> None:
    verdict = job()
    verdict.received(0, stalled(final=final), 1.0)
    verdict.received(1, state(submitted=0, op=""), 1.0)
    verdict.received(2, state(), 1.0)
    text = "rank 1 has not called it; it has not called any operation yet (rank 3 has not called it either)"
    expected = told([0, 1, 2, 3], fail(0, "CollectiveTimeout", 1, text)) if final else told([0], stall(text))
    assert verdict.received(3, state(submitted=6, op=""), 1.0) == expected


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("asker", [0, 1])
def test_a_rank_that_cannot_make_connections(asker: int, final: bool) -> None:
    verdict = job(2)
    lack = {"shortage": "too many open files"}
    verdict.received(asker, stalled(final=final, **(lack if asker == 1 else {})), 1.0)
    text = "rank 1 cannot make the connections for it: too many open files"
    expected = told([0, 1], fail(0, "CollectiveTimeout", 1, text)) if final else told([asker], stall(text))
    assert verdict.received(1 - asker, state(**(lack if asker == 0 else {})), 1.0) == expected


@pytest.mark.parametrize("final", [False, True])
def test_nobody_to_blame(final: bool) -> None:
    verdict = job(3)
    verdict.received(0, stalled(final=final), 1.0)
    verdict.received(1, state(completed=6), 1.0)
    text = "every rank answers and has called it, but ranks 0, 1 have not finished it"
    expected = told([0, 1, 2], fail(0, "CollectiveTimeout", -1, text)) if final else []  # data takes its time
    assert verdict.received(2, state(completed=7, submitted=400, op=""), 1.0) == expected  # too old to be known


@pytest.mark.parametrize("final", [False, True])
def test_a_mismatch_is_always_a_failure_and_shows_both_sides(final: bool) -> None:
    verdict = job(3)
    verdict.received(1, stalled("allreduce 4 B", final=final), 1.0)
    verdict.received(0, state(op="allreduce 4 B"), 1.0)
    text = "rank 0 called allreduce 4 B but rank 2 called broadcast 4 B as operation #7"
    mismatch = fail(0, "CollectiveMismatch", -1, text)
    assert verdict.received(2, state(op="broadcast 4 B"), 1.0) == told([0, 1, 2], mismatch)


def test_a_mismatch_between_two_that_both_complain() -> None:
    verdict = job(2)
    verdict.received(1, stalled("x"), 1.0)
    text = "rank 0 called y but rank 1 called x as operation #7"
    assert verdict.received(0, stalled("y"), 1.0) == told([0, 1], fail(0, "CollectiveMismatch", -1, text))


def test_of_calls_that_differ_the_usual_one_is_shown_first() -> None:
    verdict = job(4)
    verdict.received(1, stalled("rare"), 1.0)
    assert verdict.received(0, state(op="usual"), 1.0) == []
    assert verdict.received(2, state(op="usual"), 1.0) == []
    text = "rank 0 called usual but rank 1 called rare as operation #7"
    told_all = told([0, 1, 2, 3], fail(0, "CollectiveMismatch", -1, text))
    assert verdict.received(3, state(op="usual"), 1.0) == told_all


def test_a_mismatch_counts_more_than_silence() -> None:
    verdict = job(3)
    verdict.received(0, stalled("x", final=True), 1.0)
    verdict.received(1, state(op="y"), 1.0)
    assert verdict.tick(2.0) == []
    [first, *_] = verdict.tick(2.0 + DOUBT_GRACE)
    assert first[1]["kind"] == "CollectiveMismatch" and first[1]["culprit"] == -1


def test_a_rank_that_left_is_to_blame_for_a_stall() -> None:
    verdict = job(3)
    verdict.received(2, {"type": "bye"}, 0.5)
    assert verdict.received(0, stalled(), 1.0) == told([1], probe())
    assert verdict.received(1, state(), 1.0) == told([0, 1], fail(0, "PeerLost", 2, LEFT))


def test_a_rank_that_leaves_while_it_is_asked() -> None:
    verdict = job(2)
    verdict.received(0, stalled(), 1.0)
    assert verdict.received(1, {"type": "bye"}, 1.1) == told([0], fail(0, "PeerLost", 1, LEFT))


def test_a_rank_that_left_after_having_done_its_part_is_not_to_blame() -> None:
    verdict = job(3)
    verdict.received(2, {"type": "bye", "submitted": {"0": 7}}, 0.5)
    verdict.received(0, stalled(), 1.0)
    text = "rank 1 has not called it; its last operation is #6"
    assert verdict.received(1, state(submitted=6, op=""), 1.0) == told([0], stall(text))
    verdict.received(0, stalled(seq=8), 2.0)
    assert verdict.received(1, state(2), 2.0) == told([0, 1], fail(0, "PeerLost", 2, LEFT))


def test_a_rank_that_dies_while_it_is_asked() -> None:
    verdict = job(2)
    verdict.received(0, stalled(final=True), 1.0)
    assert verdict.dropped(1, 1.1) == told([0], fail(ALL, "PeerLost", 1, DIED))
    assert verdict.tick(9.0) == []


def test_only_members_are_asked_and_blamed() -> None:
    verdict = job(4)
    verdict.received(3, {"type": "bye"}, 0.5)
    assert verdict.received(0, stalled(members=[0, 2], final=True), 1.0) == told([2], probe())
    text = "every rank answers and has called it, but ranks 0, 2 have not finished it"
    answer = verdict.received(2, state(), 1.0)
    assert answer == told([0, 1, 2], fail(0, "CollectiveTimeout", -1, text))


def test_who_is_no_member_says_so_and_is_not_blamed() -> None:
    verdict = job(3)
    verdict.received(0, stalled(final=True), 1.0)
    verdict.received(1, state(submitted=-1, completed=-1, op="not mine"), 1.0)
    text = "every rank answers and has called it, but ranks 0, 2 have not finished it"
    assert verdict.received(2, state(), 1.0) == told([0, 1, 2], fail(0, "CollectiveTimeout", -1, text))


def test_send_and_recv_have_no_number_and_blame_the_other_side() -> None:
    verdict = job(3)
    waits = stalled(seq=0, op="recv", final=True, peer=2, reason="waiting for rank 2 to send")
    verdict.received(0, waits, 1.0)
    verdict.received(1, state(op=""), 1.0)
    expected = fail(0, "CollectiveTimeout", 2, "waiting for rank 2 to send")
    assert verdict.received(2, state(op=""), 1.0) == told([0, 1, 2], expected)


def test_what_a_rank_sent_before_it_left_may_still_be_on_its_way() -> None:
    verdict = job(2)
    verdict.received(0, stalled(seq=0, op="recv", peer=1), 1.0)
    left = {"type": "left", "comm": 0, "peer": 1}
    assert verdict.received(1, {"type": "bye"}, 1.1) == told([0], left)
    assert verdict.received(0, stalled(seq=0, op="recv", peer=1), 1.2) == told([0], left)
    assert verdict.received(0, lost(1), 1.3) == told([0], fail(0, "PeerLost", 1, LEFT))


def test_at_the_deadline_a_rank_that_left_is_to_blame_for_what_has_not_come() -> None:
    verdict = job(4)
    verdict.received(1, {"type": "bye"}, 0.5)
    verdict.received(2, {"type": "bye"}, 0.5)
    verdict.received(0, stalled(seq=0, op="recv", peer=1), 1.0)
    answer = verdict.received(3, stalled(seq=0, op="recv", peer=2, final=True), 1.0)
    assert answer == told([0, 3], fail(0, "PeerLost", 2, LEFT))


def test_the_deadline_of_one_makes_the_round_final_for_all() -> None:
    verdict = job(3)
    verdict.received(0, stalled(final=False), 1.0)
    verdict.received(1, stalled(final=True), 1.0)
    [first, *_] = verdict.received(2, state(submitted=6, op=""), 1.0)
    assert first[1]["type"] == "fail"


def test_a_job_of_one_blames_nobody() -> None:
    text = "every rank answers and has called it, but rank 0 has not finished it"
    assert job(1).received(0, stalled(), 1.0) == []
    assert job(1).received(0, stalled(final=True), 1.0) == told([0], fail(0, "CollectiveTimeout", -1, text))


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
    verdict = Verdict(SIZE)
    now = 0.0
    present = set()
    verdicts: Dict[int, Message] = {}
    heard: Dict[int, Dict[int, Message]] = {}  # by rank, since it joined
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
                assert sent["comm"] not in heard[receiver]  # one verdict per communicator, told once
                heard[receiver][sent["comm"]] = sent
                assert verdicts.setdefault(sent["comm"], sent) == sent  # the same for everybody
        for receiver in present:
            assert heard[receiver].keys() == verdicts.keys()  # everybody knows everything
    verdict.tick(now + 1.0)
    assert verdict.next_deadline() is None  # nothing waits for ever
