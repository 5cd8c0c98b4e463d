"""What somebody who comes to the page later must know: how the job has gone so far, in few words. No I/O."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, List, Optional

from ddl.launch.dashboard.records import Record

__all__ = ["Story"]

_POINTS = 3600  # of the curves
_EVENTS = 300
_TAIL = 20  # lines of a process
_LINES = 2000  # of all processes together
_ENDED = 1024  # processes that have ended, whose lines are kept
_CURVES = ("per_second", "waiting", "sent_per_second")


class Story:
    """The first record, curves of the whole time, the last lines of each process, events, and the last state."""

    def __init__(self) -> None:
        self._job: Record = {}
        self._series: List[List[Any]] = [[] for _ in range(len(_CURVES) + 1)]  # times first
        self._each = 1  # so many states make a point
        self._states = 0
        self._tails: Dict[int, Deque[Any]] = {}
        self._gone: Deque[int] = deque()  # processes that have ended, whose lines are still known
        self._events: Deque[Record] = deque(maxlen=_EVENTS)
        self._state: Optional[Record] = None
        self._end: Optional[Record] = None

    def add(self, record: Record) -> None:
        """Take the next record."""
        kind = record["k"]
        if kind == "job":
            self._job = record
        elif kind == "state":
            self._state = record
            self.add_point(record)
        elif kind == "lines":
            for line in record["lines"]:
                self._tails.setdefault(line[0], deque(maxlen=_TAIL)).append(line)
        elif kind == "event":
            self._events.append(record)
            if record["of"] == "exit":
                self._forget_old(record["number"])
        elif kind == "end":
            self._end = record

    def _forget_old(self, number: int) -> None:
        """A process has ended: keep the lines of the last ones that have, as any number may be lost and replaced."""
        self._gone.append(number)
        if len(self._gone) > _ENDED:
            self._tails.pop(self._gone.popleft(), None)

    def add_point(self, state: Record) -> None:
        """Add a state to the curves. There are never more than ``_POINTS``: then each second one goes."""
        self._states += 1
        if self._states % self._each:
            return
        for curve, value in zip(self._series, (state["t"], *(state["job"][name] for name in _CURVES))):
            curve.append(value)
        if len(self._series[0]) > _POINTS:
            self._series = [curve[1::2] for curve in self._series]
            self._each *= 2

    def message(self) -> Dict[str, Any]:
        """Return all of it."""
        each = max(1, min(_TAIL, _LINES // max(1, len(self._tails))))
        return {
            "job": self._job,
            "series": [list(curve) for curve in self._series],
            "lines": [line for tail in self._tails.values() for line in list(tail)[-each:]],
            "events": list(self._events),
            "state": self._state,
            "end": self._end,
        }
