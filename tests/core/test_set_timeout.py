"""``set_timeout``: of everything that is submitted from then on, also what was called or prepared before."""

from __future__ import annotations

import time
from typing import Any, Callable, List

import numpy as np
import pytest
import ranks
from core.jobs import connected

import ddl
from ddl.store.verdict import JobVerdicts

pytestmark = pytest.mark.processes


SHORT, LONG = 0.5, 100.0  #: seconds; the first call, which connects, has the long deadline


def three_calls(part: ddl.Communicator) -> List[Callable[[], Any]]:
    """A call with a target, one in place, and one that is prepared now."""
    array, rows = np.ones(3), np.empty((2, 3))
    return [lambda: part.allgather(array, out=rows), lambda: part.allreduce_(array), part.prepare_allreduce(array)]


def calls_again_with_more_time() -> List[str]:
    """What is prepared while the deadline is short, and called before, has the longer one: rank 1 comes late."""
    outcomes = []
    for number in range(3):
        part = ddl.split(0)
        assert part is not None and part.timeout == LONG
        three_calls(part)[number]()
        part.set_timeout(SHORT)
        call = three_calls(part)[number]
        part.set_timeout(LONG)
        assert part.timeout == LONG
        ranks.meet()
        if ddl.rank() == 1:
            time.sleep(1.5 * SHORT)
        call()
        outcomes.append("returned")
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_a_longer_deadline(transport: str) -> None:
    assert ranks.run(2, calls_again_with_more_time, **connected(transport)) == [["returned"] * 3] * 2


def calls_again_with_less_time() -> List[str]:
    """What was called and prepared with the long deadline has the shorter one: rank 1 never comes."""
    outcomes = []
    for number in range(3):
        part = ddl.split(0)
        assert part is not None and part.timeout == LONG
        call = three_calls(part)[number]
        call()
        part.set_timeout(SHORT)
        assert part.timeout == SHORT
        if ddl.rank() == 0:
            with pytest.raises(ddl.CommunicatorError) as caught:
                call()
            outcomes.append(type(caught.value).__name__)
        ranks.meet()
    return outcomes


@pytest.mark.slow
def test_a_shorter_deadline() -> None:
    first, _ = ranks.run(2, calls_again_with_less_time)
    assert first == ["CollectiveTimeout"] * 3


def never_called(seconds: float) -> float:
    """Rank 1 never comes; return when rank 0 called."""
    ddl.allreduce(np.ones(3))
    ddl.world().set_timeout(seconds)
    called = time.monotonic()
    if ddl.rank() == 0:
        with pytest.raises(ddl.CollectiveTimeout, match="Timed out waiting for rank 1 .* has not called it"):
            ddl.allreduce(np.ones(3))
    ranks.meet()
    return called


@pytest.mark.few(1)
@pytest.mark.parametrize("seconds", [0.3, 0.9, 2.0])
def test_nobody_is_judged_before_the_deadline(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store, which is in this process, is asked for a verdict when the deadline has come: a late rank may come."""
    asked: List[float] = []
    received = JobVerdicts.received

    def note(verdicts: JobVerdicts, rank: int, message: Any, now: float) -> Any:
        if message.get("final"):
            asked.append(time.monotonic())
        return received(verdicts, rank, message, now)

    monkeypatch.setattr(JobVerdicts, "received", note)
    called, _ = ranks.run(2, never_called, seconds)
    assert asked and asked[0] >= called + seconds
