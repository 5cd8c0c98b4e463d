"""Ranks whose calls do not fit together: different operations, and deadlocks."""

from __future__ import annotations

from typing import List, Tuple

import pytest
from blame.accused import only
from blame.fabricated import IN_DDL, LOADING, call, communicator, dump, job, message, open_call

from ddl.blame.judge import blame
from ddl.records.dump import JobEnd, RankDump
from ddl.records.layout import CommunicatorRecord


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"count": 5}, "allreduce(5 x float32, sum)"),
        ({"dtype": "float64"}, "allreduce(4096 x float64, sum)"),
        ({"op": "max"}, "allreduce(4096 x float32, max)"),
        ({"collective": "broadcast", "root": 3}, "broadcast(4096 x float32, root 3)"),
    ],
)
def test_called_something_else(changes, said) -> None:
    mismatch = {"failure": "CollectiveMismatch: [rank 0/4 host a] allreduce(): the calls do not match"}
    calls = [[call(6), call(7, "failed", **(changes if rank == 2 else {}))] for rank in range(4)]
    calls[1].append(call(8, "failed", count=1))  # what comes after the first difference does not matter
    dumps = job(calls, records=dict.fromkeys(range(4), mismatch), dumps=dict.fromkeys(range(4), {"exit": 1}))
    end = JobEnd(4, {"kind": "CollectiveMismatch", "culprit": -1, "reason": "rank 0 called …"})
    finding = only(blame(dumps, end), "called something else", 2)
    assert finding.sentence == (
        f"rank 2 (host a, pid 1002) called {said} as operation #7; most ranks called allreduce(4096 x float32, sum)"
    )
    assert finding.evidence[:2] == (
        "ranks 0, 1, 3 called allreduce(4096 x float32, sum) as #7",
        f"rank 2 called {said} as #7",
    )


def test_without_a_majority_nobody_is_the_odd_rank() -> None:
    finding = only(blame(job([[call(7, "failed")], [call(7, "failed", count=5)]])), "called something else", 0, 1)
    assert "there is no majority" in finding.sentence and len(finding.evidence) == 2


def test_a_rank_that_is_not_known_is_no_lack_of_a_majority() -> None:
    dumps = job([[call(7, "failed")], [call(7, "failed", count=5)], [call(7, "failed", count=5)]])
    finding = only(blame([dump for dump in dumps if dump.rank != 1]), "called something else", 0, 2)
    assert finding.sentence == "the ranks called different operations as #7; what rank 1 called is not known"


def two_communicators(*, user: int = -1) -> List[RankDump]:
    """Rank 0 is in communicator 1, rank 1 in communicator 2. ``user``: a rank that is in its own code."""
    waits = {0: 1, 1: 2}
    return [
        dump(
            rank,
            [
                communicator(
                    rank, (0, 1), [open_call(1, 30.0, 1 - rank)] if waits[rank] == number else [], number=number
                )
                for number in (1, 2)
            ],
            size=2,
            stacks=LOADING if rank == user else IN_DDL,
        )
        for rank in (0, 1)
    ]


def test_deadlock_over_two_communicators() -> None:
    finding = only(blame(two_communicators()), "deadlock", 0, 1)
    assert finding.sentence == "rank 0 waits for rank 1, rank 1 waits for rank 0: none of them can go on"
    assert finding.evidence == (
        "rank 0 waits for rank 1 in allreduce #1 (4096 x float32, sum) of communicator 1 of 2 ranks for 30 s",
        "rank 1 waits for rank 0 in allreduce #1 (4096 x float32, sum) of communicator 2 of 2 ranks for 30 s",
    )


ENDED = {"size": 2, "state": "has ended", "exit": 1}


def failed_in(rank: int, number: int, failure: str, **times: float) -> CommunicatorRecord:
    """Return what one of two ranks has recorded of communicator ``number``; it has called in its own, ``rank`` + 1."""
    own = number == rank + 1
    calls = [call(1, "failed", awaited=1 - rank, **times)] if own else []
    return communicator(rank, (0, 1), calls, number=number, failure=failure if own else "")


@pytest.mark.parametrize("numbers", [(1, 2), ()], ids=["both are recorded", "what was never used is not"])
def test_deadlock_of_which_a_rank_has_given_up_first(numbers: Tuple[int, ...]) -> None:
    """It ends because of that, and the other one loses it before its own deadline."""
    failures = {
        0: "PeerLost: [rank 0/2 host a] allreduce #1: lost rank 1 (host a): it has shut down",
        1: "CollectiveTimeout: [rank 1/2 host a] allreduce #1: Timed out waiting for rank 0 (host a): it is late",
    }
    waited = {"begun": 60.0, "ended": 63.0}
    dumps = [
        dump(
            rank,
            [failed_in(rank, number, failures[rank], **waited) for number in (1, 2) if number in (*numbers, rank + 1)],
            **ENDED,
        )
        for rank in (0, 1)
    ]
    finding = only(blame(dumps), "deadlock", 0, 1)
    assert finding.sentence == "rank 0 waits for rank 1, rank 1 waits for rank 0: none of them can go on"


def test_deadlock_that_the_store_has_told() -> None:
    """It is told after a second, which is no long wait; the program goes on to other things with the error."""
    places = [
        "rank 0 waits in allreduce #1 (2 x float32, sum) at a.py:3 in f",
        "rank 1 waits in barrier() at a.py:9 in f",
    ]
    told = (
        f"the ranks wait for one another, and none of them can go on: {'; '.join(places)}; all ranks must make the same"
    )
    failure = "CollectiveMismatch: [rank {}/2 host a] allreduce #1: " + told + " calls in the same order"
    dumps = [
        dump(rank, [failed_in(rank, rank + 1, failure.format(rank), begun=90.0, ended=91.0)], size=2, stacks=LOADING)
        for rank in (0, 1)
    ]
    finding = only(blame(dumps), "deadlock", 0, 1)
    assert finding.sentence == "the ranks wait for one another, and none of them can go on"
    assert finding.evidence == tuple(places)


def test_no_deadlock_if_a_rank_computes_while_its_operation_is_under_way() -> None:
    only(blame(two_communicators(user=1)), "stuck in user code", 1)


def test_deadlock_of_messages() -> None:
    calls = [[message(1, "recv", (rank + 1) % 3, 20.0 + rank)] for rank in range(3)]
    finding = only(blame(job(calls)), "deadlock", 0, 1, 2)
    assert finding.evidence[0] == "rank 0 waits for rank 1 in recv #1 (4096 x float32, from rank 1) for 20 s"
    calls = [[message(1, "send", 1 - rank, 20.0)] for rank in range(2)]
    only(blame(job(calls)), "deadlock", 0, 1)


def test_a_message_that_the_other_side_has_not_called() -> None:
    calls = [[message(1, "recv", 1, 20.0)], []]
    only(blame(job(calls, dumps={1: {"stacks": LOADING}})), "stuck in user code", 1)
    calls[1] = [message(1, "send", 0, 20.0)]  # both are at it: it may be large
    assert blame(job(calls)) == []
