"""A rank that has done its part may leave at once, and nothing of what it has sent is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import numpy as np
import pytest
import ranks
from core.jobs import connected

import ddl

pytestmark = pytest.mark.processes

AWAY = 1.3  # seconds; longer than rails wait until they send again, and than a rank waits until it asks


def leave_while_another_is_stopped() -> float:
    """Rank 1 answers and leaves while rank 0 is stopped, with a message of rank 0 unread: its kernel resets.

    Rank 0 has waited for so long when it goes on that it asks about its receive, of which all is there.
    """
    pids = ddl.allgather(np.array([os.getpid()]))
    x = np.arange(5.0)
    if ddl.rank() == 2:
        ddl.barrier()
        return float(ddl.recv(x, 0)[0])
    if ddl.rank() == 1:
        ddl.send(x, 0)  # makes the connections
        ddl.recv(x, 0)
        ddl.barrier()  # the other message has left rank 0
        time.sleep(0.1)  # rank 0 waits by now; if not, it does not ask
        os.kill(int(pids[0]), signal.SIGSTOP)
        # Nobody else can resume rank 0 when this rank is gone.
        subprocess.Popen(["sh", "-c", f"sleep {AWAY}; kill -CONT {pids[0]}"])
        ddl.send(x + 1, 0)
        ddl.shutdown()
        return float(x[0])
    ddl.recv(np.zeros(5), 1)
    answer = np.zeros(5)
    answering = ddl.world().recv_async(answer, 1)
    for work in (ddl.send_async(x, 1), ddl.send_async(x, 1)):
        work.wait()
    ddl.barrier()
    answering.wait()
    assert list(answer) == [1.0, 2.0, 3.0, 4.0, 5.0]
    time.sleep(0.3)  # by now a wrong verdict would be here
    ddl.send(answer, 2)
    return float(answer[0])


@pytest.mark.few(1)
@pytest.mark.parametrize("transport", ["tcp", "rails"])
def test_what_a_rank_sent_before_it_left_arrives(transport: str) -> None:
    assert ranks.run(3, leave_while_another_is_stopped, **connected(transport)) == [1.0, 0.0, 1.0]


def leave_without_having_sent(connect: bool) -> None:
    x = np.zeros(5)
    ddl.allgather(x)
    if ddl.rank() == 1:
        if connect:
            ddl.send(x, 0)
        ddl.shutdown()
        ranks.meet()  # the end of this process would tell, too
        return
    if connect:
        ddl.recv(x, 1)
    with pytest.raises(ddl.PeerLost, match="lost rank 1"):
        ddl.recv(x, 1)
    ranks.meet()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("transport", "connect"), [("shared", False), ("tcp", False), ("tcp", True), ("rails", False), ("rails", True)]
)
def test_what_a_rank_did_not_send_before_it_left_is_not_waited_for(transport: str, connect: bool) -> None:
    ranks.run(2, leave_without_having_sent, connect, **connected(transport))


def fail_in_a_part(how: str) -> str:
    """Ranks 1 and 2 fail in a communicator of their own and leave; rank 0, which has no part in it, says why."""
    make = {"split": lambda: ddl.split(int(ddl.rank() > 0)), "subset": lambda: ddl.world().subset([1, 2])}
    part = make[how]() if how == "split" or ddl.rank() > 0 else None
    ddl.barrier()
    if ddl.rank() == 0:
        with pytest.raises(ddl.PeerLost) as caught:
            ddl.allreduce(np.zeros(3))
        return str(caught.value)
    assert part is not None
    with pytest.raises(ddl.CollectiveMismatch):
        part.allreduce(np.zeros(3 + part.rank))
    ddl.shutdown()
    return ""


@pytest.mark.parametrize("how", ["split", "subset"])
def test_the_world_learns_what_failed_in_a_part_of_it(how: str) -> None:
    told = ranks.run(3, fail_in_a_part, how)[0]
    assert "it has shut down (its program ended) after the communicator of ranks 1, 2 had failed: " in told
    cause = told.partition(" had failed: CollectiveMismatch: ")[2]
    assert "allreduce(3 x float64, average)" in cause and "allreduce(4 x float64, average)" in cause, told
