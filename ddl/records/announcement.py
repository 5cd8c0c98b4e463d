"""How a rank passes its record to its launcher, which can then read it whatever becomes of the rank.

The launcher has a Unix socket, and tells ranks its name (DDL_RECORDS). At ``ddl.init`` a rank sends the memfd with its
record there, in a datagram: so it arrives even if the rank ends before anybody has read it.
"""

from __future__ import annotations

import array
import os
import secrets
import socket
import struct
from typing import List, Tuple

__all__ = ["RecordsSocket", "announce"]

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: unix(7)
_PATIENCE = 1.0  # seconds


def announce(name: str, memory_fd: int) -> bool:
    """Pass the memfd of this process's arena to the launcher behind ``name``; return whether it is there to take it.

    A launcher that is gone, or has not answered for ``_PATIENCE``, misses this rank's record, and no more.
    """
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory_fd]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_PATIENCE)  # some kernels queue ten datagrams only, and a host may have more ranks
        try:
            sock.connect("\0" + name)
            sock.sendmsg([b"record"], [rights])
        except OSError:
            return False
    return True


class RecordsSocket:
    """The launcher's side. ``name`` is what ranks need to know; only processes of this user, and root, are heard."""

    def __init__(self) -> None:
        self.name = f"ddl-records-{os.getpid()}-{secrets.token_hex(8)}"
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._sock.bind("\0" + self.name)
        self._sock.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a record has come."""
        return self._sock.fileno()

    def receive(self) -> List[Tuple[int, int]]:
        """Return the processes that have announced their records since, and the descriptors of those, to be closed."""
        come: List[Tuple[int, int]] = []
        room = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(array.array("i").itemsize)
        while True:
            try:
                _, ancillary, _, _ = self._sock.recvmsg(64, room, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return come
            pid, uid, fds = 0, -1, array.array("i")
            for _, kind, data in ancillary:
                if kind == socket.SCM_RIGHTS:
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                elif kind == socket.SCM_CREDENTIALS:
                    pid, uid, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
            if uid in (0, os.getuid()) and len(fds) == 1:
                come.append((pid, fds[0]))
            else:
                for fd in fds:
                    os.close(fd)

    def close(self) -> None:
        """Hear nobody any more. Idempotent."""
        self._sock.close()
