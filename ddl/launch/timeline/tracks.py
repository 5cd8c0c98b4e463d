"""Where events are drawn: a process of the viewer for each rank, and rows in it, in which slices nest.

Operations of one channel may overlap. A viewer takes slices of one row that overlap without nesting for an error. So a
channel has as many rows as are needed.
"""

from __future__ import annotations

import bisect
from typing import Dict, List, Tuple

from ddl.launch.timeline.trace_file import TraceEvent

__all__ = ["STEPS_ROW", "RankTrack", "TrackList"]

STEPS_ROW = 1
_FIRST_ROWS = {"small": 100, "large": 300, "messages": 500}
_KEPT = 1024  # slices of a row that are remembered: what comes later than those does not fit


class _SliceRow:
    def __init__(self) -> None:
        self._begins: List[int] = []
        self._ends: List[int] = []
        self._from = -(1 << 62)  # no slice may begin before

    def fits(self, begin: int, end: int) -> bool:
        """Take the slice if no other one overlaps it; slices that touch do not."""
        place = bisect.bisect_left(self._begins, begin)
        before = self._ends[place - 1] if place else self._from
        if begin < before or (place < len(self._begins) and self._begins[place] < end):
            return False
        self._begins.insert(place, begin)
        self._ends.insert(place, end)
        if len(self._begins) > 2 * _KEPT:
            self._from = self._ends[-_KEPT - 1]
            del self._begins[:-_KEPT], self._ends[:-_KEPT]
        return True


class RankTrack:
    """A rank of a process. Times are nanoseconds. ``number``: what the viewer calls pid."""

    def __init__(self, number: int, name: str, events: List[TraceEvent]) -> None:
        self.number = number
        self.steps_end = -(1 << 62)  #: of the last step that was drawn
        self._rows: Dict[str, List[_SliceRow]] = {}
        events.append(self._meta("process_name", 0, {"name": name}))
        events.append(self._meta("thread_name", STEPS_ROW, {"name": "steps"}))

    def row(self, channel: str, begin: int, end: int, events: List[TraceEvent]) -> int:
        """Return the row of a slice, what the viewer calls tid. A new one is described in ``events``."""
        rows = self._rows.setdefault(channel, [])
        first = _FIRST_ROWS.get(channel, 700)
        for place, row in enumerate(rows):
            if row.fits(begin, end):
                return first + place
        rows.append(_SliceRow())
        rows[-1].fits(begin, end)
        name = f"channel {channel}" + (f", row {len(rows)}" if len(rows) > 1 else "")
        events.append(self._meta("thread_name", first + len(rows) - 1, {"name": name}))
        return first + len(rows) - 1

    def _meta(self, name: str, row: int, about: Dict[str, object]) -> TraceEvent:
        return {"ph": "M", "name": name, "pid": self.number, "tid": row, "args": about}


class TrackList:
    """The tracks of all ranks. A process whose rank changes (elastic jobs) has a track for each of its ranks."""

    def __init__(self) -> None:
        self._tracks: Dict[Tuple[int, int, str], RankTrack] = {}

    def track(self, number: int, rank: int, host: str, events: List[TraceEvent]) -> RankTrack:
        """Return the track of process ``number`` as ``rank``."""
        key = (number, rank, host)
        if key not in self._tracks:
            process = "" if number == rank else f", process {number}"
            name = f"rank {rank:03} (host {host}{process})"  # names are in the order of ranks
            self._tracks[key] = RankTrack(len(self._tracks) + 1, name, events)
        return self._tracks[key]
