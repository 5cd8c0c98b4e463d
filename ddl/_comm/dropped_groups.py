"""``DroppedGroups``: groups whose communicators the program has let go without closing them.

A communicator is collected at any moment and in any thread, where a group must not be closed. So it is only noted here,
and closed before a new group is made, once the program does not use it any more.
"""

from __future__ import annotations

import collections
from typing import Deque, Protocol

__all__ = ["DroppedGroups"]


class Droppable(Protocol):
    """What a program may let go without closing it."""

    @property
    def in_use(self) -> bool:
        """Whether the program can still come back to it."""

    def close(self) -> None:
        """Leave."""


class DroppedGroups:
    """Those of one job. Any thread may use it."""

    def __init__(self) -> None:
        self._groups: Deque[Droppable] = collections.deque()
        self._ended = False

    def add(self, group: Droppable) -> None:
        """Note that the program has dropped the communicator of ``group``. Called in any thread at any moment."""
        if not self._ended:  # else it is closed, and would keep the job and its memory
            self._groups.append(group)

    def close_unused(self) -> None:
        """Close those that the program does not use any more. Called before a new group is made."""
        for _ in range(len(self._groups)):
            try:
                group = self._groups.popleft()
            except IndexError:  # another thread makes a group, too
                return
            if group.in_use:
                self._groups.append(group)
            else:
                group.close()

    def end(self) -> None:
        """The job has ended, and has closed all its groups: forget them, and what comes."""
        self._ended = True
        self._groups.clear()
