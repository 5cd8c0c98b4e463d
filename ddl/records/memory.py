"""Finds the memory in which a process records what it does, and reads it, whatever that process does.

The memory is the process's arena, a memfd. ``/proc/PID/fd`` leads to it for root and for the same user, also while the
process hangs, sleeps in the kernel or is stopped. Whoever has opened it before can read it after the process has ended.
"""

from __future__ import annotations

import os
from typing import List, Optional, Union

from ddl.errors import ProtocolError
from ddl.records.layout import MOST, ROOT_BYTES, ProcessRecord, Wanted, read_process
from ddl.records.process import open_memfds

__all__ = ["ProcessMemory", "processes_with_records"]

_NAME = "ddl"  # csrc/memory/arena.cc says so


class ProcessMemory:
    """The memory of one process, open until ``close``. ``pid``: as this process sees it."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd

    @classmethod
    def find(cls, pid: int) -> Optional[ProcessMemory]:
        """Return the memory of ``pid``; None if it has none (yet). PermissionError if it is another user's."""
        for fd in open_memfds(pid, _NAME):
            memory = cls(pid, fd)
            if memory._is_own():
                return memory
            memory.close()  # it was inherited from a parent, or is a neighbour's
        return None

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes there. ``ProtocolError`` if the memory is shorter."""
        data = os.pread(self._fd, size, offset)
        if len(data) != size:
            raise ProtocolError(f"the record of process {self.pid} ends at byte {offset + len(data)}")
        return data

    def is_same(self, other: ProcessMemory) -> bool:
        """Return whether both are of the same process, and not of one that has begun anew."""
        own, others = os.fstat(self._fd), os.fstat(other._fd)
        return self.pid == other.pid and (own.st_dev, own.st_ino) == (others.st_dev, others.st_ino)

    def record(self, *, last: Union[int, Wanted] = MOST) -> ProcessRecord:
        """Return what the process has recorded, with the ``last`` operations of each communicator.

        ``ProtocolError`` if that is nothing, or of another version.
        """
        return read_process(self.read, last=last)

    def close(self) -> None:
        """Let go of the memory. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _is_own(self) -> bool:
        try:
            record = read_process(self.read, last=0) if len(os.pread(self._fd, 1, ROOT_BYTES - 1)) else None
        except ProtocolError:
            return False
        return record is not None and record.pid in _names_of(self.pid)


def processes_with_records() -> List[ProcessMemory]:
    """Return the memory of all processes of this host that record, and that this user may read, by pid."""
    memories = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            memory = ProcessMemory.find(pid)
        except PermissionError:
            continue
        if memory is not None:
            memories.append(memory)
    return memories


def _names_of(pid: int) -> List[int]:
    """Return the numbers of a process, also the one that it has in a container of its own."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("NSpid:"):
                    return [int(number) for number in line.split()[1:]]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid]
