"""Faults for the tests: a rank that strikes itself in the middle of an operation and writes down when.

The clock is the machine's monotonic one, the same in all processes. What a rank writes down lies in a folder of the
test, so that the test can count the faults, and prove that the others were inside an operation when they happened.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

import ddl
from ddl.records.stacks import let_stacks_be_read

#: What can happen to a rank.
STRIKES: Dict[str, Callable[[], None]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exited": lambda: os._exit(3),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def strike_after(seconds: float, how: str, folder: str) -> None:
    """Strike this process in ``seconds``, from a thread of its own, and write down when."""

    def strike() -> None:
        time.sleep(seconds)
        path = Path(folder, "struck")
        path.with_suffix(".new").write_text(repr(time.monotonic()))
        path.with_suffix(".new").rename(path)
        STRIKES[how]()

    threading.Thread(target=strike, daemon=True).start()


def struck_at(folder: Any) -> float:
    """When it happened; fails the test if it did not."""
    return float(Path(folder, "struck").read_text())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def until_all_are_connected() -> None:
    """Return when no rank makes or takes a connection any more; collective. They are made in the background.

    A plan's connections are asked for when it is first used, so what is looked at afterwards must have been called.
    """
    deadline, quiet, busy = time.monotonic() + 60, 0, np.ones(1)
    while quiet < 3:
        time.sleep(0.02)
        names = [thread.name for thread in threading.enumerate()]
        busy[0] = any(name.startswith(("ddl-dial", "ddl-newcomer")) for name in names)
        assert not busy[0] or time.monotonic() < deadline, names
        quiet = 0 if ddl.allreduce_(busy, op=ddl.Max)[0] else quiet + 1


def held_before() -> Tuple[int, int]:
    """Descriptors and threads before ``ddl.init``, with those that answer who asks for Python's stacks: they stay."""
    let_stacks_be_read()
    return descriptors(), threads()


def held_after(before: Tuple[int, int]) -> Tuple[int, int]:
    """Descriptors and threads now; the kernel may show a thread that was joined for a moment longer."""
    deadline = time.monotonic() + 10
    while (descriptors(), threads()) != before and time.monotonic() < deadline:
        time.sleep(0.01)
    return descriptors(), threads()


def small_loop(ready: Callable[[], None]) -> None:
    """Small all-reduces without a pause; ``ready`` is called when the first has ended."""
    x = np.ones(8, np.float32)
    ddl.allreduce_(x, op=ddl.Max)
    ready()
    for _ in range(10_000_000):
        ddl.allreduce_(x, op=ddl.Max)


def large_in_flight(ready: Callable[[], None]) -> None:
    """8 MiB all-reduces, two under way; ``ready`` is called when the first have ended, and none is under way."""
    arrays = [ddl.empty(2 << 20, np.float32) for _ in range(2)]
    for x in arrays:
        x[:] = 1
        ddl.allreduce_(x, op=ddl.Max)
    ready()
    works = [ddl.allreduce_async_(x, op=ddl.Max, name=f"bucket.{n}") for n, x in enumerate(arrays)]
    for turn in range(1_000_000):
        works[turn % 2].wait()
        works[turn % 2] = ddl.allreduce_async_(arrays[turn % 2], op=ddl.Max, name=f"bucket.{turn % 2}")


LOADS = {"small": small_loop, "large": large_in_flight}


def first_error(load: str, ready: Callable[[], None]) -> Tuple[str, str, float, float]:
    """Run a load until it fails: class, text, when it started and when it failed."""
    started = time.monotonic()
    try:
        LOADS[load](ready)
    except ddl.Error as error:
        return type(error).__name__, str(error), started, time.monotonic()
    raise AssertionError("the load came to its end without an error")


def later_errors() -> List[str]:
    """What calls of all kinds say now."""
    texts = []
    x = np.ones(5)
    calls: List[Callable[[], Any]] = [
        lambda: ddl.allreduce(x),
        ddl.barrier,
        lambda: ddl.allreduce_async_(np.ones(70_000)).wait(),
        lambda: ddl.allgather(x),
        lambda: ddl.broadcast_object("x"),
        lambda: ddl.send(x, (ddl.rank() + 1) % ddl.size()),
    ]
    for call in calls:
        try:
            call()
            texts.append("no error")
        except ddl.Error as error:
            texts.append(str(error))
    return texts
