"""An all-gather that goes on without its caller if that would have to sleep: negotiation is built on it."""

from __future__ import annotations

from typing import List

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected

import ddl
from ddl.adapter.calls import Call, Collective, calls_of

pytestmark = pytest.mark.processes


def rows(number: int, count: int) -> np.ndarray:
    return np.arange(ddl.size() * count, dtype=np.int64).reshape(ddl.size(), count) + number


def attempts(times: int, count: int) -> int:
    """One after the other, mixed with those that sleep and with other operations; return how many went on."""
    group, rank, left = ddl.world(), ddl.rank(), 0
    out = np.empty((ddl.size(), count), np.int64)
    for number in range(times):
        want = rows(number, count)
        if (number + rank) % 3:
            work = calls_of(group).attempt(Call(Collective.ALLGATHER, want[rank].copy(), out, None))
            left += work is not None
            if number % 5 == 0:
                assert float(ddl.allreduce(1.0, op=ddl.Sum)) == ddl.size()  # behind it, by whoever drives
            if work is not None:
                work.wait()
        else:
            ddl.allgather(want[rank].copy(), out=out)
            if number % 5 == 0:
                assert float(ddl.allreduce(1.0, op=ddl.Sum)) == ddl.size()
        assert np.array_equal(out, want), number
    return left


@pytest.mark.few(3)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [1, 5000])
def test_attempts_bring_what_all_gathers_do(transport: str, count: int) -> None:
    print("left:", ranks.run(4, attempts, 400 if count == 1 else 100, count, **connected(transport)))


def left_for_the_last() -> List[bool]:
    """Rank 1 comes only when rank 0 tells it to, which rank 0 does after its attempt: it must not wait for rank 1."""
    group, rank, word = ddl.world(), ddl.rank(), np.zeros(1)
    seen = []
    for number in range(6):
        out, want = np.empty((2, 8), np.int64), rows(number, 8)
        if rank == 1:
            ddl.recv(word, 0)
        work = calls_of(group).attempt(Call(Collective.ALLGATHER, want[rank].copy(), out, None))
        if rank == 0:
            assert work is not None, "it has ended without rank 1"
            assert not work.done()
            ddl.send(word, 1)
        if work is not None:
            work.wait()
            assert work.done()
        seen.append(np.array_equal(out, want))
    return seen


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_who_would_sleep_leaves(transport: str) -> None:
    assert ranks.run(2, left_for_the_last, **connected(transport)) == [[True] * 6] * 2


def left_for_ever() -> str:
    """What an attempt ends with to which the other rank never comes."""
    if ddl.rank() == 1:
        return ""
    work = calls_of(ddl.world()).attempt(Call(Collective.ALLGATHER, np.zeros(1), np.empty((2, 1)), None))
    assert work is not None
    with pytest.raises(ddl.CommunicatorError) as caught:
        work.wait()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_an_attempt_fails_as_any_operation() -> None:
    said = ranks.run(2, left_for_ever)[0]
    assert said.startswith("PeerLost: ") and "rank 1" in said and "allgather" in said
