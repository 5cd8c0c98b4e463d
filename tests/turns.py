"""Which tests may run at the same time, when several processes run them (``make test``, ``pytest -n``); a plugin.

Beside a test that is marked ``alone`` no other runs: it bounds how long something takes, measures, or looks for what is
left on the machine. The workers of pytest-xdist keep to that with two file locks, which the kernel gives back when one
of them dies. A worker waits for a lock no longer than the tests that others run, and these have timeouts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Iterator, List

import pytest


def is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # pytest-xdist gives each worker a folder in one of the run
        config.pluginmanager.register(Turns(Path(config.option.basetemp).parent))


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Put tests that are alone at the end, so that others wait for them once at most."""
    items.sort(key=is_alone)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: one more than there are cores, as there is always a test that waits."""
    return len(os.sched_getaffinity(0)) + 1


class Turns:
    """Makes the tests of one worker wait for those of the others; ``folder`` is theirs together."""

    def __init__(self, folder: Path) -> None:
        self._running = _open(folder / "running.lock")  # held by the test that is alone, or by all that run
        self._next = _open(folder / "next.lock")  # held by who is to run next

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest-timeout's: to wait does not count
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with _locked(self._next, fcntl.LOCK_EX):  # else one that is alone would wait while others come and go
            fcntl.flock(self._running, fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            fcntl.flock(self._running, fcntl.LOCK_UN)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


@contextlib.contextmanager
def _locked(descriptor: int, how: int) -> Iterator[None]:
    fcntl.flock(descriptor, how)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
