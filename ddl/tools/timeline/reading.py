"""Reads the file of a timeline, also one whose end is missing, as that of a job that was killed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ddl.errors import ConfigError
from ddl.launch.timeline.job_timeline import FORMAT, TimelineTotals

__all__ = ["CallSlice", "StepSlice", "TimelineContent", "read_timeline"]


class CallSlice(NamedTuple):
    """A rank's call of an operation. Times are microseconds of the timeline."""

    name: str
    collective: str
    track: int  #: of a rank of a process
    rank: int
    begin: float
    end: float
    group: int  #: the same for all calls of an operation
    size: int  #: bytes
    blocking: bool
    last: Optional[int]  #: the rank that was the last to call; None: nobody knows
    late: float  #: how much later than the one before it
    waited: float  #: of this call, before the last one


class StepSlice(NamedTuple):
    """A training step of a rank. Times are microseconds of the timeline."""

    track: int
    begin: float
    end: float


@dataclass
class TimelineContent:
    """What is in the file."""

    about: Mapping[str, Any]  #: ``ddl_timeline``
    whole: bool = False  #: whether it has its end
    steps: List[StepSlice] = field(default_factory=list)
    calls: List[CallSlice] = field(default_factory=list)
    clocks: Dict[str, Tuple[float, float]] = field(default_factory=dict)  #: by host: offset and error in us, the last
    tracks: Dict[int, str] = field(default_factory=dict)  #: their names
    notes: List[str] = field(default_factory=list)  #: what has happened to the job
    totals: TimelineTotals = field(default_factory=TimelineTotals)  #: so far as they were written


def read_timeline(path: str) -> TimelineContent:
    """Return what the file holds, up to where it is cut off. ConfigError if it is no timeline of ddlrun."""
    content: Optional[TimelineContent] = None
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            if file.readline().rstrip("\n") != "[":
                raise ConfigError(f"{path}: it is no timeline: ddlrun --timeline {path} writes one")
            for number, line in enumerate(file, 2):
                text = line.rstrip("\n")
                if text == "]" and content is not None:
                    content.whole = True
                    break
                try:
                    event = json.loads(text.rstrip(","))
                    if content is None:
                        content = TimelineContent(_about(path, event))
                    else:
                        _take(content, event)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    if not line.endswith("\n") and content is not None:
                        break  # it was being written
                    raise ConfigError(f"{path}: line {number} is no event of a timeline: {error!r:.200}") from error
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error}") from error
    if content is None:
        raise ConfigError(f"{path}: the timeline is empty: the job was killed before it began")
    return content


def _about(path: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
    if event.get("name") != "ddl_timeline":
        raise ConfigError(
            f"{path}: it is a trace, but not one of ddlrun --timeline; --timeline-filename and HOROVOD_TIMELINE "
            "write Horovod's, of one rank, which chrome://tracing shows"
        )
    about: Mapping[str, Any] = event["args"]
    if about["format"] != FORMAT:
        raise ConfigError(f"{path}: the timeline has format {about['format']}, this ddl reads format {FORMAT}")
    return about


def _take(content: TimelineContent, event: Mapping[str, Any]) -> None:
    phase, name = event["ph"], event["name"]
    if phase == "X":
        begin, about = float(event["ts"]), event["args"]
        end = begin + float(event["dur"])
        if event["cat"] == "step":
            content.steps.append(StepSlice(event["pid"], begin, end))
        elif event["cat"] != "wait":
            content.calls.append(
                CallSlice(
                    name=name,
                    collective=event["cat"],
                    track=event["pid"],
                    rank=about["rank"],
                    begin=begin,
                    end=end,
                    group=about["group"],
                    size=about["bytes"],
                    blocking=bool(about["blocking"]),
                    last=about.get("last"),
                    late=about.get("late_us", 0.0),
                    waited=about.get("waited_us", 0.0),
                )
            )
    elif phase == "i":
        content.notes.append(name)
    elif name == "process_name":
        content.tracks[event["pid"]] = event["args"]["name"]
    elif name == "ddl_clock":
        about = event["args"]
        content.clocks[about["host"]] = (float(about["offset_us"]), float(about["error_us"]))
    elif name == "ddl_totals":
        content.totals = TimelineTotals(**event["args"])
