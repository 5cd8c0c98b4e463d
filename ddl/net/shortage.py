"""What a process lacks when it cannot accept or make a connection: descriptors, kernel memory, threads.

It is not the other side's fault, and it may pass. But a listener with a waiting connection stays ready, so a loop that
accepts must wait ``PAUSE`` seconds after such an error. A rank keeps a ``Shortage``, which logs the cause once. The
rank tells the store of it when others ask why an operation makes no progress. The store keeps one to log the cause
once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import threading
from typing import Iterator

from ddl import clock
from ddl.errors import Error, ResourceError

__all__ = ["PAUSE", "Shortage", "shortage", "threads_for"]

log = logging.getLogger("ddl")

PAUSE = 0.2  #: seconds until the next attempt to accept
_RECENT = 5.0  # seconds for which a shortage counts after it was last met


def shortage(error: BaseException) -> str:
    """Return what the system refused with ``error``, and the remedy; "" if it is no shortage of this process's."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"too many open files: this process may have {limit}; close some, or raise the limit (ulimit -n)"
    if number == errno.ENFILE:
        return "too many open files on this host; close some, or raise the limit (sysctl fs.file-max)"
    if number in (errno.ENOBUFS, errno.ENOMEM):
        return f"the kernel has no memory for it ({error}); free some on this host"
    if "can't start new thread" in str(error):  # a RuntimeError; its text is all that tells it from others
        return "no thread can be started; end some, or raise the limit (ulimit -u, or pids.max of the control group)"
    return ""


@contextlib.contextmanager
def threads_for(what_for: str) -> Iterator[None]:
    """Raise ``ResourceError``, which begins with ``what_for``, where Python raises that it cannot start a thread."""
    try:
        yield
    except RuntimeError as error:
        what = "" if isinstance(error, Error) else shortage(error)
        if not what:
            raise
        raise ResourceError(errno.EAGAIN, f"{what_for}: {what}") from error


class Shortage:
    """The last shortage that this process met, and what it ``hinders``. Any thread may use it."""

    def __init__(self, hinders: str) -> None:
        self._hinders = hinders
        self._last = ("", -_RECENT)  # what it was, and when
        self._lock = threading.Lock()

    def met(self, error: BaseException) -> bool:
        """Return whether ``error`` is a shortage. The first of several in a row is logged."""
        what = shortage(error)
        if what:
            with self._lock:
                first = what != self.text
                self._last = (what, clock.now())
            if first:
                log.warning("%s: %s", self._hinders, what)
        return bool(what)

    @property
    def text(self) -> str:
        """What there is a shortage of; "" if none was met lately."""
        what, when = self._last
        return what if clock.now() - when < _RECENT else ""
