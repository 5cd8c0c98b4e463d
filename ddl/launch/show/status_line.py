"""The line on the terminal that shows a job's state. Output of ranks replaces it, and the next one comes below."""

from __future__ import annotations

import os
from typing import Optional

from ddl import clock
from ddl.launch.agent.job_watch import INTERVAL, JobNow, status_text
from ddl.launch.agent.output import ERASE, Sink
from ddl.launch.ask.config import RunConfig

__all__ = ["StatusLine"]


class StatusLine:
    """Writes the last line of a terminal again and again. ``sink``: of that terminal."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._next = 0.0
        self._shown = False

    @classmethod
    def if_wanted(cls, sink: Sink, config: RunConfig) -> Optional[StatusLine]:
        """Return one where somebody looks at it; what ``--verbose`` prints would get mixed up with it."""
        wanted = sink.terminal and not config.quiet and not config.verbose
        return cls(sink) if wanted else None

    def show(self, now: JobNow, elapsed: float) -> None:
        """Show the state of a job that has run for ``elapsed`` seconds; once in a second at most.

        If a rank has a progress bar there, or asks something, nothing is shown.
        """
        if clock.now() < self._next or self._sink.has_line_of_another(self):
            return
        self._next = clock.now() + INTERVAL / 2
        columns = os.get_terminal_size(self._sink.fd).columns
        self._sink.put(ERASE + f"ddlrun: {status_text(now, elapsed)}"[: columns - 1].encode() + b"\r", self)
        self._shown = True

    def hide(self) -> None:
        """Take the line away, if it is the last one."""
        if self._shown and not self._sink.has_line_of_another(self):
            self._sink.put(ERASE + b"\r", self)
