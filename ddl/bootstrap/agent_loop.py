"""``AgentLoop``: the agent's thread. It sleeps until a descriptor is readable or something is due, and does that.

An error of one action does not end it: a stranger or a broken connection may have caused it, and the ranks that it
concerns notice themselves.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from typing import Callable, List, Tuple

from ddl.errors import Error
from ddl.net.shortage import Shortage

__all__ = ["AgentLoop"]

log = logging.getLogger("ddl")


class AgentLoop:
    """``ended``: no action begins once it is set. The owner of this sets it, under a lock of its own.

    Descriptors may come and go in any thread, by ``register`` or through ``selector``. What ``do_often`` is given must
    be known before ``start``.
    """

    def __init__(self, rank: int, shortage: Shortage) -> None:
        self.selector = selectors.DefaultSelector()
        self.ended = threading.Event()
        self._rank = rank
        self._shortage = shortage
        self._often: List[Tuple[Callable[[], float], Callable[[], None]]] = []
        self._waker, self._wake_writer = os.pipe()
        self.register(self._waker, self._wake_up)
        self._thread = threading.Thread(target=self._run, name="ddl-agent", daemon=True)

    def register(self, fd: int, action: Callable[[], None]) -> None:
        """Do ``action`` whenever ``fd`` is readable."""
        self.selector.register(fd, selectors.EVENT_READ, action)

    def do_often(self, patience: Callable[[], float], action: Callable[[], None]) -> None:
        """Do ``action`` whenever the thread is awake, and after ``patience`` seconds at the latest."""
        self._often.append((patience, action))

    def start(self) -> None:
        """Begin. ``RuntimeError`` if no thread can be started."""
        self._thread.start()

    def wake(self) -> None:
        """Have the thread look at all deadlines anew."""
        os.write(self._wake_writer, b"x")

    def join(self) -> None:
        """Wait for the end of the thread, once ``ended`` is set."""
        self.wake()
        self._thread.join()

    def close(self) -> None:
        """Close what it sleeps on, when the thread has ended, has not begun, or is the parent's."""
        self.selector.close()
        self._often = []  # they know the owner of this, and would keep it
        for fd in (self._waker, self._wake_writer):
            os.close(fd)

    def _wake_up(self) -> None:
        os.read(self._waker, 4096)

    def _run(self) -> None:
        while not self.ended.is_set():
            ready = self.selector.select(min(patience() for patience, _ in self._often))
            for action in [*(key.data for key, _ in ready), *(action for _, action in self._often)]:
                if self.ended.is_set():
                    return
                try:
                    action()
                except (OSError, Error) as error:
                    if not self._shortage.met(error):
                        log.warning("rank %d: %s", self._rank, error)
