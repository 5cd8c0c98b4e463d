"""Ranks say that they do not hear each other, though the store hears both: who is given up, and in which words."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
from store.verdicts import fail, probe, stalled, state, told

from ddl.errors import ProtocolError
from ddl.store.verdict import PROBE_GRACE, JobVerdicts

WORDS = (
    "have not heard each other for 10 s, though both reach the job's store; see whether the network between their "
    "hosts is broken, or a firewall is in the way (ddl doctor)"
)


def job(hosts: str) -> JobVerdicts:
    """Return a job with a rank for each letter, which names its host."""
    verdict = JobVerdicts(len(hosts), lambda rank: hosts[rank])
    for rank in range(len(hosts)):
        verdict.joined(rank, 0.0)
    return verdict


def judge(verdict: JobVerdicts, size: int, unheard: Dict[int, List[int]]) -> Any:
    """Let rank 0 wait, and all answer; return what the store says then."""
    out = verdict.received(0, stalled(unheard=unheard.get(0, [])), 1.0)
    assert out == told(list(range(1, size)), probe())
    for rank in range(1, size):
        out = verdict.received(rank, state(unheard=unheard.get(rank, [])), 1.1)
    return out


@pytest.mark.parametrize("unheard", [{1: [2]}, {2: [1]}, {1: [2], 2: [1]}, {1: [1, 2, 99]}])
def test_of_two_the_one_that_came_later(unheard: Dict[int, List[int]]) -> None:
    verdict = job("abcd")
    expected = fail(0, "PeerLost", 2, f"it and rank 1 {WORDS}")
    assert judge(verdict, 4, unheard) == told([0, 1, 2, 3], expected)
    assert verdict.blamed == [(2, expected["reason"])]


@pytest.mark.parametrize("unheard", [{1: [0, 2, 3]}, {0: [1], 2: [1], 3: [1]}, {1: [0], 2: [1], 3: [1], 0: [1]}])
def test_a_host_that_nobody_hears(unheard: Dict[int, List[int]]) -> None:
    verdict = job("abcd")
    assert judge(verdict, 4, unheard) == told([0, 1, 2, 3], fail(0, "PeerLost", 1, f"it and ranks 0, 2, 3 {WORDS}"))


def test_all_ranks_of_the_host_are_given_up() -> None:
    """The others would find out about each in its turn. The first one is of a pair that do not hear each other."""
    verdict = job("aabbcc")
    assert judge(verdict, 6, {5: [2]}) == told(list(range(6)), fail(0, "PeerLost", 5, f"it and rank 2 {WORDS}"))
    assert verdict.blamed == [(5, f"it and rank 2 {WORDS}"), (4, f"rank 5 of its host and rank 2 {WORDS}")]


def test_the_smaller_host_is_given_up() -> None:
    verdict = job("abbb")
    assert judge(verdict, 4, {0: [3]}) == told(list(range(4)), fail(0, "PeerLost", 0, f"it and rank 3 {WORDS}"))


def test_the_host_that_hears_the_fewest_others_is_given_up_first() -> None:
    verdict = job("abbccd")
    assert judge(verdict, 6, {1: [0], 2: [3, 5]})[0][1]["culprit"] == 1
    assert [rank for rank, _ in verdict.blamed] == [1, 2]


def test_while_somebody_does_not_answer_nobody_is_given_up() -> None:
    """Its host may be gone for everybody; the store will know."""
    verdict = job("abc")
    verdict.received(0, stalled(unheard=[2]), 1.0)
    verdict.received(1, state(unheard=[2]), 1.1)
    assert [message["type"] for _, message in verdict.tick(1.0 + PROBE_GRACE)] == ["stall"]
    assert verdict.blamed == []


@pytest.mark.parametrize("unheard", ["2", [None], [2.0], {"2": 1}, [True]])
def test_what_makes_no_sense_is_refused(unheard: Any) -> None:
    verdict = job("abc")
    with pytest.raises(ProtocolError, match="rank 0: 'unheard' of a 'suspect' message is"):
        verdict.received(0, stalled(unheard=unheard), 1.0)
