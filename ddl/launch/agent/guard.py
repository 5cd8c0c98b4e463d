"""The guard of ddlrun or of an agent: a process that only waits until its parent ends, and then cleans up.

If its parent has ended without ``dismiss`` (it was killed), the guard kills the process groups that it was told of. The
ranks of an elastic job may go on instead. Then the guard has the read ends of their output pipes as well, which it got
over a socket (SCM_RIGHTS). It goes on copying their output to where its parent would have, until they have all ended,
so a rank that prints gets no error.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import shutil
import signal
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, NoReturn, Optional, Sequence, Set, Tuple

from ddl.launch.agent.grace import FORWARDED
from ddl.launch.agent.output import Sink, Stream
from ddl.launch.agent.processes import signal_group

__all__ = ["Guard", "Outflow"]

_LONGEST = 1 << 16  # bytes of a message
_MOST = 8  # descriptors in a message


@dataclass(frozen=True)
class Outflow:
    """Where the guard is to write what comes from a pipe: to its own descriptor ``fd``, or to the file ``path``."""

    fd: int
    prefix: str
    timestamps: bool
    path: Optional[str] = None


class Guard:
    """Made before there are any threads or descriptors that it would inherit.

    ``lasting``: it may have to write what it gets by ``keep_output``, so it holds standard output and errors open.
    ``scratch``: a directory that it removes if this process is killed.
    """

    def __init__(self, scratch: Optional[Path] = None, *, lasting: bool = False) -> None:
        theirs, self._socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _stand_guard(theirs, scratch, lasting)
        theirs.close()

    def add(self, leader: int) -> None:
        """Also kill the group of ``leader``."""
        self._send({"kill": leader})

    def keep_output(self, rank: int, pipes: Sequence[Tuple[int, Outflow]]) -> None:
        """Do not kill process ``rank``, but take over its output: ``pipes`` are descriptors and where they lead to."""
        self._send({"keep": rank, "to": [asdict(outflow) for _, outflow in pipes]}, [fd for fd, _ in pipes])

    def forget(self, process: int) -> None:
        """That process has ended, and its pipes are at their end."""
        self._send({"forget": process})

    def dismiss(self) -> None:
        """All is well and nothing is left: end the guard."""
        self._send({"dismiss": True})
        self._socket.close()
        os.waitpid(self.pid, 0)

    def _send(self, message: Dict[str, Any], fds: Sequence[int] = ()) -> None:
        if self._socket.fileno() < 0:
            return  # dismissed; what still ran then, the script that names hosts, is ended by its owner
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # somebody has killed it; nobody else can help
            self._socket.sendmsg([json.dumps(message).encode()], rights)


class _Duties:
    """What a guard has been told."""

    def __init__(self) -> None:
        self.dismissed = False
        self.leaders: Set[int] = set()
        self.pipes: Dict[int, List[Tuple[int, Outflow]]] = {}  # by process

    def take(self, message: Dict[str, Any], fds: Iterable[int]) -> None:
        self.dismissed |= "dismiss" in message
        if "kill" in message:
            self.leaders.add(message["kill"])
        if "keep" in message:
            self.pipes[message["keep"]] = list(zip(fds, (Outflow(**fields) for fields in message["to"])))
        if "forget" in message:
            self.leaders.discard(message["forget"])
            for fd, _ in self.pipes.pop(message["forget"], []):
                os.close(fd)


def _stand_guard(theirs: socket.socket, scratch: Optional[Path], lasting: bool) -> NoReturn:
    try:
        os.setsid()  # out of reach of the terminal's Ctrl-C, and of a kill of ddlrun's whole group
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, *FORWARDED):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        # The reader of ddlrun's output must not wait for this process, unless there is still output to come.
        for fd in (0,) if lasting else (0, 1, 2):
            os.dup2(null, fd)
        duties = _listen(theirs)
        if not duties.dismissed:
            for leader in duties.leaders:
                signal_group(leader, signal.SIGKILL)
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
            _copy(duties)
    finally:
        os._exit(0)


def _listen(theirs: socket.socket) -> _Duties:
    """Return what we were told, when the other end is closed."""
    duties = _Duties()
    size = array.array("i").itemsize
    while True:
        data, ancillary, _, _ = theirs.recvmsg(_LONGEST, socket.CMSG_SPACE(_MOST * size))
        if not data:
            return duties
        fds = array.array("i")
        for _, _, rights in ancillary:
            fds.frombytes(rights[: len(rights) - len(rights) % size])
        duties.take(json.loads(data), fds)


def _copy(duties: _Duties) -> None:
    """Write what processes print until all have ended, or until nobody reads it any more (then read on, at least)."""
    sinks = {1: Sink(1), 2: Sink(2)}
    if duties.pipes:
        text = f"ddlrun has ended without a word (killed?); {len(duties.pipes)} of its processes here go on without it"
        sinks[2].put(f"ddlrun: {text}; none is replaced any more\n".encode(), duties)
    streams: Dict[int, Stream] = {}
    for fd, outflow in (pipe for pipes in duties.pipes.values() for pipe in pipes):
        pipe = os.fdopen(fd, "rb", buffering=0)
        if outflow.path is None:
            streams[fd] = Stream(pipe, sinks[outflow.fd], outflow.prefix.encode(), outflow.timestamps)
        else:
            streams[fd] = Stream(pipe, None, file=open(outflow.path, "ab", buffering=0))  # behind what ddlrun wrote
    poller = select.poll()
    for fd in streams:
        poller.register(fd, select.POLLIN)
    _write_out(sinks)
    while streams:
        for fd, _ in poller.poll():
            if not streams[fd].pump():
                poller.unregister(fd)
                streams.pop(fd).close()
        _write_out(sinks)


def _write_out(sinks: Dict[int, Sink]) -> None:
    """Write all, and wait for a slow reader as the processes would: there is nothing else to do."""
    for sink in sinks.values():
        try:
            while sink.waiting and sink.write_some():
                pass
        except OSError:  # a terminal that is gone, or a disk that is full: nobody can be told
            sink.drop()
