"""A vote cell in memory that the processes of a host share: what a rank has said as a voter outlives it.

The owner passes the descriptor to the ranks of its host when they swap their arenas (peer_handshake.py). Nobody reads
it while the owner lives. After its death several may speak for it, so the cell is locked from ``load`` to ``release``;
the kernel unlocks for a process that dies. It has two slots, and a word that says which one is valid; so a death while
the other one is written changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
from typing import Optional

from ddl.errors import InternalError
from ddl.store.membership.acceptor import VoteCell
from ddl.store.membership.records import Accepted, BallotNumber, GenerationRecord

__all__ = ["SharedCell"]

_PLACE = 512 << 10  #: bytes for one state, of which only what is used takes memory
_HEAD = 4096
_WORD = struct.Struct("<I")


class SharedCell(VoteCell):
    """A ``VoteCell`` in the memory behind ``fd``, which it owns. Used by one thread at a time in each process."""

    def __init__(self, fd: int, state: Optional[VoteCell] = None) -> None:
        self.fd = fd
        self._locked = False
        if state is not None:
            os.ftruncate(fd, _HEAD + 2 * _PLACE)
        self._memory = mmap.mmap(fd, _HEAD + 2 * _PLACE)
        if state is not None:
            super().__init__(state.record, state.promised, state.accepted)
            self.keep()
        else:
            self.load()
        self.release()

    @classmethod
    def create(cls, state: VoteCell) -> SharedCell:
        """Return a new cell with what is in ``state``."""
        return cls(os.memfd_create("ddl-vote", os.MFD_CLOEXEC), state)

    def load(self) -> None:
        """Lock the cell, and read it."""
        if not self._locked:
            fcntl.lockf(self.fd, fcntl.LOCK_EX)
            self._locked = True
        start = _HEAD + _PLACE * (_WORD.unpack_from(self._memory)[0] % 2)
        length = _WORD.unpack_from(self._memory, start)[0]
        record, promised, accepted = json.loads(self._memory[start + _WORD.size : start + _WORD.size + length])
        self.record, self.promised = GenerationRecord.parse(record), BallotNumber.parse(promised)
        self.accepted = Accepted.parse(accepted)

    def keep(self) -> None:
        """Write the cell: first the slot that is not valid, then the word that makes it valid."""
        accepted = None if self.accepted is None else self.accepted.message()
        text = json.dumps([self.record.message(), list(self.promised), accepted], separators=(",", ":")).encode()
        if len(text) > _PLACE - _WORD.size:
            raise InternalError(f"what a voter has said takes {len(text)} bytes, and its cell has {_PLACE}")
        place = (_WORD.unpack_from(self._memory)[0] + 1) % 2
        start = _HEAD + _PLACE * place
        self._memory[start + _WORD.size : start + _WORD.size + len(text)] = text
        _WORD.pack_into(self._memory, start, len(text))
        _WORD.pack_into(self._memory, 0, place)

    def release(self) -> None:
        """Unlock the cell: what was to be said is in it."""
        if self._locked:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)
            self._locked = False

    def close(self) -> None:
        """Let go of the memory. Idempotent."""
        with contextlib.suppress(OSError):
            self.release()
        if not self._memory.closed:
            self._memory.close()
            os.close(self.fd)
