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

AWAY = 1.0  # seconds; longer than rails wait until they send again what they have heard nothing of


def leave_while_the_other_is_stopped() -> float:
    """Rank 1 answers and leaves while rank 0 is stopped, with a message of rank 0 unread: its kernel resets."""
    pids = ddl.allgather(np.array([os.getpid()]))
    x = np.arange(5.0)
    if ddl.rank() == 1:
        ddl.send(x, 0)  # makes the connections
        time.sleep(0.3)
        os.kill(int(pids[0]), signal.SIGSTOP)
        # Nobody else can resume rank 0 when this rank is gone.
        subprocess.Popen(["sh", "-c", f"sleep {AWAY}; kill -CONT {pids[0]}"])
        ddl.send(x + 1, 0)
        ddl.recv(x, 0)
        ddl.shutdown()
        return float(x[0])
    ddl.recv(np.zeros(5), 1)
    sent = [ddl.send_async(x, 1), ddl.send_async(x, 1)]
    answer = ddl.recv(np.zeros(5), 1)
    assert list(answer) == [1.0, 2.0, 3.0, 4.0, 5.0]
    for work in sent:
        work.wait()
    return float(answer[0])


@pytest.mark.parametrize("transport", ["tcp", "rails"])
def test_what_a_rank_sent_before_it_left_arrives(transport: str) -> None:
    assert ranks.run(2, leave_while_the_other_is_stopped, **connected(transport)) == [1.0, 0.0]
