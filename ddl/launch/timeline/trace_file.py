"""The file of a timeline: a JSON array of events, one a line, whose end may be missing. It is bounded.

Each event is written as soon as it is known, so that the file of a job that was killed can be read up to there. A file
that cannot be written any more (a full disk) is given up with a warning, and the job goes on.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List

from ddl.errors import ConfigError

__all__ = ["TraceEvent", "TraceFile"]

TraceEvent = Dict[str, Any]
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_RESERVE = 4096  # bytes for the last words


class TraceFile:
    """``limit``: bytes. ``warn`` is told once why the file has ended before the job. ConfigError if there is none."""

    def __init__(self, path: str, limit: int, warn: Callable[[str], None]) -> None:
        self.path = path
        self.ended = False  #: nothing is written any more
        self._limit = limit
        self._warn = warn
        self._size = 0
        try:
            # Not to wait for the reader of a pipe: the job has other things to do.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
            self._fd = os.open(path, flags, 0o666)
        except OSError as error:
            raise ConfigError(f"--timeline {path}: it cannot be written: {error}") from error
        self._put(b"[\n")

    def write(self, events: List[TraceEvent], last_words: Callable[[], List[TraceEvent]]) -> None:
        """Write ``events``, or ``last_words`` if there is no room any more."""
        if self.ended or not events:
            return
        data = _lines(events)
        if self._size + len(data) <= self._limit - _RESERVE:
            return self._put(data)
        self._put(_lines(last_words()))
        self._warn(f"the timeline {self.path} ends here: it has its {self._limit / 1e6:g} MB (--timeline-mb)")
        self.close()

    def finish(self, events: List[TraceEvent]) -> None:
        """Write the last events and the end of the array. Idempotent."""
        if not self.ended:
            self._put(_lines(events)[:-2] + b"\n]\n")
            self.close()

    def close(self) -> None:
        """Write no more. Idempotent."""
        if not self.ended:
            self.ended = True
            os.close(self._fd)

    def _put(self, data: bytes) -> None:
        self._size += len(data)
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._warn(f"the timeline {self.path} ends here, as it cannot be written: {error}; the job goes on")
            self.close()


def _lines(events: List[TraceEvent]) -> bytes:
    return "".join(f"{_encode(event)},\n" for event in events).encode(errors="replace")
