"""What a timeline says: where the time of a step goes, of each operation, and for which rank the others wait.

A rank that waits in a call computes nothing: that time is exposed. An operation that goes on while its caller goes on
is hidden. The record does not say when a program begins to wait for such an operation. It does say when the program
called the last one of a step: by then it has computed the last gradients. So what lies before that call counts as
hidden, unless there was also a call that waits, and what lies after it as exposed.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import DefaultDict, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from ddl.tools.timeline.reading import CallSlice, TimelineContent
from ddl.tools.timeline.spans import Span, length, shared, union, without

__all__ = ["LateRank", "OperationSummary", "StepSummary", "TimelineSummary", "summary_of"]

_P99 = 0.99


@dataclass(frozen=True)
class StepSummary:
    """The training steps of all ranks. Times are microseconds; of a rank's step, the mean unless it says otherwise."""

    count: int  #: of all ranks together
    ranks: int
    median_us: float
    p99_us: float
    mean_us: float
    communication_us: float  #: while an operation was under way
    hidden_us: float  #: of that, while the program went on
    exposed_us: float  #: of that, while the program waited
    exposed_waiting_us: float  #: of the exposed part, before the last rank has called
    overlap: float  #: hidden / communication


@dataclass(frozen=True)
class OperationSummary:
    """All operations of one name. Times are microseconds."""

    name: str
    collective: str
    count: int  #: operations; each rank has its call of one
    bytes: int  #: of the last one; 0 where ranks may differ
    median_us: float  #: of a call, with waiting
    moving_us: float  #: median of the part after the last rank has called
    waiting_us: float  #: mean of the part before
    overlap: Optional[float]  #: the hidden part of it; None if it was never called in a training step


@dataclass(frozen=True)
class LateRank:
    """A rank that was the last to call. Times are microseconds."""

    rank: int
    track: str
    times: int
    share: float  #: of the operations of which the last rank is known
    late_us: float  #: median: how much later than the last but one
    others_waited_us: float  #: all others together, in all operations


@dataclass(frozen=True)
class TimelineSummary:
    """All of it."""

    step: Optional[StepSummary]  #: None: nobody has noted steps
    operations: List[OperationSummary]  #: the one that takes most time first
    late: List[LateRank]  #: the one for which the others waited longest first


class _Parts(NamedTuple):
    """A rank's step; the moments of each part."""

    duration: float
    communication: List[Span]
    hidden: List[Span]
    waiting: List[Span]


def summary_of(content: TimelineContent) -> TimelineSummary:
    """Return what the file says."""
    of_track: DefaultDict[int, List[CallSlice]] = defaultdict(list)
    for call in content.calls:
        of_track[call.track].append(call)
    parts: List[_Parts] = []
    hidden: Dict[int, List[Span]] = {}  # by track
    steps: DefaultDict[int, List[Span]] = defaultdict(list)
    for step in content.steps:
        steps[step.track].append((step.begin, step.end))
    for track, spans in steps.items():
        own = list(_parts_of(sorted(spans), sorted(of_track[track], key=lambda call: call.begin)))
        hidden[track] = union(span for part in own for span in part.hidden)
        parts += own
    return TimelineSummary(
        step=_steps(parts, len(steps)) if parts else None,
        operations=_operations(content.calls, hidden, {track: union(spans) for track, spans in steps.items()}),
        late=_late(content),
    )


def _parts_of(steps: Sequence[Span], calls: Sequence[CallSlice]) -> Iterable[_Parts]:
    """Yield the steps of a rank. ``calls``: by when they begin."""
    begins = [call.begin for call in calls]
    ends = list(itertools.accumulate((call.end for call in calls), max))  # of all calls up to each
    for begin, end in steps:
        first, behind = bisect.bisect_right(ends, begin), bisect.bisect_left(begins, end)
        here = [call for call in calls[first:behind] if call.end > begin]
        window = [(begin, end)]
        under_way = shared(union((call.begin, call.end) for call in here), window)
        blocking = union((call.begin, call.end) for call in here if call.blocking)
        last_call = max((call.begin for call in here if not call.blocking), default=begin)
        hidden = without(shared(under_way, [(begin, last_call)] if last_call > begin else []), blocking)
        waiting = shared(union((call.begin, call.begin + call.waited) for call in here), window)
        yield _Parts(end - begin, under_way, hidden, waiting)


def _steps(parts: Sequence[_Parts], ranks: int) -> StepSummary:
    durations = sorted(part.duration for part in parts)
    communication = statistics.mean(length(part.communication) for part in parts)
    hidden = statistics.mean(length(part.hidden) for part in parts)
    return StepSummary(
        count=len(parts),
        ranks=ranks,
        median_us=statistics.median(durations),
        p99_us=durations[math.ceil(_P99 * len(durations)) - 1],
        mean_us=statistics.mean(durations),
        communication_us=communication,
        hidden_us=hidden,
        exposed_us=communication - hidden,
        exposed_waiting_us=statistics.mean(length(without(part.waiting, part.hidden)) for part in parts),
        overlap=hidden / communication if communication else 0.0,
    )


def _operations(
    calls: Sequence[CallSlice], hidden: Dict[int, List[Span]], steps: Dict[int, List[Span]]
) -> List[OperationSummary]:
    by_name: DefaultDict[Tuple[str, str], List[CallSlice]] = defaultdict(list)
    for call in calls:
        by_name[call.collective, call.name].append(call)
    times = {name: sum(call.end - call.begin for call in same) for name, same in by_name.items()}
    ordered = sorted(by_name, key=lambda name: -times[name])
    return [_operation(by_name[name], hidden, steps) for name in ordered]


def _operation(
    calls: Sequence[CallSlice], hidden: Dict[int, List[Span]], steps: Dict[int, List[Span]]
) -> OperationSummary:
    in_steps = in_hidden = 0.0
    for call in calls:
        in_steps += _length_in(steps.get(call.track, []), call)
        in_hidden += 0.0 if call.blocking else _length_in(hidden.get(call.track, []), call)
    return OperationSummary(
        name=calls[-1].name,
        collective=calls[-1].collective,
        count=len({call.group for call in calls}),
        bytes=calls[-1].size,
        median_us=statistics.median(call.end - call.begin for call in calls),
        moving_us=statistics.median(call.end - call.begin - call.waited for call in calls),
        waiting_us=statistics.mean(call.waited for call in calls),
        overlap=in_hidden / in_steps if in_steps else None,
    )


def _length_in(spans: Sequence[Span], call: CallSlice) -> float:
    """Return how much of a call lies in ``spans``, of which few overlap it."""
    place = max(0, bisect.bisect_right(spans, (call.begin, math.inf)) - 1)
    inside = 0.0
    while place < len(spans) and spans[place][0] < call.end:
        inside += max(0.0, min(spans[place][1], call.end) - max(spans[place][0], call.begin))
        place += 1
    return inside


def _late(content: TimelineContent) -> List[LateRank]:
    late: DefaultDict[int, List[float]] = defaultdict(list)
    waited: DefaultDict[int, float] = defaultdict(float)
    known: Set[int] = set()
    tracks: Dict[int, int] = {}
    for call in content.calls:
        tracks[call.rank] = call.track
        if call.last is None:
            continue
        waited[call.last] += call.waited
        if call.group not in known:
            known.add(call.group)
            late[call.last].append(call.late)
    ranks = [
        LateRank(
            rank=rank,
            track=content.tracks.get(tracks.get(rank, 0), f"rank {rank}"),
            times=len(times),
            share=len(times) / len(known),
            late_us=statistics.median(times),
            others_waited_us=waited[rank],
        )
        for rank, times in late.items()
    ]
    return sorted(ranks, key=lambda rank: -rank.others_waited_us)
