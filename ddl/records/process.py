"""What the kernel says of a process: whether it runs, sleeps, is stopped, or has ended, where, and why."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, List, Optional, Tuple

from ddl.records.dump import ProcessView

__all__ = ["OutOfMemory", "open_memfds", "process_name", "process_state", "process_view"]

#: By the letters of proc(5).
_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits in the kernel for a device",
    "T": "is stopped",
    "t": "is stopped by a debugger",
    "Z": "has ended",
    "X": "has ended",
}
_TICK = os.sysconf("SC_CLK_TCK")
_ALL_PROCESSES = "pid:[4026531836]"  # the kernel's own namespace: not in a container


def process_state(pid: int) -> str:
    """Return what process ``pid`` does: ``runs``, ``sleeps``, ``is stopped``, … or ``has ended``."""
    fields = _stat(pid)
    return "has ended" if fields is None else _STATES.get(fields[0], f"is in state {fields[0]}")


def process_name(pid: int) -> str:
    """Return the name by which the kernel calls a process, at most 15 characters; empty if it has ended."""
    return _text(f"/proc/{pid}/comm").rstrip("\n")


def open_memfds(pid: int, name: str) -> Iterator[int]:
    """Yield descriptors, which the caller closes, of the memfds of process ``pid`` that are called ``name``.

    None if it has ended; PermissionError if it is another user's.
    """
    folder = f"/proc/{pid}/fd"
    try:
        for number in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
                if os.readlink(f"{folder}/{number}") == f"/memfd:{name} (deleted)":
                    yield os.open(f"{folder}/{number}", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return


def process_view(pid: int) -> ProcessView:
    """Return what the kernel says of process ``pid`` now. What this user may not read is left empty."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return ProcessView(pid, "has ended")
    schedule = _text(f"/proc/{pid}/schedstat").split()
    where = _text(f"/proc/{pid}/wchan")
    return ProcessView(
        pid,
        process_state(pid),
        waits_in="" if where == "0" else where,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICK,  # utime and stime
        run_delay=int(schedule[1]) / 1e9 if len(schedule) > 1 else None,
        throttled=_throttled(pid),
    )


class OutOfMemory:
    """Whether the kernel has killed a process of this host for want of memory, since this was made.

    It asks the kernel's log, which only root may read on many hosts, the count of the control group of this process,
    which the processes that it has started share unless somebody has moved them, and the count of the host.
    """

    def __init__(self) -> None:
        self._begin = self._kills()
        self._begin_of_host = _kills_of_host()
        self._lines = len(_kernel_log())

    def words(self, pid: int, name: str) -> Optional[str]:
        """Return the kernel's words on process ``pid``, or on its control group.

        Empty: the kernel has killed something else, or nothing. None: it does not tell. In a container the kernel knows
        the process by another number, so its ``name`` (proc(5): comm) has to do.
        """
        lines = [line for line in _kernel_log()[self._lines :] if "Killed process " in line]
        its_own = [line for line in lines if f"Killed process {pid} ({name})" in line]
        if its_own or (lines and os.readlink("/proc/self/ns/pid") == _ALL_PROCESSES):
            return its_own[-1] if its_own else ""
        like_it = [line for line in lines if f" ({name})" in line]
        kills = self._kills() - self._begin
        if like_it or kills > 0:
            return like_it[-1] if like_it else f"it has killed {kills} in this control group"
        of_host = _kills_of_host()
        return "" if of_host is not None and of_host == self._begin_of_host else None

    @staticmethod
    def _kills() -> int:
        """Return how many processes of the control group it has killed; of version 2 or of version 1."""
        second, first = _group_file("self", "memory", "memory.events", "memory.oom_control")
        return _value(second, "oom_kill") + _value(first, "oom_kill")


def _kills_of_host() -> Optional[int]:
    """Return how many processes the kernel has killed for want of memory; None: it does not tell (before 4.13)."""
    text = _text("/proc/vmstat")
    return _value(text, "oom_kill") if "\noom_kill " in text else None


def _throttled(pid: int) -> float:
    """Return the seconds in which the control group of a process was not allowed to run."""
    second, first = _group_file(str(pid), "cpu", "cpu.stat", "cpu.stat")
    return _value(second, "throttled_usec") / 1e6 + _value(first, "throttled_time") / 1e9


def _group_file(process: str, controller: str, second: str, first: str) -> Tuple[str, str]:
    """Return the texts of a file of a process's control groups: of version 2, and of version 1 for ``controller``."""
    texts = ["", ""]
    for line in _text(f"/proc/{process}/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            texts[0] += _text(f"/sys/fs/cgroup{group}/{second}")
        elif controller in controllers.split(","):
            texts[1] += _text(f"/sys/fs/cgroup/{controller}{group}/{first}")
    return texts[0], texts[1]


def _value(text: str, name: str) -> int:
    """Return the number behind ``name`` in lines of a name and a number each; 0: it is not there."""
    return sum(int(fields[1]) for fields in map(str.split, text.splitlines()) if fields[:1] == [name])


def _kernel_log() -> List[str]:
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # only root may, or there is none in this container
        return []
    lines: List[str] = []
    try:
        while True:
            try:
                lines.append(os.read(fd, 8192).decode(errors="replace").split(";", 1)[-1].split("\n")[0])
            except BrokenPipeError:  # what we were about to read has been overwritten
                continue
            except BlockingIOError:
                return lines
    finally:
        os.close(fd)


def _stat(pid: int) -> Optional[List[str]]:
    """Return the fields of proc(5)'s stat from the state on; None if the process is gone."""
    text = _text(f"/proc/{pid}/stat")
    return text[text.rindex(")") + 2 :].split() if text else None  # the name before may hold anything, also ")"


def _text(path: str) -> str:
    """Return the text of a file of the kernel; empty if it is not there, or not for this user."""
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""
