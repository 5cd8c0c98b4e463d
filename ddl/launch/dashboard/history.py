"""The file of a job's history: records (records.py), a line of JSON each, compressed by gzip.

The file can be read even if ddlrun was killed: each record is flushed. It stays small: in the first hour it has a state
each second, after two hours one in two, after ten hours one in ten, and fewer if the job has very many ranks. When the
job ends, every state of the last two minutes is appended. So a reader sorts by time.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from pathlib import Path
from typing import BinaryIO, Deque, Dict, Iterator, Tuple

from ddl.errors import ConfigError
from ddl.launch.dashboard.records import VERSION, Record

__all__ = ["HistoryWriter", "read_history"]

_FULL = 3600.0  # seconds in which each state is written
_DENSE = 128 << 20  # bytes of JSON, before compression, after which there are fewer states
_LIMIT = 512 << 20  # bytes after which states and lines are written at the end only: a browser is to show them
_LINES_LIMIT = 64 << 20  # the same, of lines
_AT_END = 120  # states, and as many records of lines
_CHUNK = 1 << 20
_GZIP = 31  # zlib's name for its largest window, and the head of gzip


class HistoryWriter:
    """Used by one thread. It closes ``file``, which has no buffer, so that no error comes later than its write."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._due = 0.0
        self._left: Dict[str, Deque[bytes]] = {kind: deque(maxlen=_AT_END) for kind in ("state", "lines")}
        self._written = 0  # bytes
        self._of_lines = 0
        self.problem = ""  #: why nothing more is written

    def add(self, record: Record, data: bytes) -> None:
        """Write a record, which is ``data`` as JSON, if it is due."""
        kind, elapsed = record["k"], record["t"]
        full = self._written > _LIMIT or (kind == "lines" and self._of_lines > _LINES_LIMIT)
        if kind in self._left and (full or (kind == "state" and elapsed < self._due)):
            self._left[kind].append(data)
            return
        if kind == "state":
            self._due = elapsed + max(0.0, elapsed / _FULL - 0.5) * max(1.0, self._written / _DENSE)
        self._of_lines += len(data) if kind == "lines" else 0
        self._write(data)

    def close(self) -> None:
        """Write what was left out of the last minutes, and the end of the file. Idempotent."""
        for left in self._left.values():
            while left:
                self._write(left.popleft())
        if not self._file.closed:
            self._put(self._packer.flush())
            self._file.close()

    def _write(self, data: bytes) -> None:
        self._written += len(data) + 1
        self._put(self._packer.compress(data + b"\n") + self._packer.flush(zlib.Z_SYNC_FLUSH))

    def _put(self, data: bytes) -> None:
        try:
            while data and not self.problem:
                data = data[self._file.write(data) :]
        except OSError as error:
            self.problem = f"the history ends here: {error}"


def read_history(path: Path) -> Iterator[Tuple[Record, bytes]]:
    """Yield the records of a file, each with its JSON; of one that ends amidst a record, those before.

    ConfigError if it is no such file, or is of another version.
    """
    first = True
    for line in _lines(path):
        try:
            record = json.loads(line)
            kind, version = record["k"], record.get("version")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}: it is no history that ddlrun --history has written: {error}") from error
        if first and (kind != "job" or version != VERSION):
            raise ConfigError(f"{path}: it is of another version of DDL; show it with the one that has written it")
        first = False
        yield record, line
    if first:
        raise ConfigError(f"{path}: it has no record; was the job ended before it began?")


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines."""
    unpacker = zlib.decompressobj(_GZIP)
    rest = b""
    try:
        with path.open("rb") as file:
            while data := file.read(_CHUNK):
                *lines, rest = (rest + unpacker.decompress(data)).split(b"\n")
                yield from lines
    except (OSError, zlib.error) as error:
        raise ConfigError(f"{path}: it cannot be read: {error}") from error
