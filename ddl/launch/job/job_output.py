"""Where a job's output and errors go, and what ddlrun itself says between them."""

from __future__ import annotations

import signal
import sys
from typing import Optional, Tuple

from ddl.launch.agent.output import Sink
from ddl.launch.ask.config import RunConfig

__all__ = ["JobOutput"]


class JobOutput:
    """``sinks``: one for the output, one for the errors; None: this process's own."""

    def __init__(self, config: RunConfig, sinks: Optional[Tuple[Sink, Sink]] = None) -> None:
        self._verbose = config.verbose
        if sinks is None:
            output = Sink(1)
            sinks = output, Sink(2, output)
        self.sinks = sinks

    def tell(self, *lines: str) -> None:
        """Print lines of ddlrun's own on stderr, behind what the ranks have printed there."""
        self.sinks[1].put("".join(f"ddlrun: {line}\n" for line in lines).encode(), self)

    def say(self, text: str) -> None:
        """Tell the user, if he wants to know."""
        if self._verbose:
            print(f"ddlrun: {text}", file=sys.stderr, flush=True)

    def report_stop(self, number: int) -> int:
        """Say that somebody has stopped the job by this signal; return ddlrun's exit status."""
        print(f"ddlrun: stopped by {signal.Signals(number).name}", file=sys.stderr)
        return 128 + number

    @property
    def last_on_stderr(self) -> object:
        """Whose lines were printed last there."""
        return self.sinks[1].last

    def write_out(self) -> None:
        """Write what still waits, for as long as somebody reads it."""
        for sink in self.sinks:
            while sink.waiting and sink.write_some():
                pass
