"""Finds the rank of a running job that others wait for all the time: it hardly waits itself.

ddl/store/pace.py finds such ranks while a job runs, by windows of time. A dump has only sums since the communicator
began. So this demands a much larger difference, and that the last operations show it, too.
"""

from __future__ import annotations

import statistics
from typing import Dict, Iterator, List, Mapping, Optional, Set

from ddl.blame.finding import Finding
from ddl.blame.view import JobView
from ddl.records.layout import CommunicatorRecord, RecordedOperation
from ddl.text.units import duration

__all__ = ["slow_ranks"]

_RATIO = 5.0  # so many times as long as the slow rank all others have waited
_FLOOR = 1.0  # seconds that they have waited longer, in all
_SHARE = 0.25  # of their time in operations and out of them: more than where windows must agree (ddl/store/pace.py)
_LAST = 200  # operations that are looked at
_FEWEST = 20  # of these in which ranks have waited half as long as the loss of an operation, or longer
_AGREE = 0.8  # of these in which all but the slow rank have; and of the lost time that a cause must explain


def slow_ranks(view: JobView) -> Iterator[Finding]:
    """Return a finding for each communicator with a slow rank."""
    told = set()
    for number in view.dumps:
        for record in view.communicators(number):
            if record.number not in told and len(record.ranks) > 1:
                told.add(record.number)
                members = view.sides(record)
                finding = _of_communicator(view, members) if len(members) == len(record.ranks) else None
                if finding is not None:
                    yield finding


def _of_communicator(view: JobView, members: Mapping[int, CommunicatorRecord]) -> Optional[Finding]:
    waited = {number: _waited(record) for number, record in members.items()}
    slow = min(waited, key=lambda number: (waited[number], number))
    others = {number: seconds for number, seconds in waited.items() if number != slow}
    lost = min(others.values()) - waited[slow]
    elapsed = max(_elapsed(view, number, record) for number, record in members.items())
    if lost < max(_FLOOR, _SHARE * elapsed) or min(others.values()) < _RATIO * waited[slow]:
        return None
    operations = min(_ended(record) for record in members.values())
    looks = _looks(members, lost / max(1, 2 * operations))
    waits = [slept for slept in looks if slept]
    agreeing = sum(slept == set(others) for slept in waits)
    if len(waits) < _FEWEST or agreeing < _AGREE * len(waits):
        return None
    evidence = [
        f"rank {view.rank(slow)} has waited {duration(waited[slow])} in operations of {members[slow].title}, "
        f"the others {_range(list(others.values()))}",
        f"in {agreeing} of the last {len(waits)} operations with a long wait, all others waited, and it did not",
        *_cause(view, slow, others, lost),
    ]
    return Finding(
        "slow",
        (view.rank(slow),),
        view.host(slow),
        f"{view.name(slow)} comes {duration(lost / max(1, operations))} late to each operation, "
        f"{duration(lost)} in all",
        tuple(evidence),
        "compare its input, its processor and its load with the others': docs/metrics.md",
    )


def _waited(record: CommunicatorRecord) -> float:
    return sum(record.lanes[name].waited for name in ("small", "large") if name in record.lanes)


def _ended(record: CommunicatorRecord) -> int:
    return sum(record.lanes[name].operations for name in ("small", "large") if name in record.lanes)


def _elapsed(view: JobView, number: int, record: CommunicatorRecord) -> float:
    """Return the seconds since the first operation whose begin is known, at least those in operations."""
    under_way = sum(record.lanes[name].under_way for name in ("small", "large") if name in record.lanes)
    begins = [call.begun for call in record.collectives if call.begun is not None]
    return max(under_way, view.dumps[number].taken - begins[0] if begins else 0.0)


def _looks(members: Mapping[int, CommunicatorRecord], least: float) -> List[Set[int]]:
    """Return the ranks that have waited ``least`` seconds in each of the last operations that all ranks have ended."""
    ended: List[Dict[int, RecordedOperation]] = [
        {call.number: call for call in record.collectives[-_LAST:] if call.state == "ended"}
        for record in members.values()
    ]
    common = set.intersection(*(set(calls) for calls in ended))
    return [
        {number for number, calls in zip(members, ended) if _slept(calls[operation]) >= least}
        for operation in sorted(common)
    ]


def _slept(call: RecordedOperation) -> float:
    """Return how long an operation was under way, if a thread has slept in it; else 0."""
    if call.awaited is None or call.begun is None or call.ended is None:
        return 0.0
    return call.ended - call.begun


def _cause(view: JobView, slow: int, others: Mapping[int, float], lost: float) -> Iterator[str]:
    """Say where the slow rank's time goes, if what was measured explains most of it."""
    process = view.dumps[slow].process
    throttled = process.throttled - statistics.median(view.dumps[number].process.throttled for number in others)
    if throttled >= _AGREE * lost:
        yield f"its control group had used up its share of processors for {duration(throttled)}: raise its CPU limit"
        return
    delays = [view.dumps[number].process.run_delay for number in others]
    cpus = [view.dumps[number].process.cpu_seconds for number in others]
    if process.run_delay is None or process.cpu_seconds is None or None in delays or None in cpus:
        return
    delay = process.run_delay - statistics.median(value for value in delays if value is not None)
    cpu = process.cpu_seconds - statistics.median(value for value in cpus if value is not None)
    if delay >= _AGREE * lost:
        yield f"it was ready to run for {duration(delay)} longer than the others, and had no processor"
    elif cpu >= _AGREE * lost:
        yield f"it computes: its threads have used {duration(cpu)} more of processors than the others'"
    elif max(delay, cpu) <= (1 - _AGREE) * lost:
        yield "it neither computes longer nor waits for a processor: it sleeps, or waits for input, outside of DDL"


def _range(seconds: List[float]) -> str:
    least, most = duration(min(seconds)), duration(max(seconds))
    return least if least == most else f"{least} to {most}"
