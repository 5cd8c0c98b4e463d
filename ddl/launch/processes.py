"""Leaves no process behind, by what Linux offers: parent-death signal, subreaper, process groups, and a guard.

Each rank leads a session of its own, so one signal to its process group reaches its children too. A child that left the
group is found because ddlrun is the *subreaper*: a process that loses its parent becomes ddlrun's child. If ddlrun
itself is killed, the kernel kills the ranks (parent-death signal), and the guard, a process that only waits for
ddlrun's end, kills what is left of their groups.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from pathlib import Path
from typing import Callable, Dict, NoReturn, Optional, Set

from ddl.errors import ResourceError

__all__ = ["Guard", "adopt_orphans", "children", "die_with_parent", "signal_group"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own."""
    if _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise ResourceError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def die_with_parent(parent: Optional[int] = None) -> Callable[[], None]:
    """Return what a new child must call before exec so that the kernel kills it when its parent *thread* ends.

    ``parent``: who that is, for a child that asks for itself; without, this process.

    So the thread that starts ranks must be ddlrun's main thread. Everything is looked up here, before the fork: the
    child only makes two system calls.
    """
    prctl = _libc().prctl
    parent = os.getpid() if parent is None else parent

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before we had said so
            os._exit(1)

    return in_child


def signal_group(leader: int, number: int) -> None:
    """Send a signal to the process group of ``leader``, which may be gone."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        # Gone, or (a group of which we may signal no member) changed to another user, which is then not ours to end.
        return


def children() -> Dict[int, str]:
    """Return this process's children, by pid, and their states as in proc(5); "Z" is dead but not waited for."""
    me = os.getpid()
    states = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:  # it has ended since we listed it
            continue
        state, parent = text[text.rindex(b")") + 2 :].split()[:2]  # the name before may hold anything, also ")"
        if int(parent) == me:
            states[int(name)] = state.decode()
    return states


class Guard:
    """A process that kills the given process groups if this process ends without having called ``dismiss``.

    Then it also removes the directory ``scratch``. Made before there are any threads or descriptors that it would
    inherit.
    """

    def __init__(self, scratch: Optional[Path] = None) -> None:
        reader, self._pipe = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _stand_guard(reader, self._pipe, scratch)
        os.close(reader)

    def add(self, leader: int) -> None:
        """Also kill the group of ``leader``."""
        os.write(self._pipe, b"%d\n" % leader)

    def dismiss(self) -> None:
        """All is well and nothing is left: end the guard."""
        try:
            os.write(self._pipe, b"0\n")
        except BrokenPipeError:
            pass  # somebody killed it before us; there is nothing left that it could have done
        os.close(self._pipe)
        os.waitpid(self.pid, 0)


def _stand_guard(reader: int, writer: int, scratch: Optional[Path]) -> NoReturn:
    try:
        os.setsid()  # out of reach of the terminal's Ctrl-C, and of a kill of ddlrun's whole group
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        os.close(writer)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):  # the reader of ddlrun's output must not wait for this process
            os.dup2(null, fd)
        text = b""
        while True:
            piece = os.read(reader, 65536)
            if not piece:
                break
            text += piece
        leaders: Set[int] = {int(line) for line in text.split()}
        if 0 not in leaders:
            for leader in leaders:
                signal_group(leader, signal.SIGKILL)
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
    finally:
        os._exit(0)
