"""Sees at once when a process of this host has ended: by a pidfd, which the kernel makes readable then."""

from __future__ import annotations

import logging
import os
import selectors
from typing import Callable, Dict

__all__ = ["ProcessEnds"]

log = logging.getLogger("ddl")


class ProcessEnds:
    """The processes that are watched, by their ranks. The caller sees to it that one thread at a time uses it.

    The descriptors are registered with ``selector``, which gives the action to call when one is readable.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._descriptors: Dict[int, int] = {}

    def watch(self, rank: int, pid: int, ended: Callable[[], None]) -> None:
        """Call ``ended`` when process ``pid``, which is ``rank``, has ended; never where the kernel cannot tell."""
        if rank in self._descriptors:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, AttributeError) as error:  # another space of process numbers, or an old kernel
            log.debug("the end of rank %d will not be seen at once: %s", rank, error)
            return
        self._descriptors[rank] = descriptor
        self._selector.register(descriptor, selectors.EVENT_READ, ended)

    def forget(self, rank: int) -> bool:
        """Watch it no longer; return whether it was watched."""
        descriptor = self._descriptors.pop(rank, None)
        if descriptor is None:
            return False
        self._selector.unregister(descriptor)
        os.close(descriptor)
        return True

    def close(self) -> None:
        """Close the descriptors; the selector that has them is closed already."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}
