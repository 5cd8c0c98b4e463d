"""The processes on this machine that start agents on other hosts (ssh, mpiexec, srun), and their own output."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

from ddl import clock
from ddl.errors import ConfigError
from ddl.launch.agent.control import INVITATION, Invitation
from ddl.launch.agent.grace import KILL_GRACE
from ddl.launch.agent.guard import Guard
from ddl.launch.agent.output import Outlet, Stream
from ddl.launch.agent.processes import signal_group
from ddl.launch.launchers import Start

__all__ = ["Launches"]


@dataclass
class _Launch:
    start: Start
    process: subprocess.Popen[bytes]
    streams: Tuple[Stream, ...]
    status: Optional[int] = None


class Launches:
    """All of one job. ``reading`` are the streams that somebody must pump when they are readable."""

    def __init__(self, sink: Outlet) -> None:
        self.reading: List[Stream] = []
        self._sink = sink
        self._launches: List[_Launch] = []

    def begin(self, start: Start, invitation: Invitation, guard: Optional[Guard]) -> None:
        """Start one, and hand it the invitation. ConfigError if its program cannot be run.

        ``guard`` ends it if ddlrun is killed; None: it shall go on.
        """
        environ = {**os.environ, **start.environ}
        if not start.stdin:
            environ[INVITATION] = invitation.text()
        try:
            process = subprocess.Popen(
                start.command,
                env=environ,
                stdin=subprocess.PIPE if start.stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",  # python -m would import from the directory it stands in; agents go to ours by themselves
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise ConfigError(f"{start.command[0]} cannot be started: {error}") from error
        if guard is not None:
            guard.add(process.pid)
        prefix = f"[{start.label}] ".encode()
        pipes = (process.stdout, process.stderr)
        streams = tuple(Stream(pipe, self._sink, prefix) for pipe in pipes if pipe is not None)
        self.reading += streams
        self._launches.append(_Launch(start, process, streams))
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended at once; its status will tell
                process.stdin.write(invitation.text().encode() + b"\n")

    def ended(self) -> Iterator[Tuple[Start, str]]:
        """Yield those that have ended since the last look, each with its status and last words."""
        for launch in self._launches:
            if launch.status is None:
                launch.status = launch.process.poll()
                if launch.status is not None:
                    self._read_out(launch)
                    tail = [line for stream in launch.streams for line in stream.tail]
                    program = os.path.basename(launch.start.command[0])
                    last_lines = "; ".join(tail[-3:]) or "it said nothing"
                    remedy = launch.start.remedies.get(launch.status)
                    yield (
                        launch.start,
                        f"{program} ended with status {launch.status} before DDL had begun there: {last_lines}"
                        + (f"; {remedy}" if remedy else ""),
                    )

    def _read_out(self, launch: _Launch) -> None:
        for stream in launch.streams:
            while stream in self.reading and select.select([stream], [], [], 0)[0]:
                if not stream.pump():
                    self.reading.remove(stream)

    def close(self) -> None:
        """Their agents have ended, or cannot be reached: give them a moment, then end them."""
        deadline = clock.now() + KILL_GRACE
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            for launch in self._launches:
                if launch.process.poll() is None and number:
                    signal_group(launch.process.pid, number)
            while clock.now() < deadline and any(launch.process.poll() is None for launch in self._launches):
                time.sleep(0.01)
            deadline = clock.now() + KILL_GRACE
        for launch in self._launches:
            launch.process.wait()
            self._read_out(launch)  # an agent's last words, say
            for stream in launch.streams:
                stream.close()
            if launch.process.stdin is not None:
                launch.process.stdin.close()
