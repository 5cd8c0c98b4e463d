"""Prepared operations where something goes wrong: ranks that die or call otherwise, shutdown, threads, forks."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.faults import later_errors, strike_after, struck_at
from core.jobs import TRANSPORTS, connected

import ddl

pytestmark = pytest.mark.processes


def struck(folder: str, count: int) -> Dict[str, Any]:
    step, other = ddl.prepare_allreduce(np.ones(count)), ddl.prepare_allreduce(np.ones(5))
    started = time.monotonic()
    step()
    if ddl.rank() == 1:  # all have started
        strike_after(0.1, "killed", folder)
    try:
        while True:
            step()
    except ddl.Error as error:
        kind, text, failed = type(error).__name__, str(error), time.monotonic()
    later = later_errors()
    for again in (step, other, step, lambda: ddl.prepare_allreduce(np.ones(3))):
        try:
            again()
            later.append("no error")
        except ddl.Error as error:
            later.append(str(error))
    return {"kind": kind, "text": text, "started": started, "failed": failed, "later": later}


@pytest.mark.faults
@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.parametrize("count", [1, 200_000])
def test_after_a_failure_every_call_says_so(count: int, transport: str, tmp_path: Any) -> None:
    answers = ranks.run(3, struck, str(tmp_path), count, may_die=[1], **connected(transport))
    answers.pop(1)
    moment = struck_at(tmp_path)
    for answer in answers:
        assert answer["kind"] == "PeerLost" and "rank 1 (host" in answer["text"], answer
        assert answer["started"] < moment <= answer["failed"], answer
        assert len(answer["later"]) == 10 and set(answer["later"]) == {answer["text"]}, answer["later"]


ODD_ONES = ["count", "operator", "collective", "size"]


def call_something_else(comm: ddl.Communicator, case: str) -> Tuple[str, str]:
    steps = [comm.prepare_allreduce(np.ones(count, np.float32), op=ddl.Sum) for count in (10, 11)]
    large = comm.prepare_allreduce(np.ones(40_000, np.float32))
    odd = {
        "count": steps[1],
        "operator": comm.prepare_allreduce(np.ones(10, np.float32), op=ddl.Max),
        "collective": lambda: comm.broadcast_(np.ones(10, np.float32)),
        "size": large,
    }[case]
    try:
        for number in range(50):
            steps[0]()
            large()
            (odd if number == 20 and ddl.rank() == 1 else steps[0])()
    except ddl.CommunicatorError as error:
        return type(error).__name__, str(error)
    return "returned", ""


def each_odd_one() -> List[Tuple[str, str]]:
    """What each case ends with, on a communicator of its own: it is broken then."""
    parts = [ddl.split(0) for _ in ODD_ONES]
    return [call_something_else(part, case) for part, case in zip(parts, ODD_ONES) if part is not None]


@pytest.mark.few(5)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_another_call_on_one_rank(transport: str) -> None:
    for answers in ranks.run(3, each_odd_one, **connected(transport)):
        assert len(answers) == len(ODD_ONES)
        for case, (kind, text) in zip(ODD_ONES, answers):
            wanted = kind == "CollectiveMismatch" and "10 x float32, sum" in text and "#63" in text
            assert wanted, (case, kind, text)


def after_shutdown() -> List[str]:
    step, never_called = ddl.prepare_allreduce(np.ones(3)), ddl.prepare_allreduce(np.ones(3))
    step()
    world = ddl.world()
    ddl.shutdown()
    kinds = []
    for call in (step, never_called, lambda: ddl.prepare_allreduce(np.ones(3)), lambda: world.prepare_allreduce(None)):
        try:
            call()
            kinds.append("returned")
        except ddl.Error as error:
            kinds.append(type(error).__name__)
    del step
    ddl.init()  # and a new job has nothing to do with the old one's
    fresh = ddl.prepare_allreduce(np.full(3, float(ddl.rank())))
    assert fresh().tolist() == [0.5] * 3
    try:
        never_called()
        kinds.append("returned")
    except ddl.Error as error:
        kinds.append(type(error).__name__)
    return kinds


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_after_shutdown(transport: str) -> None:
    kinds = ["InvalidState", "InvalidState", "InvalidState", "InvalidArgument", "InvalidState"]
    assert ranks.run(2, after_shutdown, **connected(transport)) == [kinds] * 2


def two_threads(count: int) -> List[str]:
    """Rank 0 is in the operation when a second thread calls it; rank 1 comes only after that."""
    x = np.full(count, float(ddl.rank() + 1))
    step = ddl.prepare_allreduce(x, op=ddl.Sum)
    said = []
    if ddl.rank() == 0:
        core, first = ddl.world()._core, threading.Thread(target=step)
        called_before = core.submitted
        first.start()
        deadline = time.monotonic() + 60
        while core.submitted == called_before:
            assert time.monotonic() < deadline, "the first thread does not call it"
            time.sleep(0.01)
        try:
            step()
            said.append("returned")
        except ddl.Error as error:
            said += [type(error).__name__, str(error)]
        ddl.send(np.ones(1), 1)  # now rank 1 may come
        first.join()
    else:
        ddl.recv(np.ones(1), 0)
        step()
    assert x[0] == x[-1] == 3
    assert step()[0] == 6
    ddl.barrier()
    return said


@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.parametrize("count", [1, 300_000])
def test_a_second_thread_is_refused_and_harms_nobody(count: int, transport: str) -> None:
    said, other = ranks.run(2, two_threads, count, **connected(transport))
    assert said[0] == "InvalidState" and "under way in another thread" in said[1] and other == [], said


def called_in_a_forked_child() -> List[Any]:
    """The child, a data loader's worker say, is no rank; what it calls must neither work nor reach the others."""
    x = np.zeros(4)
    step = ddl.prepare_allreduce(x, op=ddl.Sum)
    step()
    answers: List[Any] = []
    if ddl.rank() == 0:
        child = os.fork()
        if child == 0:
            signal.alarm(100)  # should it wait for ever
            try:
                step()
            except ddl.InvalidState:
                os._exit(7)
            finally:
                os._exit(1)
        answers.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    for number in range(20):
        x[:] = ddl.rank() + number
        answers.append(float(step()[0]) - 2 * number)
    return answers


@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_harms_nobody(transport: str) -> None:
    first, other = ranks.run(2, called_in_a_forked_child, **connected(transport))
    assert first == [7] + [1.0] * 20 and other == [1.0] * 20
