"""The verdict's state machine without sockets: whom it blames where operations do not get on, by example."""

from __future__ import annotations

import pytest
from store.verdicts import DIED, LEFT, fail, job, lost, probe, stall, stalled, state, told

from ddl.store.verdict import ALL, DOUBT_GRACE, PROBE_GRACE, REPEAT, TELL_AFTER


def test_a_stall_is_asked_about_once_and_told_to_one_of_those_who_wait() -> None:
    verdict = job()
    assert verdict.received(0, stalled(), 1.0) == told([1, 2, 3], probe())
    assert verdict.received(1, stalled(), 1.1) == []  # the same round; who complains need not answer
    assert verdict.next_deadline() == 1.0 + PROBE_GRACE
    assert verdict.received(2, state(), 1.1) == []
    text = "rank 3 has not called it; it is at train.py:12 in main"
    behind = state(submitted=5, op="", doing="is at train.py:12 in main")
    assert verdict.received(3, behind, 1.15) == told([0], stall(text, others=2))
    assert verdict.next_deadline() is None and verdict.first_failure is None
    assert verdict.received(0, stalled(), 5.0) == told([1, 2, 3], probe(number=2))  # a new round


def test_a_stall_is_told_again_when_some_time_has_passed() -> None:
    """Each rank that waits asks by itself: many questions, and one answer that somebody reads."""
    verdict, heard = job(3), []
    for number, now in enumerate((1.0, 1.5, 1.0 + REPEAT, 1.5 + REPEAT), 1):
        verdict.received(0, stalled(), now)
        verdict.received(1, stalled(), now)
        heard.append(verdict.received(2, {**state(submitted=6, op=""), "probe": number}, now))
    assert heard == [told([0], stall("rank 2 has not called it", others=1)), [], heard[0], []]
    verdict.received(0, stalled(seq=8), 1.6 + REPEAT)  # another operation
    verdict.received(1, stalled(seq=8), 1.6 + REPEAT)
    answer = {**state(submitted=6, op=""), "probe": 5}
    assert verdict.received(2, answer, 1.6 + REPEAT) == told([0], stall("rank 2 has not called it", others=1, seq=8))


def test_a_short_stall_is_asked_about_and_not_told_of() -> None:
    verdict = job(2)
    behind = state(submitted=5, op="")
    assert verdict.received(0, stalled(seconds=TELL_AFTER - 1.0), 1.0) == told([1], probe())
    assert verdict.received(1, behind, 1.1) == []
    verdict.received(0, stalled(seconds=TELL_AFTER), 2.0)
    (message,) = verdict.received(1, {**behind, "probe": 2}, 2.1)
    assert message[1]["type"] == "stall"


def test_what_was_said_before_a_deadline_does_not_count_when_it_has_come() -> None:
    """Rank 1 had not called it when it was asked, and has when the deadline comes; rank 2 is silent all the time."""
    verdict = job(4)
    assert verdict.received(0, stalled(), 1.0) == told([1, 2, 3], probe())
    assert verdict.received(1, state(submitted=5, op=""), 1.01) == []
    assert verdict.received(3, stalled(), 1.02) == []
    assert verdict.received(0, stalled(final=True), 1.1) == told([1, 2], probe(number=2))  # rank 3 waits, too
    assert verdict.received(1, state(submitted=5, op=""), 1.11) == []  # of the first question: it had been on its way
    assert verdict.received(1, {**state(), "probe": 2}, 1.12) == []
    text = "rank 2 does not answer (stopped, or its host is unreachable or very slow)"
    assert verdict.tick(1.1 + PROBE_GRACE) == []
    judged = 1.1 + PROBE_GRACE + DOUBT_GRACE
    assert verdict.tick(judged) == told([0, 1, 2, 3], fail(0, "CollectiveTimeout", 2, text))


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


def test_ranks_that_the_store_holds_are_not_to_blame() -> None:
    """They begin no step before the store has said where all stop: whoever has not called it besides is late."""
    verdict = job()
    verdict.received(0, stalled(final=True), 1.0)
    verdict.received(1, {**state(submitted=1, op=""), "held": True}, 1.0)
    verdict.received(2, state(submitted=1, op=""), 1.0)
    text = "rank 2 has not called it"
    answer = {**state(submitted=1, op=""), "held": True}
    assert verdict.received(3, answer, 1.0) == told(range(4), fail(0, "CollectiveTimeout", 2, text))


def test_a_change_that_holds_all_is_nobodys_fault() -> None:
    verdict = job(2)
    verdict.received(0, stalled(final=True), 1.0)
    text = "rank 1 has not called it before the change of ranks that is under way"
    answer = {**state(submitted=1, op=""), "held": True}
    assert verdict.received(1, answer, 1.0) == told([0, 1], fail(0, "CollectiveTimeout", -1, text))
    assert verdict.blamed == []


@pytest.mark.parametrize("final", [False, True])
def test_ranks_that_have_not_called_it(final: bool) -> None:
    verdict = job()
    verdict.received(0, stalled(final=final), 1.0)
    verdict.received(1, state(submitted=0, op=""), 1.0)
    verdict.received(2, state(), 1.0)
    text = "rank 1 has not called it (rank 3 has not called it either)"
    expected = told([0, 1, 2, 3], fail(0, "CollectiveTimeout", 1, text)) if final else told([0], stall(text, 1))
    assert verdict.received(3, state(submitted=6, op=""), 1.0) == expected


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("asker", [0, 1])
def test_a_rank_that_cannot_make_connections(asker: int, final: bool) -> None:
    verdict = job(2)
    lack = {"shortage": "too many open files"}
    verdict.received(asker, stalled(final=final, **(lack if asker == 1 else {})), 1.0)
    text = "rank 1 cannot make the connections for it: too many open files"
    expected = told([0, 1], fail(0, "CollectiveTimeout", 1, text)) if final else told([asker], stall(text, 1))
    assert verdict.received(1 - asker, state(**(lack if asker == 0 else {})), 1.0) == expected


@pytest.mark.parametrize("final", [False, True])
def test_nobody_to_blame(final: bool) -> None:
    verdict = job(3)
    verdict.received(0, stalled(final=final), 1.0)
    verdict.received(1, state(), 1.0)
    text = "every rank answers and has called it, but rank 0 has not finished it"
    expected = told([0, 1, 2], fail(0, "CollectiveTimeout", -1, text)) if final else []  # data takes its time
    assert verdict.received(2, state(submitted=400, op=""), 1.0) == expected  # too old to be known


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
    assert verdict.received(1, state(submitted=6, op=""), 1.0) == told([0], stall("rank 1 has not called it"))
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
    text = "every rank answers and has called it, but rank 0 has not finished it"
    answer = verdict.received(2, state(), 1.0)
    assert answer == told([0, 1, 2], fail(0, "CollectiveTimeout", -1, text))


def test_who_is_no_member_says_so_and_is_not_blamed() -> None:
    verdict = job(3)
    verdict.received(0, stalled(final=True), 1.0)
    verdict.received(1, state(submitted=-1, op="not mine"), 1.0)
    text = "every rank answers and has called it, but rank 0 has not finished it"
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
    left = {"type": "departed", "comm": 0, "peer": 1}
    assert verdict.received(1, {"type": "bye"}, 1.1) == told([0], left)
    assert verdict.received(0, stalled(seq=0, op="recv", peer=1), 1.2) == told([0], left)
    assert verdict.received(0, lost(1), 1.3) == told([0], fail(0, "PeerLost", 1, LEFT))


def test_who_waits_for_any_rank_hears_which_have_left() -> None:
    verdict = job(4)
    anybody = stalled(seq=0, op="recv", peer=-1)
    assert verdict.received(0, anybody, 1.0) == []
    for peer in (1, 3):
        assert verdict.received(peer, {"type": "bye"}, 1.1) == []
    left = [{"type": "departed", "comm": 0, "peer": peer} for peer in (1, 3)]
    assert verdict.received(0, anybody, 1.2) == [(0, message) for message in left]
    few = {**anybody, "members": [0, 2, 3]}
    assert verdict.received(0, few, 1.3) == [(0, left[1])]
    assert verdict.tick(100.0) == []  # nobody is asked, and nobody to blame
    assert verdict.received(0, lost(1), 101.0) == told([0, 2], fail(0, "PeerLost", 1, LEFT))


def test_a_message_that_waits_for_a_gpu_is_asked_about() -> None:
    verdict = job(2)
    assert verdict.received(0, stalled(seq=0, op="send", peer=-1, awaits_gpu=True), 1.0) == told([1], probe(seq=0))


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
    [first, *_] = verdict.received(2, state(2, submitted=6, op=""), 1.0)
    assert first[1]["type"] == "fail"


def test_a_job_of_one_blames_nobody() -> None:
    text = "every rank answers and has called it, but rank 0 has not finished it"
    assert job(1).received(0, stalled(), 1.0) == []
    assert job(1).received(0, stalled(final=True), 1.0) == told([0], fail(0, "CollectiveTimeout", -1, text))
