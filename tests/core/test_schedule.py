"""The progress thread asks the kernel for short turns, and leaves the caller's thread and its niceness alone."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Dict, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected

import ddl

pytestmark = pytest.mark.processes

TURN = 100_000  # ns; csrc/base/schedule.cc


def turn_of(thread: str) -> int:
    """Return the length of its turns in nanoseconds; 0 where the kernel does not say."""
    match = re.search(r"^se\.slice\s*:\s*(\d+)", Path(f"/proc/self/task/{thread}/sched").read_text(), re.MULTILINE)
    return int(match[1]) if match else 0


def turns() -> Tuple[int, int, Dict[str, Tuple[int, int]]]:
    """Return the main thread's niceness and turn, and turn and niceness of the threads that an operation has made.

    A thread that makes a connection may still be there just after the operation. It ends by itself.
    """
    niceness = os.nice(3)
    before = set(os.listdir("/proc/self/task"))
    ddl.allreduce_async(np.ones(1 << 20, np.float32), op=ddl.Sum).wait()
    deadline = time.monotonic() + 60
    while True:
        threads = set(os.listdir("/proc/self/task")) - before
        if len(threads) == 1 or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return (
        niceness,
        turn_of(str(os.getpid())),
        {thread: (turn_of(thread), os.getpriority(os.PRIO_PROCESS, int(thread))) for thread in threads},
    )


def has_turns() -> bool:
    kernel = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    return kernel >= (6, 12) and Path("/proc/self/sched").exists() and turn_of(str(os.getpid())) > 0


@pytest.mark.skipif(not has_turns(), reason="this kernel gives all threads turns of one length, or does not show them")
def test_the_progress_thread_has_short_turns() -> None:
    for niceness, main, threads in ranks.run(2, turns, **connected("tcp")):
        assert len(threads) == 1, "only the progress thread stays"
        assert set(threads.values()) == {(TURN, niceness)}
        assert main > TURN
