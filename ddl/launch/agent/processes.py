"""Leaves no process behind, by what Linux offers: parent-death signal, subreaper, process groups, and a guard.

Each rank leads a session of its own, so one signal to its process group reaches its children too. A child that left the
group is found because ddlrun is the *subreaper*: a process that loses its parent becomes ddlrun's child. If ddlrun
itself is killed, the kernel kills the ranks (parent-death signal), and the guard (guard.py), a process that only waits
for ddlrun's end, kills what is left of their groups.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from pathlib import Path
from typing import Callable, Dict, Optional

from ddl.errors import ResourceError

__all__ = ["adopt_orphans", "children", "die_with_parent", "open_standard_streams", "reads_input", "signal_group"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_READ = {"x86_64": "0", "aarch64": "63"}  # the number of read(2)


def reads_input(pid: int) -> bool:
    """Return whether a process, or one that it has started, is stopped in a read of its standard input."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()
        # "0 0x5 …": the number of the call and its arguments. A debugger opens /dev/stdin anew.
        if len(words) > 1 and words[0] == _READ.get(os.uname().machine):
            read, standard = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (int(words[1], 16), 0))
            if read == standard:
                return True
        started = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:  # it has ended, or belongs to somebody else
        return False
    return any(reads_input(int(child)) for child in started)


def open_standard_streams() -> None:
    """Open ``/dev/null`` in place of standard streams that are closed, before other files take their numbers."""
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, fd)  # ranks inherit it
            if opened != fd:
                os.close(opened)
        if getattr(sys, name) is None:  # so Python leaves it where it found it closed
            setattr(sys, name, open(fd, mode, closefd=False))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own.

    A program that qemu runs for another processor cannot be that. Then a child of a rank that has left the rank's
    process group, and outlives it, is not ended with the job.
    """
    if _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        if number == errno.EINVAL:
            return
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
