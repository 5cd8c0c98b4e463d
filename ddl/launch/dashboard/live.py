"""The page of a job that runs: takes events from ddlrun's loop, and keeps them for viewers.

The loop only puts snapshots into a queue (``JobPage``). A thread of its own makes records of them, writes the history,
and wakes the threads of viewers (``LiveSource``): nothing that they wait for keeps the loop from its work.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Deque, Dict, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ddl.errors import ConfigError
from ddl.launch.agent.job_watch import INTERVAL, JobNow, RankNow
from ddl.launch.agent.output import Sink
from ddl.launch.ask.config import RunConfig
from ddl.launch.dashboard.history import HistoryWriter
from ddl.launch.dashboard.line_tap import LineTap
from ddl.launch.dashboard.records import Record, StateRecords, encoded, job_record
from ddl.launch.dashboard.server import PageServer
from ddl.launch.dashboard.story import Story
from ddl.launch.show.requests import ask_job

__all__ = ["JobPage"]

_KEPT = 240  # records that a viewer may be behind; some come in a second
_ALIVE = 10.0  # seconds of silence after which viewers get an empty line
_WRITING = 10.0  # seconds for the end of the history, on a disk that is slow
_PARTING = 1.0  # seconds that viewers have to read how the job has ended
_DUMP_SECONDS, _BLAME_SECONDS = 60.0, 60.0


class _Snapshot(NamedTuple):
    """The job at a moment; nobody changes it any more."""

    elapsed: float
    now: JobNow
    ranks: Sequence[RankNow]


class LiveSource:
    """Has the records of a job for many threads: a ``PageSource``."""

    mode = "live"

    def __init__(self) -> None:
        self._path: Optional[Path] = None  # of the history
        self._file: Optional[BinaryIO] = None  # where that has no name
        self._changed = threading.Condition()
        self._story = Story()
        self._records: Deque[bytes] = deque(maxlen=_KEPT)
        self._count = 0  # of all records so far
        self._over = False

    def keep_history(self, file: BinaryIO, path: Optional[str]) -> None:
        """Offer the history, which is written to ``file``. Once, before the server starts."""
        self._path, self._file = (None, file) if path is None else (Path(path), None)

    def publish(self, record: Record, data: bytes) -> None:
        """Have a record for all who follow."""
        with self._changed:
            self._story.add(record)
            self._records.append(_event(record["k"], data))
            self._count += 1
            self._over = record["k"] == "end"
            self._changed.notify_all()

    def story(self) -> bytes:
        """Return what there is to know at first."""
        with self._changed:
            message = self._story.message()
        return encoded(message)

    def follow(self) -> Iterator[bytes]:
        """Yield events; see ``PageSource``."""
        with self._changed:
            message, seen = self._story.message(), self._count
        yield _event("story", encoded(message))
        while True:
            with self._changed:
                if self._count == seen and not self._over:
                    self._changed.wait(_ALIVE)
                behind = self._count - seen
                news = list(self._records)[-behind:] if behind else []
                seen, over = self._count, self._over
            if behind > len(news):
                return
            yield b"".join(news) or b":\n\n"
            if over:
                return

    def moment(self, elapsed: float) -> Optional[bytes]:
        """Return None: what has been is in the history."""
        return None

    def history(self) -> Optional[bytes]:
        """Return the file of the job so far."""
        try:
            if self._path is not None:
                return self._path.read_bytes()
            if self._file is not None:
                size = os.fstat(self._file.fileno()).st_size
                return os.pread(self._file.fileno(), size, 0)
        except (OSError, ValueError):  # it has been closed, or somebody has removed it
            pass
        return None

    def dump(self) -> Dict[str, Any]:
        """Ask our own loop as ``ddl dump JOB`` does, and let ``ddl blame`` judge in a process of its own."""
        try:
            answer = ask_job(os.getpid(), "dump", _DUMP_SECONDS)
        except ConfigError as error:
            return {"text": f"there are no dumps: {error}", "folder": ""}
        folder = str(answer.get("folder", ""))
        text = str(answer.get("text", ""))
        return {"text": _blame(folder) or text if folder else text, "folder": folder}


class JobPage:
    """What ddlrun's loop calls. Nothing here waits, but for ``end``.

    ConfigError if the page cannot be served at the address of ``--dashboard``, or the file of ``--history`` not be
    written. No thread runs before ``start``.
    """

    def __init__(self, config: RunConfig, sinks: Sequence[Sink]) -> None:
        began = time.time()
        self._source = LiveSource()
        self._server: Optional[PageServer] = None
        if config.dashboard is not None:
            self._server = PageServer(config.dashboard, "--dashboard", self._source)
        try:
            file = _open(config.history)  # not before: an older file stays if there will be no job
        except ConfigError:
            if self._server is not None:
                self._server.close()
            raise
        self._source.keep_history(file, config.history)
        if self._server is not None:
            self._server.announce("ddlrun: the page of this job is at")
        self._writer = HistoryWriter(file)
        self._states = StateRecords(config)
        self._queue: queue.SimpleQueue[Union[_Snapshot, Record]] = queue.SimpleQueue()
        self._tap = LineTap(prefix=config.prefix)
        for stream, sink in enumerate(sinks, 1):
            sink.tap = partial(self._tap.put, stream)
        self._next = 0.0
        self._judged = False  # the store has given its verdict
        self._thread = threading.Thread(target=self._work, name="ddl-page", daemon=True)
        self._queue.put(job_record(config, os.getpid(), began))

    def start(self) -> None:
        """Ranks have been started; from now on there may be threads."""
        self._thread.start()
        if self._server is not None:
            self._server.start()

    def take(self, elapsed: float, now: JobNow, ranks: Sequence[RankNow], verdict: Optional[Mapping[str, Any]]) -> None:
        """Take the job as it is now, if a second has passed. ``verdict``: of the store."""
        if elapsed < self._next:
            return
        self._next = elapsed + 0.9 * INTERVAL  # samples of several hosts come at several moments of each second
        self._take_lines(elapsed)
        self._take_verdict(elapsed, verdict)
        self._queue.put(_Snapshot(elapsed, now, tuple(ranks)))

    def process_ended(self, elapsed: float, number: int, how: str) -> None:
        """Take note of the end of a process."""
        self._event(elapsed, how, "exit", number)

    def tell(self, elapsed: float, lines: Iterable[str]) -> None:
        """Take lines of ddlrun's own that no sink has seen."""
        for text in lines:
            self._event(elapsed, text, "ddlrun")

    def end(self, elapsed: float, status: int, verdict: Optional[Mapping[str, Any]]) -> None:
        """Show that the job has ended, and close the page when viewers have had a moment to read it."""
        self._take_lines(elapsed)
        self._take_verdict(elapsed, verdict)
        self._queue.put({"k": "end", "t": round(elapsed, 2), "status": status})
        if self._thread.ident is None:  # the job has ended before it began
            self._thread.start()
        self._thread.join(_WRITING)
        if self._server is not None:
            self._server.close(_PARTING)

    def _take_lines(self, elapsed: float) -> None:
        lines, left_out, own = self._tap.take()
        self.tell(elapsed, own)
        if lines:
            self._queue.put({"k": "lines", "t": round(elapsed, 2), "lines": lines, "left_out": left_out})

    def _take_verdict(self, elapsed: float, verdict: Optional[Mapping[str, Any]]) -> None:
        if verdict is not None and not self._judged:  # only the first one counts
            self._judged = True
            culprit = verdict["culprit"]
            who = f" with rank {culprit}" if culprit >= 0 else ""
            self._event(elapsed, f"the failure began{who}: {verdict['reason']}", "verdict", culprit)

    def _event(self, elapsed: float, text: str, of: str, number: int = -1) -> None:
        self._queue.put({"k": "event", "t": round(elapsed, 2), "text": text, "of": of, "number": number})

    def _work(self) -> None:
        """The thread: until the job has ended."""
        problem = ""
        while True:
            item = self._queue.get()
            record = self._states.record(*item) if isinstance(item, _Snapshot) else item
            data = encoded(record)
            self._writer.add(record, data)
            if record["k"] == "end":
                self._writer.close()
            if self._writer.problem != problem:
                problem = self._writer.problem
                warning = {"k": "event", "t": record["t"], "text": problem, "of": "ddlrun", "number": -1}
                self._source.publish(warning, encoded(warning))
            self._source.publish(record, data)
            if record["k"] == "end":
                return


def _open(path: Optional[str]) -> BinaryIO:
    """Open the file of --history; without, one without a name, which "save" on the page reads. ConfigError."""
    try:
        return tempfile.TemporaryFile(buffering=0) if path is None else open(path, "wb", buffering=0)
    except OSError as error:
        what = "the page of the job needs a temporary file" if path is None else f"--history {path}"
        raise ConfigError(f"{what}: it cannot be written: {error}") from error


def _event(kind: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _blame(folder: str) -> str:
    """Return what ``ddl blame`` says of the dumps; "" if it says nothing in time.

    In a process of its own, as it may compute for seconds, which the loop of ddlrun would notice.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command: Tuple[str, ...] = (sys.executable, "-m", "ddl.tools", "blame", folder)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_BLAME_SECONDS, check=False
        )
        return (done.stdout or done.stderr).decode(errors="replace").strip()
    return ""
