"""Copies output from the ranks' pipes to the terminal or to files: whole lines, each with its rank's prefix.

One thread uses it, host_ranks.py's loop, which must never wait for the reader of ddlrun's output: a ``Sink`` queues,
and writes only what its descriptor takes at once. A line may end in a carriage return, so progress bars keep moving.

A line without an ending is passed on when the rank waits for its input (``input()``, a debugger), or when the line is
very long. Not before: a rank that prints in blocks stops in the middle of a line, and others would print in between. If
another rank does print before the rest comes, it begins a new line.
"""

from __future__ import annotations

import collections
import os
import re
import stat
import time
from typing import IO, Callable, Deque, List, Optional, Protocol

from ddl import clock
from ddl.launch.agent.tail import for_report

__all__ = [
    "BACKLOG_LIMIT",
    "ERASE",
    "LONGEST_LINE",
    "Outlet",
    "Sink",
    "Stream",
    "prefix_of",
]

BACKLOG_LIMIT = 1 << 20  #: bytes in a sink's queue above which nothing more should be read for it
LONGEST_LINE = 1 << 20  #: bytes; of what is longer, a part is passed on before its end has come
_PROMPT_SECONDS = 0.1  #: after which a rank that has printed a part of a line may be waiting for an answer
_LONGEST_WAIT = 2.0  #: seconds between two looks whether it is
TAIL_LINES = 100  # kept, of which a report shows some
_TAIL_WIDTH = 2000  # bytes kept of each line of the tail
ERASE = b"\x1b[K"  #: erases from the cursor to the end of the line
_ENDING = re.compile(rb"\r\n|\n|\r")


def prefix_of(rank: int, size: int) -> bytes:
    """Return ``[rank] ``, as wide for every rank of the job."""
    return f"[{rank:>{len(str(size - 1))}}] ".encode()


def _now() -> bytes:
    now = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d} ".encode()


class Outlet(Protocol):
    """Where lines go: a descriptor of this process (``Sink``), or ddlrun on another host (remote.py)."""

    fd: int  #: to poll while ``waiting``
    backlog: int  #: bytes that are on their way

    @property
    def waiting(self) -> bool:
        """Whether ``write_some`` has something to do."""

    def put(self, data: bytes, source: object) -> None:
        """Take lines of one source; the last one may go on in what comes next."""

    def write_some(self) -> bool:
        """Pass on what can be passed on at once; return False if nobody takes it any more."""


class _Cursor:
    """Where the next byte will stand."""

    source: Optional[object] = None  # whose line has not ended there; None: it is the beginning of a line
    returned = False  # that line stands where the next will be written over it: a progress bar


class Sink:
    """A descriptor that is written to without ever blocking, as long as ``write_some`` follows a POLLOUT."""

    def __init__(self, fd: int, beside: Optional[Sink] = None) -> None:
        """``beside``: another one, which may be of the same terminal."""
        self.fd = fd
        self.backlog = 0
        self.terminal = os.isatty(fd)
        self.last: object = None  #: the source of the last lines
        self.tap: Optional[Callable[[bytes], None]] = None  #: is told what is put
        self._broken = False
        self._queue: Deque[bytes] = collections.deque()
        # A pipe that polls as writable takes PIPE_BUF bytes without blocking; a file takes anything.
        self._at_once = 1 << 20 if stat.S_ISREG(os.fstat(fd).st_mode) else 4096
        shared = beside is not None and self._shares_terminal(beside)
        self._place: _Cursor = beside._place if beside is not None and shared else _Cursor()

    @property
    def waiting(self) -> bool:
        """Whether ``write_some`` has something to do."""
        return self.backlog > 0

    def put(self, data: bytes, source: object) -> None:
        """Queue lines of one source; the last one may go on in what comes next."""
        if self.tap is not None:
            self.tap(data)
        if self._broken:
            return
        if self.has_line_of_another(source) and not self._place.returned:
            data = b"\n" + data
        elif self.has_line_of_another(source) and self.terminal:
            data = ERASE + data  # else the rest of another rank's progress bar would show behind this line
        self._place.source = None if data.endswith(b"\n") else source
        self._place.returned = data.endswith(b"\r")
        self.last = source
        self._queue.append(data)
        self.backlog += len(data)

    def has_line_of_another(self, source: object) -> bool:
        """Whether a line of another source than this has not ended: a progress bar, or a question."""
        return self._place.source not in (None, source)

    def _shares_terminal(self, other: Sink) -> bool:
        return self.terminal and other.terminal and os.ttyname(self.fd) == os.ttyname(other.fd)

    def write_some(self) -> bool:
        """Write what the descriptor takes at once; return False if nobody reads it any more."""
        try:
            written = os.write(self.fd, memoryview(self._queue[0])[: self._at_once])
        except BrokenPipeError:
            self.drop()
            return False
        self.backlog -= written
        rest = self._queue.popleft()[written:]
        if rest:
            self._queue.appendleft(rest)
        return True

    def drop(self) -> None:
        """Forget what waits, and take no more: nobody reads it."""
        self._broken = True
        self._queue.clear()
        self.backlog = 0


class _Lines:
    """Cuts bytes into lines with a prefix and remembers the last ones. What is no text passes through unchanged."""

    def __init__(self, prefix: bytes, timestamps: bool) -> None:
        self._prefix = prefix
        self._timestamps = timestamps
        self._rest = b""
        self._begun = False  # a part of this line has been passed on
        self._returned = False  # the last byte was a carriage return: a newline may still belong to it
        self._bar = False  # the last line kept is a progress bar: the next one takes its place
        self.tail: Deque[bytes] = collections.deque(maxlen=TAIL_LINES)

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are complete now."""
        out = []
        if self._returned and data[:1] == b"\n":  # "\r\n" fell apart between two reads
            out.append(b"\n")
            data = data[1:]
            self._bar = False
        self._returned = data[-1:] == b"\r"
        start = 0
        for ending in _ENDING.finditer(data):
            text = self._rest + data[start : ending.start()]
            start, self._rest = ending.end(), b""
            if text or self._begun or ending[0] != b"\r":  # a bar that begins by returning is no empty line
                out.append(self._line(text, ending[0]))
        self._rest += data[start:]
        if len(self._rest) >= LONGEST_LINE:
            out.append(self.part())
        return b"".join(out)

    @property
    def has_part(self) -> bool:
        """Whether there is something of a line that has not ended."""
        return bool(self._rest)

    def part(self) -> bytes:
        """Return what has come of a line that has not ended, up to its last whole character."""
        end = _end_of_characters(self._rest)
        text, self._rest = self._rest[:end], self._rest[end:]
        return self._line(text, b"") if text else b""

    def finish(self) -> bytes:
        """Return the last line if it had no ending; now it has one."""
        rest, self._rest = self._rest, b""
        return self._line(rest, b"\n") if rest or self._begun else b""

    def _line(self, text: bytes, ending: bytes) -> bytes:
        head = b""
        if self._begun:
            self.tail[-1] = (self.tail[-1] + text)[:_TAIL_WIDTH]
        else:
            if self._bar and self.tail:
                self.tail.pop()
            self.tail.append(text[:_TAIL_WIDTH])
            head = (_now() if self._timestamps else b"") + self._prefix
        self._begun, self._bar = not ending, ending == b"\r"
        return head + text + ending


def _end_of_characters(data: bytes) -> int:
    """Return where the last whole character of UTF-8 ends, or all of ``data`` if it is none."""
    for back, byte in enumerate(reversed(data[-3:]), 1):
        if byte < 0x80:
            break
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if back < length else len(data)
    return len(data)


class Stream:
    """One output pipe of a rank on its way to a sink. ``close`` is idempotent.

    ``file`` gets what comes, too, byte by byte, and is closed with the pipe. It has no buffer.
    """

    def __init__(
        self,
        pipe: IO[bytes],
        sink: Optional[Outlet],
        prefix: bytes = b"",
        timestamps: bool = False,
        *,
        file: Optional[IO[bytes]] = None,
    ) -> None:
        self._pipe = pipe
        self.sink = sink  #: None: nobody sees it
        self._file = file
        self._lines = _Lines(prefix, timestamps)
        self.due: Optional[float] = None  #: when to look whether the rank waits for input, by ``clock.now``
        self._wait = _PROMPT_SECONDS

    @property
    def tail(self) -> List[str]:
        """The last lines, as a report shows them."""
        return for_report([line.decode(errors="replace") for line in self._lines.tail])

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._pipe.fileno()

    def pump(self) -> bool:
        """Read what is there and pass it on; return False at the end. Call it when the pipe is readable."""
        data = os.read(self.fileno(), 1 << 16)
        self._pass_on(self._lines.feed(data) if data else self._lines.finish(), data)
        self._wait = _PROMPT_SECONDS
        unfinished = self._lines.has_part and self.sink is not None
        self.due = clock.now() + self._wait if unfinished else None
        return bool(data)

    def pass_part(self) -> None:
        """Pass on a line that has not ended yet."""
        self.due = None
        self._pass_on(self._lines.part(), b"")

    def look_later(self) -> None:
        """The rank does not wait for input: look again, less and less often until more has come."""
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self.due = clock.now() + self._wait

    def add(self, line: bytes) -> None:
        """Pass on a line that is not the rank's own."""
        self._pass_on(line, line)

    def close(self) -> None:
        """Pass on what had no line ending, and close the pipe."""
        if not self._pipe.closed:
            self._pass_on(self._lines.finish(), b"")
            self._pipe.close()
            if self._file is not None:
                self._file.close()

    def _pass_on(self, lines: bytes, data: bytes) -> None:
        if lines and self.sink is not None:
            self.sink.put(lines, self)
        if self._file is not None:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
