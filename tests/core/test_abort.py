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

pytestmark = [pytest.mark.processes, pytest.mark.faults]


def wait_for_the_end() -> Dict[str, Any]:
    """Everybody but rank 1 sits in a collective that never completes, and gets out of it before rank 1 goes on."""
    ddl.barrier()
    ranks.meet()  # nobody is in the barrier any more
    first = None
    if ddl.rank() == 1:
        time.sleep(0.3)  # the others are in it by now; who is not yet is told so at once
        ddl.abort("the loss is not a number")
    else:
        with pytest.raises(ddl.Error) as caught:
            ddl.allreduce(np.ones(30_000))
        first = caught.value
    ranks.meet()
    with pytest.raises(ddl.Error) as caught:
        ddl.barrier()
    first, second = first or caught.value, caught.value
    return {"kind": type(first).__name__, "text": str(first), "again": str(second)}


@pytest.mark.few(2)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_reaches_everybody(transport: str) -> None:
    """Not by the deadline, whose error is another one."""
    for answer in ranks.run(4, wait_for_the_end, **connected(transport)):
        assert answer["kind"] == "Aborted" and answer["again"] == answer["text"], answer
        assert "the loss is not a number" in answer["text"] and "rank 1 (host" in answer["text"], answer


def press_when_called(core: Any, called_before: int) -> None:
    """Send this process SIGINT when its main thread has called the next collective, and waits in it."""
    deadline = time.monotonic() + 60
    while core.submitted == called_before:
        assert time.monotonic() < deadline, "nothing was called"
        time.sleep(0.01)
    time.sleep(0.3)  # `wait` is another call
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(load: int, blocking: bool) -> Dict[str, Any]:
    """Rank 2 gets SIGINT while all but rank 3, which comes when these are out of it, are blocked in a collective."""
    ddl.barrier()
    ranks.meet()  # nobody is in the barrier any more
    x, core = np.ones(load), ddl.world()._core
    if ddl.rank() == 2:
        threading.Thread(target=press_when_called, args=(core, core.submitted)).start()
    if ddl.rank() == 3:
        ranks.meet()
        deadline = time.monotonic() + 60  # in the messages that were sent before, it may find all that it needs
        while not core.failed and time.monotonic() < deadline:
            time.sleep(0.01)
    answer: Dict[str, Any] = {"kind": "returned"}
    try:
        ddl.allreduce_(x) if blocking else ddl.allreduce_async_(x).wait()
    except KeyboardInterrupt:
        answer = {"kind": "KeyboardInterrupt", "text": ""}
    except ddl.Error as error:
        answer = {"kind": type(error).__name__, "text": str(error)}
    if ddl.rank() != 3:
        ranks.meet()
    try:
        ddl.barrier()
        answer["again"] = "returned"
    except ddl.Error as error:
        answer["again"] = type(error).__name__
    return answer


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("load", "blocking", "transport"),
    [
        *[(3, True, transport) for transport in TRANSPORTS],
        *[(60_000, True, "shared"), (60_000, True, "tcp"), (60_000, False, "hybrid"), (60_000, False, "shared")],
    ],
)
def test_interrupt(load: int, blocking: bool, transport: str) -> None:
    answers = ranks.run(4, interrupted, load, blocking, **connected(transport))
    assert answers[2]["kind"] == "KeyboardInterrupt", answers[2]
    for rank in (0, 1, 3):
        assert answers[rank]["kind"] == "Aborted" and "rank 2 (host" in answers[rank]["text"], answers[rank]
    assert {answer["again"] for answer in answers} == {"Aborted"}
