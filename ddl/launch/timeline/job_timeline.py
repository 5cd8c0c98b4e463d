"""The timeline of a job while it is written: takes what ranks have done, and makes events of it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ddl import clock
from ddl._version import __version__
from ddl.launch.agent.clocks import ClockOffset
from ddl.launch.ask.config import RunConfig
from ddl.launch.timeline.matching import CallMatcher, CallPart, MatchedCalls, part_of
from ddl.launch.timeline.trace_file import TraceEvent, TraceFile
from ddl.launch.timeline.tracks import STEPS_ROW, RankTrack, TrackList
from ddl.records.follow import RankNews

__all__ = ["FORMAT", "JobTimeline", "TimelineTotals"]

FORMAT = 1
_SHORT = 20_000  # nanoseconds: a shorter wait is not drawn
_TOTALS_EACH = 2.0  # seconds
_BATCH = 200  # events that are written at once


@dataclass
class TimelineTotals:
    """What no slice shows. Calls are those of ranks: an operation of four ranks has four."""

    calls: int = 0  #: that are drawn
    quick: int = 0  #: without times, and not drawn: the others were there already, it took some microseconds
    missing: int = 0  #: calls that nobody has read: the ranks made them faster than they could be
    missing_steps: int = 0
    partial: int = 0  #: operations of which the part of a rank did not come
    checked: int = 0  #: operations that nobody can have ended before the last rank called: has anybody?
    impossible: int = 0  #: those that somebody has, by more than the errors of the clocks
    impossible_us: float = 0.0  #: the most of it, microseconds


class JobTimeline:
    """Used by ddlrun's main thread. ConfigError if the file cannot be made; ``tell`` gets warnings."""

    def __init__(self, config: RunConfig, path: str, tell: Callable[[str], None]) -> None:
        self._began = clock.now()
        self._file = TraceFile(path, config.timeline_mb * 1_000_000, tell)
        self._tracks = TrackList()
        self._matcher = CallMatcher()
        self._totals = TimelineTotals()
        self._totals_due = 0.0
        self._told: Dict[str, Any] = {}  # the last totals
        self._judged = False
        self._flows = 0
        self._groups = 0
        about = {"format": FORMAT, "ddl": __version__, "began": time.time(), "command": list(config.command)}
        self._write([_meta("ddl_timeline", about)])

    @staticmethod
    def if_wanted(config: RunConfig, tell: Callable[[str], None]) -> Optional[JobTimeline]:
        """Return the timeline if the user wants a file of it."""
        return None if config.timeline is None else JobTimeline(config, config.timeline, tell)

    @property
    def ended(self) -> bool:
        """Whether nothing can be written any more."""
        return self._file.ended

    def clock(self, host: str, offset: ClockOffset) -> None:
        """The clock of a host has been measured."""
        microseconds = {"offset_us": round(1e6 * offset.offset, 3), "error_us": round(1e6 * offset.error, 3)}
        measured = round(offset.measured - self._began, 6)
        self._write([_meta("ddl_clock", {"host": host, **microseconds, "measured": measured})])

    def take(self, news: Sequence[RankNews], measured: Optional[ClockOffset]) -> None:
        """Write what ranks of a host have done.

        ``measured``: the clock of that host; None: nobody knows it, so it is taken for ddlrun's.
        """
        if self.ended:
            return
        events: List[TraceEvent] = []
        now = clock.now()
        offset, error = (0.0, 0.0) if measured is None else (measured.offset, measured.error_at(now))
        for told in news:
            track = self._tracks.track(told.number, told.rank, told.host, events)
            at = self._began + offset
            if told.communicator < 0:
                self._steps(told, track, at, events)
                continue
            self._totals.missing += told.missing
            until = round(1e9 * (told.taken - at))
            parts = [part_of(told, call, track, at, round(1e9 * error), until) for call in told.calls]
            if told.missing:
                words = (
                    f"{told.missing} calls of this rank are missing before here: they came faster than they can be read"
                )
                first = min((part.called for part in parts if part.called is not None), default=until)
                events.append(_instant(words, track.number, STEPS_ROW, first, "p"))
            self._draw_all(self._matcher.take(told, parts, now), events)
        self._draw_all(self._matcher.overdue(now), events)
        if now >= self._totals_due and asdict(self._totals) != self._told:
            self._totals_due, self._told = now + _TOTALS_EACH, asdict(self._totals)
            events.append(self._sums())
        self._write(events)

    def note(self, text: str) -> None:
        """Something has happened to the job: a rank has ended, say."""
        self._write([_instant(text, 0, 0, round(1e9 * (clock.now() - self._began)), "g")])

    def verdict(self, verdict: Optional[Mapping[str, Any]]) -> None:
        """Write the store's first verdict on the job, once it is there. Idempotent."""
        if verdict is not None and not self._judged:
            self._judged = True
            began = "" if verdict["culprit"] == -1 else f" began with rank {verdict['culprit']}"
            self.note(f"verdict: {verdict['kind']}{began}: {verdict['reason']}")

    def close(self) -> None:
        """Write the rest, and the end. Idempotent."""
        if self.ended:
            return
        events: List[TraceEvent] = []
        self._draw_all(self._matcher.rest(), events)
        self._write(events)
        self._file.finish([self._sums()])

    def _write(self, events: List[TraceEvent]) -> None:
        self._file.write(events, self._last_words)

    def _last_words(self) -> List[TraceEvent]:
        now = round(1e9 * (clock.now() - self._began))
        return [_instant("the timeline ends here: it is full (--timeline-mb)", 0, 0, now, "g"), self._sums()]

    def _sums(self) -> TraceEvent:
        return _meta("ddl_totals", asdict(self._totals))

    def _steps(self, told: RankNews, track: RankTrack, at: float, events: List[TraceEvent]) -> None:
        self._totals.missing_steps += told.missing
        begin = None if told.step_begin is None else round(1e9 * (told.step_begin - at))
        for step, end in enumerate((round(1e9 * (end - at)) for end in told.step_ends), told.first_step):
            if begin is not None:
                begin = max(begin, track.steps_end)  # the clock may have been measured anew in between
                about = {"step": step, "rank": told.rank}
                events.append(_slice(f"step {step}", "step", track.number, STEPS_ROW, begin, max(begin, end), about))
                track.steps_end = max(begin, end)
            begin = end

    def _draw_all(self, calls: Sequence[MatchedCalls], events: List[TraceEvent]) -> None:
        for matched in calls:
            self._draw(matched, events)
            if len(events) >= _BATCH:  # so that the file is nearly full when it ends
                self._write(events)
                events.clear()

    def _draw(self, matched: MatchedCalls, events: List[TraceEvent]) -> None:
        self._groups += 1
        totals, drawn = self._totals, matched.drawn
        totals.calls += len(drawn)
        totals.quick += len(matched.parts) - len(drawn)
        totals.partial += not matched.whole
        errors = 2 * max((part.error for part in matched.parts), default=0)
        early = matched.too_early
        if early is not None:
            totals.checked += 1
            totals.impossible += early > errors
            totals.impossible_us = max(totals.impossible_us, early / 1e3 if early > errors else 0.0)
        rows = {id(part): self._draw_call(matched, part, events) for part in drawn}
        last = matched.last
        for part in drawn:
            wait = _wait_of(part, last)
            if last is None or wait <= max(_SHORT, errors):
                continue
            assert part.called is not None and last.called is not None
            row, met = rows[id(part)], part.called + wait
            if last.kind.collective != "send":
                name = f"waits for rank {last.rank}"
                events.append(_slice(name, "wait", part.track.number, row, part.called, met, {}))
            if met >= last.called:
                self._flow(last, rows[id(last)], part, row, met, events)

    def _draw_call(self, matched: MatchedCalls, part: CallPart, events: List[TraceEvent]) -> int:
        assert part.called is not None and part.ended is not None
        begin, end, kind, last = part.called, max(part.called, part.ended), part.kind, matched.last
        row = part.track.row(kind.lane, begin, end, events)
        about: Any = {"op": kind.text, "n": part.number, "communicator": matched.communicator, "rank": part.rank}
        about.update(group=self._groups, bytes=kind.size, plan=kind.plan, blocking=int(part.blocking))
        if last is not None:
            about["waited_us"] = _wait_of(part, last) / 1e3
            if kind.collective not in ("send", "recv"):
                about.update(last=last.rank, late_us=matched.late / 1e3)
        if part.state != "ended":
            about["state"] = part.state
        name = kind.label or kind.text
        events.append(_slice(name, kind.collective, part.track.number, row, begin, end, about))
        return row

    def _flow(
        self, last: CallPart, from_row: int, part: CallPart, row: int, met: int, events: List[TraceEvent]
    ) -> None:
        """Draw an arrow from the last one to call to one that has waited."""
        self._flows += 1
        shared = {"name": "last to call", "cat": "flow", "id": self._flows}
        begin = {"ph": "s", "pid": last.track.number, "tid": from_row, "ts": (last.called or 0) / 1e3}
        end = {"ph": "f", "bp": "e", "pid": part.track.number, "tid": row, "ts": met / 1e3}
        events += [{**shared, **begin}, {**shared, **end}]


def _wait_of(part: CallPart, last: Optional[CallPart]) -> int:
    """Return how many nanoseconds of a part lie before the last rank's call."""
    if last is None or part is last or part.called is None or part.ended is None or last.called is None:
        return 0
    return max(0, min(last.called, part.ended) - part.called)


def _meta(name: str, about: Any) -> TraceEvent:
    return {"ph": "M", "name": name, "pid": 0, "tid": 0, "args": about}


def _slice(name: str, category: str, pid: int, tid: int, begin: int, end: int, about: Any) -> TraceEvent:
    times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **times, "args": about}


def _instant(text: str, pid: int, tid: int, at: int, scope: str) -> TraceEvent:
    return {"ph": "i", "name": text, "pid": pid, "tid": tid, "ts": at / 1e3, "s": scope}
