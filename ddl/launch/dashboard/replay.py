"""The page of a job that has ended, or was killed: what ``ddl page`` reads from the file of its history."""

from __future__ import annotations

import bisect
import json
import zlib
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ddl.errors import ConfigError
from ddl.launch.dashboard.history import read_history
from ddl.launch.dashboard.records import Record, encoded
from ddl.launch.dashboard.story import Story

__all__ = ["ReplaySource"]

_LINES = 2000  # of all ranks that are looked at to show the last ones of a moment


class ReplaySource:
    """A ``PageSource``. ConfigError if the file is no history."""

    mode = "replay"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._job: Record = {}
        self._end: Optional[Record] = None
        self._lines: List[Record] = []
        self._events: List[Record] = []
        states: List[Tuple[float, bytes, Record]] = []
        for record, data in read_history(path):
            kind = record["k"]
            if kind == "job":
                self._job = record
            elif kind == "state":
                point = {"k": "state", "t": record["t"], "job": record["job"]}
                states.append((record["t"], zlib.compress(data, 1), point))
            elif kind == "lines":
                self._lines.append(record)
            elif kind == "event":
                self._events.append(record)
            elif kind == "end":
                self._end = record
        if not states:
            raise ConfigError(f"{path}: it has no state of the job: it ended within its first second")
        states.sort(key=lambda state: state[0])
        self._lines.sort(key=lambda record: record["t"])
        self._times = [elapsed for elapsed, _, _ in states]
        self._states = [data for _, data, _ in states]
        self._curves = Story()
        for _, _, point in states:
            self._curves.add_point(point)

    def story(self) -> bytes:
        """Return the job at its end, and the times of all its states."""
        message = self._at(max(self._times[-1], 0.0 if self._end is None else self._end["t"]))
        curves = self._curves.message()["series"]
        return encoded({**message, "series": curves, "times": self._times})

    def follow(self) -> Iterator[bytes]:
        """Yield nothing: nothing happens any more."""
        return iter(())

    def moment(self, elapsed: float) -> Optional[bytes]:
        """Return the job as it was then."""
        return encoded(self._at(elapsed))

    def history(self) -> Optional[bytes]:
        """Return the file."""
        return self._path.read_bytes()

    def dump(self) -> Dict[str, Any]:
        """Say why there is none."""
        return {"text": "the job has ended: ddlrun has kept dumps if it has failed; see ddl blame", "folder": ""}

    def _at(self, elapsed: float) -> Dict[str, Any]:
        story = Story()
        story.add(self._job)
        at = max(0, bisect.bisect_right(self._times, elapsed) - 1)
        story.add(json.loads(zlib.decompress(self._states[at])))
        for record in self._lines_until(elapsed):
            story.add(record)
        for record in self._events:
            if record["t"] <= elapsed:
                story.add(record)
        if self._end is not None and self._end["t"] <= elapsed:
            story.add(self._end)
        return story.message()

    def _lines_until(self, elapsed: float) -> List[Record]:
        """Return the last records of lines before then, the oldest first."""
        last: List[Record] = []
        count = 0
        for record in reversed(self._lines):
            if record["t"] <= elapsed:
                last.append(record)
                count += len(record["lines"])
                if count >= _LINES:
                    break
        return last[::-1]
