"""Who is blamed when nothing moves: the rank that is to blame, or nobody; never whoever happens to look first."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected

import ddl
from ddl.bootstrap.agent import Agent

pytestmark = [pytest.mark.processes, pytest.mark.faults]

VICTIM = 1


def slowed(method: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        return method(*args)

    return slow


def error_of(call: Callable[[], Any]) -> Tuple[str, str]:
    try:
        call()
    except ddl.Error as error:
        return type(error).__name__, str(error)
    return "returned", ""


def never_called(how: str) -> Tuple[str, str]:
    """Rank VICTIM does not make the second call. The others' agents are slow, or there are none."""
    ddl.allreduce(np.ones(3))
    said = "", ""
    if ddl.rank() != VICTIM:
        if how == "slow news":
            Agent._report = slowed(Agent._report, 1.2)  # type: ignore[method-assign]
        else:
            ddl.world()._core.set_agent(False)
        ddl.world().set_timeout(1.0)
        said = error_of(lambda: ddl.allreduce(np.ones(3)))
    ranks.meet()
    return said


@pytest.mark.slow
@pytest.mark.alone  # the core waits for a verdict for 3 s, and no longer
def test_a_verdict_that_comes_late_is_waited_for() -> None:
    answers = ranks.run(3, never_called, "slow news", **connected("tcp"))
    for kind, text in (answers[0], answers[2]):
        assert kind == "CollectiveTimeout"
        assert f"Timed out waiting for rank {VICTIM} (host" in text and "has not called it" in text, text


@pytest.mark.slow
def test_without_a_verdict_nobody_is_blamed() -> None:
    answers = ranks.run(3, never_called, "no agent", **connected("tcp"))
    for kind, text in (answers[0], answers[2]):
        assert kind == "CollectiveTimeout" and "it was not done before its deadline of 1000 ms" in text, text
        assert "this rank waits for rank" in text and "Timed out waiting for" not in text, text


def stopped_while_another_is_busy() -> List[Tuple[str, str]]:
    """Rank VICTIM stops. Rank 0 answers late, because its host has much to do; rank 2 is the first to complain."""
    ddl.allreduce(np.ones(3))
    if ddl.rank() == 0:
        Agent._answer = slowed(Agent._answer, 0.4)  # type: ignore[method-assign]
    if ddl.rank() == 2:
        ddl.world().set_timeout(1.0)
    ranks.meet()
    if ddl.rank() == VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)
    return [error_of(lambda: ddl.allreduce(np.ones(3))) for _ in range(2)]


@pytest.mark.alone  # who answers within 1.25 s is not to blame
def test_a_stopped_rank_is_blamed_and_not_a_busy_one() -> None:
    answers = ranks.run(3, stopped_while_another_is_busy, stopped=[VICTIM], **connected("shared"))
    for rank in (0, 2):
        for kind, text in answers[rank]:
            assert kind == "CollectiveTimeout" and text.startswith(f"[rank {rank}/3"), text
            assert f"Timed out waiting for rank {VICTIM} (host" in text and f"rank {VICTIM} does not answer" in text, (
                text
            )


def given_up(kind: str) -> Tuple[str, str]:
    """What this rank says of the verdict that it is itself the culprit."""
    ddl.world()._core.fail(kind, ddl.rank(), "it does not answer", False)
    return error_of(lambda: ddl.allreduce(np.ones(3)))


@pytest.mark.parametrize("kind", ["CollectiveTimeout", "PeerLost"])
def test_no_rank_waits_for_itself(kind: str) -> None:
    for rank, (raised, text) in enumerate(ranks.run(2, given_up, kind)):
        assert raised == kind
        assert text.startswith(f"[rank {rank}/2 host ") and " waiting for" not in text and "lost rank" not in text
        assert text.endswith("have given this rank up: it does not answer"), text


def mismatched() -> Tuple[str, str]:
    """Ranks 1 and 2 of the job make a group, and do not make the same call there."""
    group = ddl.split(0 if ddl.rank() else None)
    return ("", "") if group is None else error_of(lambda: group.allreduce(np.ones(ddl.rank())))


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_calls_that_do_not_match_blame_nobody_and_name_ranks_of_the_job(transport: str) -> None:
    for kind, text in ranks.run(3, mismatched, **connected(transport))[1:]:
        assert kind == "CollectiveMismatch" and "failed because of" not in text, text
        assert "rank 1 called allreduce(1 x float64, average) as operation #1" in text, text
        assert "rank 2 called allreduce(2 x float64, average) as operation #1" in text, text
        assert text.endswith("; all ranks must make the same calls in the same order"), text
