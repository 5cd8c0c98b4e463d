"""abort() and Ctrl-C: the one that does it and all others get out of what they are in, and stay out."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Dict

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected

import ddl

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.alone]


def wait_for_the_end(aborts: bool) -> Dict[str, Any]:
    """Everybody but rank 1 sits in a collective that never completes."""
    ddl.barrier()
    if ddl.rank() == 1:
        time.sleep(0.3)
        moment = time.monotonic()
        if aborts:
            ddl.abort("the loss is not a number")
        time.sleep(0.5)
    else:
        moment = 0.0
        try:
            ddl.allreduce(np.ones(30_000))
            return {"kind": "returned"}
        except ddl.Error as error:
            first, failed = error, time.monotonic()
    try:
        ddl.barrier()
    except ddl.Error as error:
        second = error
    if ddl.rank() == 1:
        first, failed = second, 0.0
    return {"kind": type(first).__name__, "text": str(first), "again": str(second), "moment": moment, "failed": failed}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_reaches_everybody(transport: str) -> None:
    answers = ranks.run(4, wait_for_the_end, True, **connected(transport))
    for rank, answer in enumerate(answers):
        assert answer["kind"] == "Aborted" and answer["again"] == answer["text"], answer
        assert "the loss is not a number" in answer["text"] and "rank 1 (host" in answer["text"], answer
        if rank != 1:
            assert answers[1]["moment"] <= answer["failed"] < answers[1]["moment"] + 1


def interrupted(load: int, blocking: bool) -> Dict[str, Any]:
    """Rank 2 gets SIGINT while all but rank 3 are blocked in a collective."""
    ddl.barrier()
    started = time.monotonic()
    moment = [0.0]
    if ddl.rank() == 2:

        def press() -> None:
            time.sleep(0.3)
            moment[0] = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
    answer: Dict[str, Any] = {"kind": "returned"}
    try:
        if ddl.rank() == 3:
            time.sleep(0.9)
        x = np.ones(load)
        ddl.allreduce_(x) if blocking else ddl.allreduce_async_(x).wait()
    except KeyboardInterrupt:
        answer = {"kind": "KeyboardInterrupt", "text": ""}
    except ddl.Error as error:
        answer = {"kind": type(error).__name__, "text": str(error)}
    answer["after"] = time.monotonic() - (moment[0] or started)
    try:
        ddl.barrier()
        answer["again"] = "returned"
    except ddl.Error as error:
        answer["again"] = type(error).__name__
    return answer


@pytest.mark.parametrize(
    ("load", "blocking", "transport"),
    [
        *[(3, True, transport) for transport in TRANSPORTS],
        *[(60_000, True, "shared"), (60_000, True, "tcp"), (60_000, False, "hybrid"), (60_000, False, "shared")],
    ],
)
def test_interrupt(load: int, blocking: bool, transport: str) -> None:
    answers = ranks.run(4, interrupted, load, blocking, **connected(transport))
    assert answers[2]["kind"] == "KeyboardInterrupt" and answers[2]["after"] < 1, answers[2]
    for rank in (0, 1, 3):
        assert answers[rank]["kind"] == "Aborted" and "rank 2 (host" in answers[rank]["text"], answers[rank]
        assert rank == 3 or answers[rank]["after"] < 1.3, answers[rank]
    assert {answer["again"] for answer in answers} == {"Aborted"}
