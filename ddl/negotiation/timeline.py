"""A timeline of operations as a file for chrome://tracing or Perfetto: what waited for other ranks, and how long.

One row for each name of an operation: how long it waited until all ranks had submitted it, then how long it took until
its result was fetched. It is written all the time, so that the file of a killed job can be read, too. It shows only
what the process that writes it has waited for, usually rank 0; ``ddlrun --timeline`` shows all ranks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from typing import Any, Dict, Optional

from ddl import clock
from ddl.errors import ConfigError, InvalidState

__all__ = ["Timeline", "active", "start", "stop"]

log = logging.getLogger("ddl")


class Timeline:
    """The file. Times are those of ``clock.now``. Any thread may call it.

    Format: Google's "Trace Event Format", a JSON array whose end may be missing. A file that cannot be written any more
    (a full disk, say) is given up with a warning: the training goes on. ``who``: names the process in it.
    """

    def __init__(self, path: str, mark_cycles: bool, who: str) -> None:
        self.mark_cycles = mark_cycles
        self._lock = threading.Lock()
        self._rows: Dict[str, int] = {}
        self._begin = clock.now()
        # Without a buffer: nothing is lost if the process is killed, and a forked child has nothing to write again.
        self._file = open(path, "wb", buffering=0)
        self._before = "[\n"  # the next event; what is written is an array that only lacks its end
        self._event("M", "process_name", 0, self._begin, args={"name": who})

    def operation(self, name: str, verb: str, submitted: float, agreed: float, ended: float) -> None:
        """An operation was submitted, under way, and over, at these times."""
        with self._lock:
            row = self._row(name)
            if agreed > submitted:
                self._event(
                    "X", f"NEGOTIATE_{verb.upper()}", row, submitted, dur=self._microseconds(agreed - submitted)
                )
            self._event("X", verb.upper(), row, agreed, dur=self._microseconds(ended - agreed))

    def cycle(self) -> None:
        """A round of negotiation begins."""
        with self._lock:
            self._event("i", "CYCLE_START", 0, clock.now(), s="g")

    def close(self) -> None:
        """End the file. Idempotent."""
        with self._lock:
            self._write("\n]\n")
            self._close()

    def close_in_child(self) -> None:
        """In a forked child, whose parent goes on writing: let go of the file."""
        self._close()  # without the lock, which a thread of the parent may hold for ever

    def _row(self, name: str) -> int:
        if name not in self._rows:
            self._rows[name] = row = 1 + len(self._rows)
            self._event("M", "thread_name", row, self._begin, args={"name": name})
        return self._rows[name]

    @staticmethod
    def _microseconds(seconds: float) -> float:
        return round(1e6 * seconds, 3)

    def _event(self, phase: str, name: str, row: int, at: float, **more: Any) -> None:
        event = {"ph": phase, "name": name, "pid": 0, "tid": row, "ts": self._microseconds(at - self._begin), **more}
        self._write(self._before + json.dumps(event))
        self._before = ",\n"

    def _write(self, text: str) -> None:
        data = text.encode()
        try:
            while data and not self._file.closed:
                data = data[self._file.write(data) :]
        except OSError as error:
            log.warning("the timeline %s ends here, as it cannot be written: %s", self._file.name, error)
            self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # it is closed all the same
            self._file.close()


_active: Optional[Timeline] = None


def active() -> Optional[Timeline]:
    """Return the timeline that is being written in this process, if any."""
    return _active


def start(path: str, *, mark_cycles: bool = False, who: str = "DDL") -> None:
    """Begin to write a timeline to a new file, of the process ``who``.

    Raises ``InvalidState`` if one is being written, ``ConfigError`` if the file cannot be.
    """
    global _active
    if _active is not None:
        raise InvalidState("a timeline is being written already; call stop_timeline() first")
    try:
        _active = Timeline(path, mark_cycles, who)
    except OSError as error:
        raise ConfigError(f"the timeline (DDL_TIMELINE) cannot be written: {error}") from error


def stop() -> None:
    """End the timeline. Idempotent."""
    global _active
    ended, _active = _active, None
    if ended is not None:
        ended.close()


def _forget_in_child() -> None:
    global _active
    forgotten, _active = _active, None
    if forgotten is not None:
        forgotten.close_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
