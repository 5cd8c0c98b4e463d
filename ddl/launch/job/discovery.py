"""Asks the user's ``--host-discovery-script`` each second which hosts there are, without ever waiting for it.

The script runs in a process group of its own, and its output is read by ddlrun's loop as it comes. Whatever it does
(prints rubbish or megabytes, ends with another status than 0, hangs) becomes a ``DiscoveryFailed`` with a text, and it
is asked again a second later. Horovod's thread for this could end silently (its issues #3436 and #3490).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from functools import partial
from typing import Callable, Dict, List, Optional, Tuple, Union

from ddl.errors import ConfigError
from ddl.launch.agent.loop import Handlers
from ddl.launch.agent.processes import signal_group
from ddl.launch.ask.hosts import Host, merged, parse_host
from ddl.launch.job.elastic_events import DiscoveryFailed, HostsSeen

__all__ = ["PATIENCE", "PERIOD", "Discovery", "hosts_of"]

PERIOD = 1.0  #: seconds between two beginnings of the script
PATIENCE = 5.0  #: seconds that it may take
LONGEST_OUTPUT = 1 << 20  #: bytes
_SHOWN = 200  # characters of its output in a message

_News = Union[HostsSeen, DiscoveryFailed]


def hosts_of(text: str, slots_per_host: Optional[int]) -> Tuple[Host, ...]:
    """Read the lines ``host:slots`` or ``host`` of a script's output. ConfigError names the line."""
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        host = parse_host(line.strip(), f"line {number} of its output, {line.strip()[:_SHOWN]!r}")
        if host.slots is None and slots_per_host is None:
            raise ConfigError(
                f"line {number} of its output, {host.name!r}, has no slots; print HOST:SLOTS, or say --slots-per-host"
            )
        hosts.append(Host(host.name, slots_per_host if host.slots is None else host.slots))
    return merged(hosts, "its output")


class Discovery:
    """Runs the script for ddlrun's loop: ``handlers`` and ``deadline`` say what to wait for, ``look`` what came of it.

    ``started`` and ``ended`` are told the pid of each run, so that none outlives ddlrun.
    """

    def __init__(
        self,
        script: str,
        slots_per_host: Optional[int],
        started: Callable[[int], None] = lambda pid: None,
        ended: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self._script = script
        self._slots_per_host = slots_per_host
        self._started = started
        self._ended = ended
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._output: Dict[int, int] = {}  # which of ``_said`` it is, by the descriptor that is still open
        self._said: List[bytes] = [b"", b""]  # on stdout, on stderr
        self._due = 0.0  # when the script is to be run the next time
        self._limit = 0.0  # when this run must have ended

    def handlers(self) -> Handlers:
        """Return what to read while the script runs."""
        return {fd: (select.POLLIN, partial(self._read, fd)) for fd in self._output}

    def deadline(self) -> float:
        """Return when to call ``look`` at the latest."""
        return self._due if self._process is None else self._limit

    def look(self, now: float) -> Optional[_News]:
        """Run the script if it is time; return what it has said if it has ended."""
        if self._process is None:
            return self._begin(now) if now >= self._due else None
        # SIGCHLD wakes the loop. Until the script is waited for, its pid is its own.
        result = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is not None:
            self._read_on()  # a child that it has left behind may hold the pipes open
        if self._flooded:
            self._end()
            return DiscoveryFailed("flood", f"{self._script} prints more than {LONGEST_OUTPUT >> 20} MiB; it was ended")
        if result is None and now >= self._limit:
            self._end()
            return DiscoveryFailed("hang", f"{self._script} has not ended within {PATIENCE:g} s, and was killed")
        if result is None:
            return None
        status = self._end()
        if status:
            status = status if status > 0 else 128 - status  # by a signal: as the shell says it
            return DiscoveryFailed("status", f"{self._script} ended with status {status}{self._last_words()}")
        return self._hosts()

    def close(self) -> None:
        """End a run that is under way."""
        if self._process is not None:
            self._end()

    def _begin(self, now: float) -> Optional[_News]:
        self._due = now + PERIOD
        self._limit = now + PATIENCE
        self._said = [b"", b""]
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", self._script],  # as Horovod does it, so it may have arguments
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            return DiscoveryFailed("start", f"{self._script} cannot be started: {error}")
        assert self._process.stdout is not None and self._process.stderr is not None
        self._output = {self._process.stdout.fileno(): 0, self._process.stderr.fileno(): 1}
        for fd in self._output:
            os.set_blocking(fd, False)
        self._started(self._process.pid)
        return None

    @property
    def _flooded(self) -> bool:
        return sum(map(len, self._said)) > LONGEST_OUTPUT

    def _read_on(self) -> None:
        for fd in list(self._output):
            with contextlib.suppress(BlockingIOError):
                while fd in self._output and not self._flooded:
                    self._read(fd)

    def _read(self, fd: int) -> None:
        data = os.read(fd, 1 << 16)
        self._said[self._output[fd]] += data
        if not data:
            del self._output[fd]

    def _end(self) -> int:
        """End the script and all that it has started; return its status."""
        process = self._process
        assert process is not None and process.stdout is not None and process.stderr is not None
        signal_group(process.pid, signal.SIGKILL)  # not waited for: the pid is still its own
        status = process.wait()
        self._ended(process.pid)
        process.stdout.close()
        process.stderr.close()
        self._output = {}
        self._process = None
        return status

    def _last_words(self) -> str:
        text = self._said[1].decode(errors="replace").strip()
        return f": {text[-_SHOWN:]}" if text else ""

    def _hosts(self) -> _News:
        try:
            return HostsSeen(hosts_of(self._said[0].decode(errors="replace"), self._slots_per_host))
        except ConfigError as error:
            return DiscoveryFailed("rubbish", f"{self._script} printed what names no hosts: {error}")
