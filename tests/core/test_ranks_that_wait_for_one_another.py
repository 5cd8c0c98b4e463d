"""Calls on different communicators that cannot meet: all ranks are told at once, with where each of them waits."""

from __future__ import annotations

import threading
from typing import List, Tuple

import numpy as np
import pytest
import ranks
from core.questions import asked_about

import ddl

pytestmark = pytest.mark.processes


def two_communicators() -> Tuple[ddl.Communicator, ddl.Communicator]:
    first, second = ddl.world().split(0), ddl.world().split(0)
    assert first is not None and second is not None
    return first, second


def crossed(threads: int, seconds: float) -> str:
    """Rank 0 begins with another communicator. ``threads``: have called DDL, and then wait for something else."""
    first, second = two_communicators()
    done = threading.Event()
    idle: List[threading.Thread] = []
    for _ in range(threads):
        idle.append(threading.Thread(target=lambda: (ddl.barrier(), done.wait())))
        idle[-1].start()
    ranks.meet()
    try:
        for communicator in (first, second) if ddl.rank() == 0 else (second, first):
            communicator.set_timeout(seconds)
            communicator.allreduce(np.ones(3, np.float32))
    except ddl.CommunicatorError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        done.set()
        for thread in idle:
            thread.join()
    return "it worked"


def test_two_communicators_in_different_orders() -> None:
    """Nobody waits for the deadline, which is later than the end of this test."""
    answers = ranks.run(3, crossed, 0, 1e6)
    texts = {answer.partition(": the ranks")[2] for answer in answers}
    assert len(texts) == 1 and all(answer.startswith("CollectiveMismatch: [rank ") for answer in answers), answers
    (text,) = texts
    assert " wait for one another, and none of them can go on: rank 0 waits in allreduce #1 (3 x" in text, text
    assert "; ranks 1, 2 wait in allreduce #1 (3 x float32, average) of communicator " in text, text
    assert text.count(f"{__file__.rpartition('/')[2]}:") == 2 and text.count(" in crossed") == 2, text


def test_a_thread_that_may_still_make_the_call_counts() -> None:
    """Nobody knows what it will do, before the deadline."""
    for answer in ranks.run(2, crossed, 1, 4.0):
        assert answer.startswith(("CollectiveTimeout", "PeerLost")), answer


def helped() -> str:
    """Rank 0 waits for rank 1, whom a thread of rank 0 helps on by the first call that it ever makes."""
    first, second = two_communicators()
    if ddl.rank() == 1:
        second.barrier()
        first.barrier()
        return "done"

    def help_on() -> None:
        asked_about(second)
        second.barrier()

    helper = threading.Thread(target=help_on)
    helper.start()
    first.barrier()
    helper.join()
    return "done"


def test_a_thread_that_has_never_called_counts_too() -> None:
    assert ranks.run(2, helped) == ["done"] * 2


def roots() -> str:
    """Rank 1 waits for the root of a broadcast, and rank 2, which comes to that later, for rank 1."""
    first, second = two_communicators()
    data = np.full(3, float(ddl.rank()), np.float32)
    if ddl.rank() == 2:
        second.allreduce(data)
    elif ddl.rank() == 0:
        asked_about(first, second)
    first.broadcast_(data, root=0)
    if ddl.rank() != 2:
        second.allreduce(data)
    return str(data[0])


def test_a_rank_that_waits_for_a_root_is_only_late() -> None:
    assert ranks.run(3, roots) == ["0.0", "0.0", "0.0"]
