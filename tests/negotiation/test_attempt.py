"""Operations that are attempted: they end at once where all ranks are there, and go on without the caller elsewhere."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import pytest
import ranks
from core.jobs import connected
from negotiation.deadlines import set_deadline

import ddl
from ddl.adapter.calls import Call, Collective, calls_of
from ddl.bootstrap.agent import Agent
from ddl.bootstrap.agent_records import Member
from ddl.negotiation import Negotiator, Request, Signature
from ddl.negotiation.pending import Pending

pytestmark = pytest.mark.processes


def nothing(signature: Signature) -> Callable[..., Any]:
    raise ddl.InvalidArgument("nothing is possible while a rank has joined")


def negotiator() -> Negotiator:
    world = ddl.world()
    return Negotiator(world.split(0), nothing, world.who, range(world.size))


def total(x: np.ndarray, name: str, ways: int = 3) -> Request:
    """The sum over ranks, in place. ``ways``: 1 if it can block, 2 if it can be attempted."""
    call = Call(Collective.ALLREDUCE, x, x, None, op=ddl.Sum)
    return Request(
        Signature("allreduce", ((str(x.dtype), x.shape),), "op=Sum"),
        lambda group: group.allreduce_async_(x, op=ddl.Sum),
        name,
        (lambda group: group.allreduce_(x, op=ddl.Sum)) if ways & 1 else None,
        attempt=(lambda group: calls_of(group).attempt(call)) if ways & 2 else None,
    )


def in_any_order(seed: int, times: int) -> int:
    """Ranks attempt the same names in orders of their own, some by other ways; return how many had to be left."""
    submitter, draw = negotiator(), random.Random(seed + ddl.rank())
    names, left = [f"x{i}" for i in range(5)], 0
    want = ddl.size() * (ddl.size() + 1) / 2
    for _ in range(times):
        pending: Dict[str, Pending] = {}
        arrays = {name: np.full(3, ddl.rank() + 1.0) for name in names}
        for name in draw.sample(names, len(names)):
            request = total(arrays[name], name, draw.randrange(4))
            pending[name] = submitter.attempt(request) if draw.random() < 0.7 else submitter.submit(request)
            left += not pending[name].done()
        for name in draw.sample(names, len(names)):
            pending[name].wait()
            assert arrays[name].tolist() == [want] * 3
        last = np.full(1, ddl.rank() + 1.0)
        submitter.run(total(last, "last"))  # may have to end a round that an attempt has left
        assert last[0] == want
    submitter.close()
    return left


@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.parametrize("size", [2, 3])
def test_attempted_in_any_order(size: int, transport: str) -> None:
    print("left:", ranks.run(size, in_any_order, 7, 60, **connected(transport)))


def at_once(times: int) -> int:
    """All ranks attempt one after the other; return how many had ended when the attempt returned."""
    submitter, ended = negotiator(), 0
    for number in range(times):
        x = np.full(1, float(number))
        pending = submitter.attempt(total(x, "x"))
        ended += pending.done()
        pending.wait()
        assert x[0] == number * ddl.size()
        ddl.barrier()
    submitter.close()
    return ended


def test_where_all_are_there_it_has_ended() -> None:
    """How often they are is the machine's affair: on an idle one mostly, on a busy one less.

    An attempt looks for the others for as long as a rank waits awake. Here that is long enough for a rank that has to
    wait for a core.
    """
    ended = ranks.run(2, at_once, 50, env={"DDL_SPIN_US": "200000"})
    print("ended at once:", ended)
    assert sum(ended) > 0, ended


def without_sleep() -> None:
    """Rank 1 submits nothing before rank 0 tells it to, after its attempt."""
    submitter, rank, word = negotiator(), ddl.rank(), np.zeros(1)
    for number in range(10):
        x = np.full(2, float(number))
        if rank == 1:
            ddl.recv(word, 0)
        first = submitter.attempt(total(x, "x"))
        if rank == 0:
            assert not first.done()
            y = np.ones(2)
            second = submitter.attempt(total(y, "y"))  # while a round is under way that nobody drives
            assert not second.done()
            ddl.send(word, 1)
        else:
            y = np.ones(2)
            second = submitter.attempt(total(y, "y"))
        first.wait()
        second.wait()
        assert x.tolist() == [2.0 * number] * 2 and y.tolist() == [2.0] * 2
    submitter.close()


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_an_attempt_waits_for_nobody(transport: str) -> None:
    ranks.run(2, without_sleep, **connected(transport))


def ends_with(action: str) -> Optional[str]:
    """What an attempt of rank 0 ends with if rank 1 does something else. Whether it does so before or after is open."""
    submitter, rank = negotiator(), ddl.rank()
    submitter.run(total(np.ones(3), "known"))
    ranks.meet()
    if rank == 1:
        if action == "leaves":
            return None
        if action == "is late":
            ranks.meet()  # rank 0 has the error
            with pytest.raises(ddl.CommunicatorError):
                submitter.attempt(total(np.ones(3), "known")).wait()
            return None
        time.sleep(0.1)
        if action == "differs":
            with pytest.raises(ddl.CollectiveMismatch):
                submitter.attempt(total(np.ones(4), "known")).wait()
        if action == "joins":
            submitter.join()
        ranks.meet()  # else it might leave before rank 0 has the error
        return None
    if action == "is late":
        set_deadline(submitter, 1)
    pending = submitter.attempt(total(np.ones(3), "known"))
    with pytest.raises(ddl.Error) as caught:
        pending.wait()
    if action != "leaves":
        ranks.meet()
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("action", "error", "words"),
    [
        ("leaves", "PeerLost", ["rank 1"]),
        ("differs", "CollectiveMismatch", ["rank 0", "rank 1", "shape 3", "shape 4"]),
        ("joins", "CollectiveMismatch", ["joined", "1"]),
        ("is late", "CollectiveTimeout", ["rank 1", "not all ranks had submitted"]),
    ],
)
def test_what_an_attempt_ends_with(action: str, error: str, words: List[str]) -> None:
    said = ranks.run(2, ends_with, action)[0]
    assert said.startswith(f"{error}: ") and all(word in said for word in ["'known'", *words]), said


def overdue_while_one_is_stopped() -> str:
    """What a submitted operation ends with if rank 1 is stopped, and the verdict about it comes after the deadline."""
    submitter, report = negotiator(), Agent._report
    submitter.run(total(np.ones(3), "known"))
    ranks.meet()
    set_deadline(submitter, 3)  # one of the others may come so much later
    if ddl.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)

    def report_late(agent: Agent, member: Member) -> None:
        time.sleep(0.6)
        report(agent, member)

    Agent._report = report_late  # type: ignore[method-assign]
    with pytest.raises(ddl.Error) as caught:
        submitter.submit(total(np.ones(3), "x")).wait()
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.slow
@pytest.mark.faults
def test_a_stopped_rank_is_named_and_not_those_that_wait_for_it() -> None:
    answers = ranks.run(3, overdue_while_one_is_stopped, stopped=[1])
    for rank in (0, 2):
        text = answers[rank]
        assert text.startswith("CollectiveTimeout: ") and "Timed out waiting for rank 1 (host" in text, text
        assert "did not submit it" not in text and "rank 1 does not answer" in text, text
