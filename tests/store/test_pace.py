"""Who comes late: the state machine on the pace of simulated jobs, whose ranks run a ring all-reduce over and over."""

from __future__ import annotations

import random
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import pytest

from ddl.errors import ProtocolError
from ddl.store.messages import Message, Outgoing
from ddl.store.pace import FLOOR, MORE_WINDOWS, OPERATIONS, SHARE, WINDOWS, Pace
from ddl.store.server import StoreServer
from ddl.store.watch import WatchClient

EACH = 50  # operations between two reports of a rank
MS = 1e-3
Late = Dict[int, Tuple[float, float]]


class Ring:
    """A job on virtual time. ``own[r]``: seconds that rank r spends on its own before each operation; ``delay[r]``:
    seconds that the link from r to the next rank takes for a message, one after the other."""

    def __init__(self, own: Sequence[float], delay: Sequence[float]) -> None:
        self.size = len(own)
        self.own, self.delay = list(own), list(delay)
        self.noise: Callable[[], float] = lambda: 0.0
        self.now = [0.0] * self.size
        self.under_way = [0.0] * self.size
        self.free = [0.0] * self.size  # when the link from this rank is
        self.operations = 0

    def operation(self) -> None:
        """Sends are buffered: an operation has ended for a rank when it has received its last message."""
        begun = [now + own + self.noise() for now, own in zip(self.now, self.own)]
        ready = list(begun)
        for _ in range(2 * (self.size - 1)):
            arrived = [0.0] * self.size
            for rank in range(self.size):
                self.free[rank] = max(self.free[rank], ready[rank]) + self.delay[rank]
                arrived[(rank + 1) % self.size] = self.free[rank]
            ready = [max(own, theirs) for own, theirs in zip(ready, arrived)]
        self.under_way = [sum(times) - start for *times, start in zip(self.under_way, ready, begun)]
        self.now = ready
        self.operations += 1

    def message(self, rank: int, comm: int = 0) -> Message:
        return pace(comm, self.operations, int(1e6 * self.under_way[rank]), int(1e6 * self.now[rank]))


def pace(comm: int, operations: int, under_way_us: int, now_us: int) -> Message:
    times = {"under_way_us": under_way_us, "now_us": now_us}
    return {"type": "pace", "comm": comm, "operations": operations, **times}


def ring(size: int, own: float = 5 * MS, delay: float = 0.1 * MS) -> Ring:
    return Ring([own] * size, [delay] * size)


def windows(job: Ring, number: int, judge: Pace) -> List[Late]:
    """Run the job for so many windows; return what all ranks were told was late after each."""
    told: List[Late] = []
    for _ in range(number):
        # Ranks report at different operations, as they do when their clocks tell them to.
        for part in range(job.size):
            for _ in range(EACH // job.size):
                job.operation()
            out = judge.received(part, job.message(part))
            if out:
                told.append(told_all(out, job.size))
    return told


def told_all(out: Outgoing, size: int) -> Late:
    """What the message says that all ranks have been sent."""
    assert [rank for rank, _ in out] == list(range(size))
    (message,) = {id(message): message for _, message in out}.values()
    assert message["type"] == "late" and message["comm"] == 0
    return {rank: (seconds, share) for rank, seconds, share in message["late"]}


def warm(job: Ring) -> Pace:
    """A judge that has seen two windows of the job, in which nobody was late."""
    judge = Pace(job.size)
    assert windows(job, 3, judge) == []  # the first reports only open the window
    return judge


SIZES = [2, 3, 4, 8]


@pytest.mark.parametrize("size", SIZES)
def test_nobody_is_late_in_a_healthy_job(size: int) -> None:
    assert windows(ring(size), 10, Pace(size)) == []
    assert windows(ring(size, own=0), 10, Pace(size)) == []  # all communication
    noisy, generator = ring(size), random.Random(1)
    noisy.noise = lambda: generator.uniform(0, 5 * MS)
    assert windows(noisy, 50, Pace(size)) == []


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_is_always_late_is_named(size: int) -> None:
    job = ring(size)
    judge = warm(job)
    job.own[1] += 4 * MS
    assert windows(job, WINDOWS - 1, judge) == []
    told = windows(job, 2, judge)
    assert [set(late) for late in told] == [{1}] * len(told) and told
    seconds, share = told[-1][1]
    per_operation = 9 * MS + 2 * (size - 1) * 0.1 * MS
    assert seconds == pytest.approx(4 * MS, rel=0.05) and share == pytest.approx(seconds / per_operation, rel=0.05)


@pytest.mark.parametrize("size", SIZES)
def test_a_slow_link_is_no_late_rank(size: int) -> None:
    """All ranks wait for it alike, whether they are before or behind it."""
    job = ring(size)
    judge = warm(job)
    job.delay[0] = 10 * MS
    assert windows(job, 10, judge) == []
    job.own[1] += 15 * MS * 2 * (size - 1)  # but a rank that is later than the link is slow is still found
    assert {rank for late in windows(job, 10, judge) for rank in late} == {1}


def test_a_slow_host_has_several_late_ranks_but_not_most() -> None:
    job = ring(4)
    judge = warm(job)
    job.own[2] += 4 * MS
    job.own[3] += 5 * MS
    last = windows(job, WINDOWS + 1, judge)[-1]
    assert set(last) == {2, 3} and last[2][0] < last[3][0]
    most = ring(4)
    most.own = [5 * MS, 9 * MS, 9 * MS, 9 * MS]  # here one is quick
    assert windows(most, 10, Pace(4)) == []


def test_one_that_is_not_late_any_more_is_cleared_and_then_nobody_is_told() -> None:
    job = ring(4)
    judge = warm(job)
    job.own[3] += 4 * MS
    assert set(windows(job, WINDOWS + 1, judge)[-1]) == {3}
    job.own[3] -= 4 * MS
    told = windows(job, WINDOWS + 2, judge)
    assert [set(late) for late in told] == [{3}] * (len(told) - 1) + [set()]
    assert all(seconds >= 0 and share >= 0 for late in told for seconds, share in late.values())
    assert windows(job, 5, judge) == []


def test_one_that_is_late_now_and_then_is_not_named() -> None:
    job = ring(4)
    judge = warm(job)
    for _ in range(5):
        job.own[3] += 4 * MS
        assert windows(job, WINDOWS - 2, judge) == []  # one more is touched by it
        job.own[3] -= 4 * MS
        assert windows(job, 2, judge) == []


@pytest.mark.parametrize("size", SIZES)
def test_a_slow_first_step_is_forgotten(size: int) -> None:
    """A program is compiled on one rank: a window is late, and no later one because of it."""
    job, judge = ring(size), Pace(size)
    job.own[1] += 5.0
    for rank in range(size):  # they report while it lasts
        job.operation()
        assert judge.received(rank, job.message(rank)) == []
    job.own[1] -= 5.0
    assert windows(job, 10, judge) == []


@pytest.mark.parametrize(("late", "needed"), [(2 * MS, MORE_WINDOWS), (10 * MS, WINDOWS)])
def test_who_is_less_late_is_named_later(late: float, needed: int) -> None:
    job = ring(4)
    judge = warm(job)
    job.own[3] += late
    assert windows(job, needed - 1, judge) == []
    assert {3} in [set(told) for told in windows(job, 2, judge)]


def test_one_at_the_limit_does_not_come_and_go() -> None:
    job = ring(4, own=10 * MS)
    judge = warm(job)
    job.own[3] += 4 * MS
    windows(job, MORE_WINDOWS + 1, judge)
    for late in (1, 2, 1, 1, 2):  # ms; the limit is between them
        job.own[3] = 10 * MS + late * MS
        assert [set(told) for told in windows(job, 2, judge)] == [{3}, {3}]


@pytest.mark.parametrize(("own", "late"), [(5 * MS, 5 * MS * SHARE * 0.9), (0.01 * MS, FLOOR * 0.9)])
def test_a_little_is_not_late(own: float, late: float) -> None:
    job = ring(4, own=own, delay=1e-6)
    judge = warm(job)
    job.own[3] += late
    assert windows(job, 10, judge) == []


def test_few_operations_are_no_window() -> None:
    job = ring(2)
    job.own[1] += 50 * MS
    judge = Pace(2)
    told = 0
    for _ in range((WINDOWS + 1) * OPERATIONS):
        job.operation()
        told += sum(bool(judge.received(rank, job.message(rank))) for rank in range(2))
    assert told == 1  # the first report, and then a window for every OPERATIONS


def test_without_one_rank_nobody_is_judged() -> None:
    job = ring(3)
    judge = Pace(3)
    job.own[1] += 4 * MS
    for _ in range(500):
        job.operation()
        assert [judge.received(rank, job.message(rank)) for rank in (0, 1)] == [[], []]


def test_a_new_communicator_begins_anew_and_an_old_one_is_not_heard() -> None:
    job = ring(2)
    judge = warm(job)
    job.own[1] += 4 * MS
    assert windows(job, WINDOWS + 1, judge)
    again = ring(2)
    for _ in range(10 * EACH):
        again.operation()
        for rank in range(2):
            assert judge.received(rank, again.message(rank, comm=1)) == []
            assert judge.received(rank, pace(0, 0, 0, 0)) == []


# --- malformed messages ---

GOOD = pace(0, 100, 100, 100)


@pytest.mark.parametrize("key", ["comm", "operations", "under_way_us", "now_us"])
@pytest.mark.parametrize("wrong", ["x", -1, 2**64, True, 1.0, None, [], {}])
def test_a_field_of_a_wrong_kind_is_refused(key: str, wrong: Any) -> None:
    with pytest.raises(ProtocolError, match=f"rank 1: '{key}' of a 'pace' message"):
        Pace(2).received(1, {**GOOD, key: wrong})


@pytest.mark.parametrize("key", ["operations", "under_way_us", "now_us"])
def test_what_goes_back_is_refused_and_changes_nothing(key: str) -> None:
    job = ring(2)
    judge = warm(job)
    job.own[1] += 4 * MS
    for _ in range(WINDOWS):
        windows(job, 1, judge)
        with pytest.raises(ProtocolError, match="rank 0 told its pace again, but nothing has ended"):
            judge.received(0, {**job.message(0), key: 1})
    assert set(windows(job, 1, judge)[-1]) == {1}


def test_over_the_store_all_hear_of_a_late_rank(server: StoreServer, watch: Callable[[int], WatchClient]) -> None:
    job = ring(4)
    job.own[2] += 4 * MS
    clients = [watch(rank) for rank in range(4)]
    message: Message = {}
    while not message:  # the test's timeout is on
        for _ in range(EACH):
            job.operation()
        for rank, client in enumerate(clients):
            client.send(job.message(rank))
        time.sleep(0.01)  # the store may read several of one rank's reports before it comes to the next rank's
        message = clients[0].receive() or {}
    for told in (message, *(heard(client) for client in clients[1:])):
        ((rank, seconds, share),) = told["late"]
        assert rank == 2 and seconds == pytest.approx(4 * MS, rel=0.05) and 0.3 < share < 0.5
    assert server.first_failure is None


def test_nonsense_about_the_pace_ends_its_sender(server: StoreServer, watch: Callable[[int], WatchClient]) -> None:
    clients = [watch(rank) for rank in range(4)]
    clients[1].send({"type": "pace", "comm": 0, "operations": "many"})
    message = heard(clients[0])
    assert message["type"] == "fail" and message["culprit"] == 1
    assert "it broke the store's protocol: rank 1: 'operations'" in message["reason"]


def heard(client: WatchClient) -> Message:
    """The next message, for as long as the test's timeout allows."""
    while True:
        message = client.receive()
        assert message is not None, "the store hung up"
        if message:
            return message
