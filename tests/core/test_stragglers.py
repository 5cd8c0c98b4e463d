"""A rank that comes late to each operation is named on all ranks, people are told once, and later it is cleared."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected
from said import Said

import ddl
from ddl.bootstrap import stragglers
from ddl.store import pace
from ddl.store.messages import Message, Outgoing
from ddl.store.pace import WINDOWS, Pace

pytestmark = pytest.mark.processes

SIZE, LATE, BY = 4, 2, 0.05
FLOOR = 0.4 * BY  #: a rank that a busy machine makes late by less than this, in the mean, is not named
OPERATIONS = 8  #: of a window


@pytest.fixture
def judge_of_few_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's store, which is in this process, looks at short windows, and for lateness as this test makes it."""
    monkeypatch.setattr(pace, "OPERATIONS", OPERATIONS)
    monkeypatch.setattr(pace, "FLOOR", FLOOR)


def join() -> List[Tuple[str, str]]:
    """Join the job with short windows; return where DDL's messages will be."""
    stragglers.INTERVAL = 0.2
    handler = Said()
    ddl.init()
    return handler.said


def steps_until(seen: Any, late: float) -> None:
    """Run steps until ``seen()`` on all ranks; rank LATE comes ``late`` seconds late to each. For 100 s at most."""
    end = time.monotonic() + 100
    x, waiting = np.ones(1000), np.ones(1)
    while waiting[0]:
        for _ in range(10):
            if late and ddl.rank() == LATE:  # to sleep for 0 s takes some 50 us
                time.sleep(late)
            ddl.allreduce_(x)
        assert time.monotonic() < end, ddl.metrics()
        waiting[0] = not seen()
        ddl.allreduce_(waiting, op=ddl.Max)


def late_and_then_not() -> Dict[str, Any]:
    said = join()
    steps_until(lambda: LATE in ddl.metrics().late, BY)
    while_late = ddl.metrics()
    child = ddl.split(ddl.rank() % 2)
    assert child is not None
    of_child = set(child.metrics().late)
    steps_until(lambda: not ddl.metrics().late, 0.0)
    return {"late": dict(while_late.late), "waited": while_late.waited_seconds, "child": of_child, "said": said}


@pytest.mark.few(1)
@pytest.mark.alone
@pytest.mark.usefixtures("judge_of_few_operations")
@pytest.mark.parametrize("transport", ["shared", "tcp", "hybrid"])
def test_a_late_rank_is_named_everywhere_and_cleared_when_it_is_over(transport: str) -> None:
    answers = ranks.run(SIZE, late_and_then_not, initialise=False, **connected(transport, DDL_LOG="info"))
    for rank, answer in enumerate(answers):
        assert set(answer["late"]) == {LATE}
        assert BY / 2 < answer["late"][LATE] < 20 * BY  # seconds; a busy machine adds to them
        assert answer["child"] == ({LATE // 2} if rank % 2 == LATE % 2 else set())  # its number among the even ranks
        level = "WARNING" if rank == 0 else "INFO"
        about = [(how, text) for how, text in answer["said"] if "late" in text]
        assert [how for how, _ in about] == [level] * 2, answer["said"]
        assert all(text.startswith(f"rank {rank}: rank {LATE} (host ") for _, text in about), about
        assert " ms late to each operation" in about[0][1] and "does not come late any more" in about[1][1], about
    waited = [answer["waited"] for answer in answers]
    others = max(waited[:LATE] + waited[LATE + 1 :])  # the one that a busy machine has not held up itself
    assert waited[LATE] < others and others > OPERATIONS * WINDOWS * BY / 2  # so many before anybody is named


def late_to_named_ones() -> Dict[int, float]:
    """Operations with names go over a communicator of their own."""
    join()
    end, x, waiting = time.monotonic() + 100, np.ones(1000), np.ones(1)
    while waiting[0]:
        for number in range(10):
            if ddl.rank() == LATE:
                time.sleep(BY)
            ddl.world().allreduce_async_(x, name=f"bucket.{number}").wait()
        assert time.monotonic() < end, ddl.metrics()
        waiting[0] = LATE not in ddl.metrics().late
        ddl.allreduce_(waiting, op=ddl.Max)
    return dict(ddl.metrics().late)


@pytest.mark.alone
@pytest.mark.usefixtures("judge_of_few_operations")
def test_a_rank_that_is_late_to_operations_with_names() -> None:
    for late in ranks.run(SIZE, late_to_named_ones, initialise=False):
        assert set(late) == {LATE} and late[LATE] > 0.1 * BY  # of all operations: each has some of its own for its name


def busy_for(seconds: float) -> List[Any]:
    said = join()
    end = time.monotonic() + seconds
    steps_until(lambda: time.monotonic() > end, 0.0)
    return [dict(ddl.metrics().late), said]


@pytest.mark.slow
@pytest.mark.alone
def test_nobody_is_named_in_a_healthy_job(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: List[int] = []
    received = Pace.received

    def count(judge: Pace, rank: int, message: Message) -> Outgoing:
        heard.append(rank)
        return received(judge, rank, message)

    monkeypatch.setattr(Pace, "received", count)
    assert ranks.run(SIZE, busy_for, 3.0, initialise=False) == [[{}, []]] * SIZE
    assert min(heard.count(rank) for rank in range(SIZE)) > WINDOWS, heard  # they were looked at


def counted() -> List[Any]:
    before = ddl.metrics()
    x = np.ones(300_000, np.float32)
    for call in range(5):
        if call == ddl.rank():
            time.sleep(0.2)  # so that the other rank has to wait
        ddl.allreduce_(x)
    ddl.allreduce_async(x).wait()
    ddl.send(x, 1) if ddl.rank() == 0 else ddl.recv(x, 0)
    after = ddl.metrics()
    with pytest.raises(AttributeError):
        after.operations = 0  # type: ignore[misc]
    assert (after.sent_messages, after.sent_bytes) == ddl.world().traffic()
    return [after.operations - before.operations, after.sent_bytes - before.sent_bytes, after.waited_seconds > 0]


def test_metrics_count_collectives_and_what_was_sent() -> None:
    """Ring or not, an all-reduce between two ranks sends the whole buffer once; send and recv are no collectives."""
    assert ranks.run(2, counted, **connected("tcp")) == [[6, 6 * 1_200_000 + 1_200_000, True], [6, 6 * 1_200_000, True]]


def test_a_job_of_one_has_metrics() -> None:
    ddl.init()
    try:
        ddl.barrier()
        assert ddl.metrics().operations >= 1 and ddl.metrics().late == {} and ddl.metrics().sent_bytes == 0
    finally:
        ddl.shutdown()
