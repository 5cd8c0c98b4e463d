"""Ranks that wait for one another in different communicators: found where it is so, and never where it is not."""

from __future__ import annotations

import random
from typing import Dict, FrozenSet, List, Optional, Tuple

import pytest
from store.verdicts import fail, job, probe, stalled, state, told

from ddl.store.deadlock import Deadlocks, Wait

GRADIENTS, NAMED = 0, 1  # communicators


def waits(comm: int, seq: int, needs: int = -1) -> Dict[str, object]:
    return {"waits": [[comm, seq, needs]], "doing": f"waits in #{seq} of communicator {comm}"}


REASON = (
    "the ranks wait for one another, and none of them can go on: rank 0 waits in #7 of communicator 0; rank 1 waits in "
    "#3 of communicator 1; all ranks must make the same calls in the same order"
)
BOTH = [fail(comm, "CollectiveMismatch", -1, REASON) for comm in (GRADIENTS, NAMED)]


@pytest.mark.parametrize("final", [False, True])
def test_two_ranks_that_wait_for_one_another_are_told_at_once(final: bool) -> None:
    verdict = job(2)
    verdict.received(0, stalled(seq=7, final=final, **waits(GRADIENTS, 7)), 1.0)
    verdict.received(1, {**stalled(seq=3, **waits(NAMED, 3)), "comm": NAMED}, 1.0)
    verdict.received(0, state(probe=2, submitted=2, op="", **waits(GRADIENTS, 7)), 1.0)
    out = verdict.received(1, state(probe=1, submitted=6, op="", **waits(NAMED, 3)), 1.0)
    assert out == [*told([0, 1], BOTH[0]), *told([0, 1], BOTH[1])]
    assert verdict.next_deadline() is None and verdict.blamed == []


def test_what_has_been_told_is_not_told_again() -> None:
    verdict = job(2)
    verdict.received(0, stalled(seq=7, **waits(GRADIENTS, 7)), 1.0)
    verdict.received(1, {**stalled(seq=3, **waits(NAMED, 3)), "comm": NAMED}, 1.0)
    verdict.received(0, state(probe=2, submitted=2, op="", **waits(GRADIENTS, 7)), 1.0)
    verdict.received(1, state(probe=1, submitted=6, op="", **waits(NAMED, 3)), 1.0)
    third = {**stalled(seq=1, final=True), "comm": 2, "members": [0, 1]}
    assert verdict.received(0, third, 9.0) == told([1], probe(comm=2, seq=1, number=3))
    answer = verdict.received(1, state(probe=3, submitted=0, op=""), 9.0)
    assert answer == told([0, 1], fail(2, "CollectiveTimeout", 1, "rank 1 has not called it"))


@pytest.mark.parametrize(
    "of_rank_1",
    [
        {},  # it computes, or one of its threads does
        waits(NAMED, 3, needs=2),  # a broadcast of rank 2
        waits(NAMED, 4),  # rank 0 has called that
    ],
    ids=["computes", "waits for another", "waits for what was called"],
)
def test_a_rank_that_may_go_on_is_only_late(of_rank_1: Dict[str, object]) -> None:
    verdict = job(3)
    verdict.received(0, stalled(seq=7, **waits(GRADIENTS, 7)), 1.0)
    verdict.received(1, {**stalled(seq=3), "comm": NAMED}, 1.0)
    verdict.received(2, state(probe=2, submitted=3), 1.0)
    verdict.received(0, state(probe=2, submitted=2, op="", **waits(GRADIENTS, 7)), 1.0)
    verdict.received(2, state(probe=1, submitted=7), 1.0)
    out = verdict.received(1, state(probe=1, submitted=6, op="", **of_rank_1), 1.0)
    assert [message["type"] for _, message in out] == ["stall"]


def test_a_rank_that_has_gone_on_since_is_not_stuck() -> None:
    deadlocks = Deadlocks()
    deadlocks.heard(0, frozenset({(0, 7, -1)}), "", (1, 3))
    deadlocks.heard(1, frozenset({(1, 2, -1)}), "", (0, 7))  # it waited before that
    deadlocks.heard(1, frozenset({(1, 3, -1)}), "")
    assert deadlocks.stuck() == []
    deadlocks.heard(1, frozenset({(1, 3, -1)}), "", (0, 7))
    assert deadlocks.stuck() == [0, 1]
    deadlocks.forget(1)
    assert deadlocks.stuck() == []


def test_what_an_awake_rank_has_not_called_is_not_kept() -> None:
    """It may call it at any moment; and a rank that computes is asked of ever new operations."""
    deadlocks = Deadlocks()
    for seq in range(1, 100):
        deadlocks.heard(1, frozenset(), "", (0, seq))
    assert not deadlocks._ranks
    deadlocks.heard(0, frozenset({(0, 7, -1)}), "", (1, 3))
    deadlocks.heard(1, frozenset({(1, 3, -1)}), "")
    assert deadlocks.stuck() == []


def test_who_waits_for_ranks_that_are_stuck_is_stuck_too() -> None:
    deadlocks = Deadlocks()
    deadlocks.heard(0, frozenset({(0, 7, -1)}), "", (1, 3))
    deadlocks.heard(1, frozenset({(1, 3, -1)}), "", (0, 7))
    deadlocks.heard(2, frozenset({(5, 1, 1)}), "")
    assert deadlocks.stuck() == [0, 1]  # rank 1 may have called it
    deadlocks.heard(1, frozenset({(1, 3, -1)}), "", (5, 1))
    assert deadlocks.stuck() == [0, 1, 2]


class _Ranks:
    """Programs that run: each rank makes calls on communicators, in its own order, and waits in each for its members.

    ``calls[r]``: the communicators that rank r calls, one after the other. All are of all ranks.
    """

    def __init__(self, calls: List[List[int]]) -> None:
        self.calls = calls
        self.begun = [0] * len(calls)  # calls that each rank has begun

    def number(self, rank: int, comm: int) -> int:
        return self.calls[rank][: self.begun[rank]].count(comm)

    def waits(self, rank: int) -> Optional[Tuple[int, int]]:
        """The operation that the rank waits in."""
        if self.begun[rank] == 0:
            return None
        comm = self.calls[rank][self.begun[rank] - 1]
        seq = self.number(rank, comm)
        return (comm, seq) if any(self.number(other, comm) < seq for other in range(len(self.calls))) else None

    def able(self) -> List[int]:
        """The ranks that can make their next call."""
        ranks = range(len(self.calls))
        return [rank for rank in ranks if self.waits(rank) is None and self.begun[rank] < len(self.calls[rank])]


def test_what_is_found_is_true_and_what_is_true_is_found() -> None:
    """Ranks speak at any moment, of any operation. While one can go on, nobody who can ever go on is called stuck."""
    assert sum(map(_is_found, range(300))) > 50  # of these, all ranks wait at the end


def _is_found(seed: int) -> bool:
    """Run programs, and return whether all ranks wait at the end, which then was found."""
    rng = random.Random(seed)
    size, comms = rng.randint(2, 4), rng.randint(1, 3)
    calls = [comm for _ in range(6) for comm in [rng.randrange(comms)]]
    order = [list(calls) for _ in range(size)]
    for calls_of_one in order:
        if rng.random() < 0.5:
            at = rng.randrange(len(calls) - 1)
            calls_of_one[at], calls_of_one[at + 1] = calls_of_one[at + 1], calls_of_one[at]
    ranks, deadlocks, accused = _Ranks(order), Deadlocks(), set()

    def says(rank: int, about: Optional[Tuple[int, int]]) -> None:
        over = ranks.waits(rank)
        waits: FrozenSet[Wait] = frozenset() if over is None else frozenset({(*over, -1)})
        uncalled = about if about is not None and ranks.number(rank, about[0]) < about[1] else None
        deadlocks.heard(rank, waits, "", uncalled)
        accused.update((stuck, ranks.begun[stuck]) for stuck in deadlocks.stuck())

    while ranks.able():
        ranks.begun[rng.choice(ranks.able())] += 1
        asked = ranks.waits(rng.randrange(size))
        says(rng.randrange(size), asked)
    for rank in range(size):
        for other in range(size):
            says(rank, ranks.waits(other))
    assert all(ranks.begun[rank] == count for rank, count in accused), f"seed {seed}"
    waiting = [rank for rank in range(size) if ranks.waits(rank) is not None]
    if len(waiting) < size:
        return False  # all have ended, or some wait for a rank that has ended its program, which is another failure
    assert deadlocks.stuck() == waiting, f"seed {seed}"
    return True
