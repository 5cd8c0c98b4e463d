"""What ``ddl dump`` prints of ranks. Functions without I/O."""

from __future__ import annotations

import statistics
from itertools import groupby
from typing import Iterator, List, Sequence

from ddl.blame.stacks import user_frame
from ddl.records.dump import RankDump
from ddl.records.layout import CommunicatorRecord, RecordedOperation, StepsRecord
from ddl.text.units import counted, duration

__all__ = ["report"]


def report(dumps: Sequence[RankDump], last: int, where: str = "") -> List[str]:
    """Return the lines for ``dumps``, which are in the order of their jobs.

    ``last``: operations of each communicator that are shown. ``where`` all ranks are: `` on this host``.
    """
    lines: List[str] = []
    for _, group in groupby(dumps, key=lambda dump: dump.record.identity.get("job", "")):
        members = list(group)
        identity = members[0].record.identity
        known = (
            f"{len(members)} of its {identity['size']} ranks" if "size" in identity else counted(len(members), "member")
        )
        lines.append(f"job {identity.get('store') or 'without a store'}: {known}{where}")
        for dump in members:
            lines += _rank(dump, last, where)
    return lines


def _rank(dump: RankDump, last: int, where: str) -> Iterator[str]:
    who = f"rank {dump.rank}" if dump.rank >= 0 else "before init"
    host = f"host {dump.host}, " if dump.host and not where else ""
    frame = user_frame(dump.stacks)
    where_it_is = f" at {frame}" if frame is not None else ""
    steps = _steps(dump.record.steps, dump.taken)
    yield f"{who} ({host}pid {dump.process.pid}) {dump.process.state}{where_it_is}{steps}"
    for communicator in dump.record.communicators:
        if communicator.submitted or communicator.submitted_messages or communicator.failure:
            yield from _communicator(communicator, dump.taken, last)


def _steps(steps: StepsRecord, now: float) -> str:
    """Return ``; step 417, ended 0.2 s ago, 0.31 s each``, a median of the last ones; empty: there are none."""
    if not steps.count:
        return ""
    ended = f", ended {_ago(steps.ended[-1], now)}" if steps.ended else ""
    between = [end - begin for begin, end in zip(steps.ended, steps.ended[1:])]
    each = f", {duration(statistics.median(between))} each" if between else ""
    return f"; step {steps.count}{ended}{each}"


def _communicator(communicator: CommunicatorRecord, now: float, last: int) -> Iterator[str]:
    closed = "" if communicator.closed is None else f", closed {_ago(communicator.closed, now)}"
    calls_text = f"{communicator.submitted} collectives, {communicator.submitted_messages} messages called"
    yield f"    {communicator.title}{closed}: {calls_text}"
    if communicator.failure:
        yield f"        {communicator.failure}"
    calls = sorted(
        [*communicator.collectives[-last:], *communicator.messages[-last:]] if last else [],
        key=lambda call: (call.collective in ("send", "recv"), call.number),
    )
    for call in calls:
        yield f"        {_call(call, communicator, now)}"


def _call(call: RecordedOperation, communicator: CommunicatorRecord, now: float) -> str:
    name = call.numbered
    begun = call.begun or call.submitted
    if call.over:
        ended = call.ended or begun
        when = f" {_ago(ended, now)}" if ended else ""
        took = f" after {duration(call.ended - begun)}" if call.ended and begun else ""
        return f"{name}: {call.state}{when}{took}"
    for_so_long = f" for {duration(now - begun)}" if begun else ""
    waits = ""
    if call.awaited is not None and call.awaited < len(communicator.ranks):
        waits = f", waits for rank {communicator.ranks[call.awaited]}"
    done = f", {call.pieces_ended} of {call.pieces} pieces done" if call.pieces > 1 else ""
    return f"{name}: under way{for_so_long}{done}{waits}"


def _ago(moment: float, now: float) -> str:
    return f"{duration(max(0.0, now - moment))} ago"
