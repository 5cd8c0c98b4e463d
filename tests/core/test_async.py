"""Works: waiting in any order, from any thread, with a limit, twice or not at all."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected
from core.values import check_equal, contribution, expected, placed

import ddl

pytestmark = pytest.mark.processes

#: Elements of float32: small lane, one piece, several pieces.
SIZES = [1, 700, 2048, 2049, 5000, 300_001, 1_200_007]


def out_of_order(seed: int) -> int:
    """Small and large operations in flight, posted in one order, waited for in another (another on each rank)."""
    rank, size = ddl.rank(), ddl.size()
    posted: List[Tuple[ddl.Work, int, int, np.ndarray]] = []
    for number in range(42):
        count = SIZES[number % len(SIZES)] if number % 3 else 64
        x = placed(contribution("float32", ddl.Sum, rank, size, count, number), number % 2 == 0)
        in_place = number % 4 == 1
        verb = ddl.allreduce_async_ if in_place else ddl.allreduce_async
        posted.append((verb(x, op=ddl.Sum, name=f"tensor.{number}"), number, count, x))
        if number % 10 == 9:  # a blocking small one overtakes what is large
            assert float(ddl.allreduce(1.0, op=ddl.Sum)) == size
    random.Random(seed + rank).shuffle(posted)
    for work, number, count, x in posted:
        result = work.wait()
        check_equal(result, expected("float32", ddl.Sum, size, count, number), f"operation {number}")
        assert work.done()
        assert work.wait() is result, "the second wait returns the same"
        assert (result is x) == (number % 4 == 1)
    return len(posted)


@pytest.mark.few(5)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_waited_out_of_order(size: int, transport: str) -> None:
    assert ranks.run(size, out_of_order, 7, **connected(transport)) == [42] * size


def every_verb_async() -> int:
    rank, size = ddl.rank(), ddl.size()
    x = np.arange(size * 6, dtype=np.float64).reshape(size * 2, 3) + rank
    values = np.arange(size * 6, dtype=np.float64).reshape(size * 2, 3)
    mean = values + (size - 1) / 2
    y, z = x.copy(), x.copy()
    works: Dict[str, Tuple[ddl.Work, Any]] = {
        "allreduce": (ddl.allreduce_async(x), mean),
        "allreduce_": (ddl.allreduce_async_(y), mean),
        "broadcast": (ddl.broadcast_async(x, root=1), values + 1),
        "broadcast_": (ddl.broadcast_async_(z, root=1), values + 1),
        "reducescatter": (ddl.reducescatter_async(x), mean[rank * 2 : rank * 2 + 2]),
        "allgather": (ddl.allgather_async(x), np.concatenate([values + r for r in range(size)])),
        "alltoall": (ddl.alltoall_async(x), np.concatenate([values[rank * 2 : rank * 2 + 2] + r for r in range(size)])),
        "reduce": (ddl.reduce_async(x, root=1), mean if rank == 1 else None),
        "gather": (ddl.gather_async(x), np.concatenate([values + r for r in range(size)]) if rank == 0 else None),
        "scatter": (ddl.scatter_async(x if rank == 0 else None), values[rank * 2 : rank * 2 + 2]),
        "barrier": (ddl.barrier_async(), None),
    }
    rows, received = ddl.alltoall_async(x, [2] * size).wait()
    assert list(received) == [2] * size and rows.shape == x.shape
    for verb, (work, want) in works.items():
        result = work.wait()
        if want is None:
            assert result is None, verb
        else:
            check_equal(result, want, verb)
    return len(works)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_verb_without_blocking(transport: str) -> None:
    assert ranks.run(3, every_verb_async, **connected(transport)) == [11] * 3


def limited_wait() -> Tuple[str, float, float]:
    """Rank 1 comes only when rank 0 was told at its limits that it is late; nothing is broken."""
    if ddl.rank() == 1:
        ranks.meet()
        return "", 0.0, float(ddl.allreduce_async(np.full(9, 3.0)).wait(100)[0])
    work = ddl.allreduce_async(np.full(9, 1.0), name="slow one")
    start = time.monotonic()
    with pytest.raises(ddl.WaitTimeout) as caught:
        work.wait(0.2)
    took = time.monotonic() - start
    assert not work.done()
    with pytest.raises(ddl.WaitTimeout):
        work.wait(0)
    ranks.meet()
    return str(caught.value), took, float(work.wait()[0])


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_wait_with_a_limit(transport: str) -> None:
    (text, took, value), (_, _, other) = ranks.run(2, limited_wait, **connected(transport))
    assert "0.2" in text and "wait again" in text
    assert took >= 0.2
    assert value == other == 2.0


def bad_limits() -> List[str]:
    work = ddl.allreduce_async(np.ones(3))
    answers = []
    for limit in (-1, float("nan")):
        try:
            work.wait(limit)
            answers.append("accepted")
        except ddl.InvalidArgument as error:
            answers.append(str(error))
    assert float(work.wait(float("inf"))[0]) == 1.0
    assert float(work.wait(1e300)[0]) == 1.0
    return answers


def test_limits_that_make_no_sense() -> None:
    for answers in ranks.run(2, bad_limits):
        assert all("timeout" in text for text in answers), answers


HUGE = [threading.TIMEOUT_MAX, 1e12, 1e300, float("inf")]


def huge_limits_while_pending() -> int:
    """Rank 1 comes when rank 0 has waited for a while: who did not wait would raise ``WaitTimeout`` before."""
    for limit in HUGE:
        if ddl.rank() == 1:
            ranks.meet()
            work = ddl.allreduce_async(np.ones(3))
        else:
            work = ddl.allreduce_async(np.ones(3))
            calling = threading.Timer(0.2, ranks.meet)
            calling.start()
        assert float(work.wait(limit)[0]) == 1.0
        if ddl.rank() == 0:
            calling.join()
    return len(HUGE)


def test_a_huge_limit_means_to_wait() -> None:
    assert ranks.run(2, huge_limits_while_pending) == [len(HUGE)] * 2


def dropped() -> Tuple[bool, bool, float]:
    """Nobody keeps the array or the work: it must live until the operation is done, and not for ever."""
    rank = ddl.rank()

    class Traced(np.ndarray):
        """An array that can be referenced weakly."""

    alive = []
    for number in range(8):
        x = np.full(400_000, float(rank + number)).view(Traced)
        alive.append(weakref.ref(x))
        if rank == 1 and number == 0:
            ranks.meet()  # until then, rank 0 has all of its operations under way
        ddl.allreduce_async_(x)
        del x
    gc.collect()
    held = all(ref() is not None for ref in alive)
    junk = [np.full(400_000, -1e9) for _ in range(8)]  # would take the place of memory given back too early
    if rank == 0:
        ranks.meet()
    ddl.barrier()
    last = float(ddl.allreduce(np.full(400_000, float(rank)))[0])
    del junk
    deadline, waiting = time.monotonic() + 60, np.ones(1)
    while waiting[0]:  # what is done is let go by the calls that follow
        gc.collect()
        waiting[0] = any(ref() is not None for ref in alive) and time.monotonic() < deadline
        ddl.allreduce_(waiting, op=ddl.Max)
    return held, any(ref() is not None for ref in alive), last


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_dropped_works_keep_their_arrays_until_done(transport: str) -> None:
    answers = ranks.run(2, dropped, **connected(transport))
    assert [last for _, _, last in answers] == [0.5] * 2
    assert not any(leaked for _, leaked, _ in answers), "an array outlives its finished operation"
    assert answers[0][0], "an array was let go while its operation was under way"


def threads_wait() -> List[float]:
    """Several threads wait for the same works, with and without limits."""
    rank = ddl.rank()
    works = [ddl.allreduce_async(np.full(200_000, float(rank + n))) for n in range(12)]
    results: List[List[float]] = [[] for _ in range(5)]

    def wait(thread: int) -> None:
        order = works if thread % 2 else list(reversed(works))
        for work in order:
            results[thread].append(float(work.wait(100 if thread % 3 else None)[0]))

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(sorted(result) == [n + 0.5 for n in range(12)] for result in results), results
    return results[1]


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_threads_wait_together(transport: str) -> None:
    assert ranks.run(2, threads_wait, **connected(transport)) == [[n + 0.5 for n in range(12)]] * 2


def interpreter_runs_meanwhile() -> int:
    """A blocked call leaves the interpreter to other threads: rank 1 comes when one has counted, and not before."""
    if ddl.rank() == 1:
        ranks.meet()
        ddl.barrier()
        return 0
    turns = [0]

    def count() -> None:
        for _ in range(100):
            turns[0] += 1
            time.sleep(0.001)
        ranks.meet()

    thread = threading.Thread(target=count)
    thread.start()
    ddl.barrier()
    thread.join()
    return turns[0]


def test_waiting_leaves_the_interpreter_alone() -> None:
    assert ranks.run(2, interpreter_runs_meanwhile) == [100, 0]
