"""The summary of a timeline, as people read it."""

from __future__ import annotations

import shlex
from typing import Iterator, List

from ddl.text.columns import aligned
from ddl.text.units import bytes_text, counted, duration
from ddl.tools.timeline.reading import TimelineContent
from ddl.tools.timeline.summary import StepSummary, TimelineSummary

__all__ = ["report"]

_SHOWN = 12  # operations, late ranks, hosts, notes
_NO_STEPS = ["nobody has noted a training step (docs/record.md says how), so this is of operations only"]
_NAME = 40  # characters of an operation
_HEADINGS = ("count", "size", "median", "moving", "waiting", "hidden", "operation")


def report(path: str, content: TimelineContent, summary: TimelineSummary) -> List[str]:
    """Return the lines."""
    lines = [_head(path, content), *_clocks(content), *_gaps(content), ""]
    lines += _NO_STEPS if summary.step is None else _step(summary.step)
    if summary.operations:
        lines += ["", *_operations(summary)]
    if summary.late:
        lines += ["", *_late(summary)]
    if content.notes:
        lines += ["", *content.notes[:_SHOWN], *_more(len(content.notes), "note")]
    return lines


def _head(path: str, content: TimelineContent) -> str:
    last = max((call.end for call in content.calls), default=0.0)
    cut = "" if content.whole else ", and its end is missing: the job runs, was killed, or the file was full"
    command = shlex.join(map(str, content.about["command"]))
    ranks = counted(len(content.tracks), "rank")
    return f"{path}: {ranks}, {counted(len(content.calls), 'call')} in {_time(last)}{cut}: {command}"


def _clocks(content: TimelineContent) -> Iterator[str]:
    apart = {host: clock for host, clock in content.clocks.items() if clock != (0.0, 0.0)}
    for host, (offset, error) in list(apart.items())[:_SHOWN]:
        ahead = "ahead" if offset >= 0 else "behind"
        yield f"the clock of host {host} is {abs(offset) / 1e6:.6f} s {ahead}, known to {error:.0f} µs"
    yield from _more(len(apart), "host")
    totals = content.totals
    if content.clocks and not apart:
        yield "all hosts have the same clock"
    if totals.checked and not totals.impossible:
        yield f"checked with {counted(totals.checked, 'operation')}: no rank has ended before the last one has called"
    if totals.impossible:
        yield (
            f"do not trust the clocks: in {totals.impossible} of {totals.checked} operations a rank seems "
            f"to have ended before the last one has called, by up to {_time(totals.impossible_us)}"
        )


def _gaps(content: TimelineContent) -> Iterator[str]:
    totals = content.totals
    if totals.quick:
        yield f"{counted(totals.quick, 'call')} without times: quick ones, which took some microseconds each"
    if totals.missing or totals.missing_steps:
        yield (
            f"missing: {counted(totals.missing, 'call')} and {counted(totals.missing_steps, 'step')}, "
            "which came faster than they could be read"
        )
    if totals.partial:
        yield f"{counted(totals.partial, 'operation')} of which the call of a rank is not known"


def _step(step: StepSummary) -> List[str]:
    computing = step.mean_us - step.exposed_us
    moving = step.exposed_us - step.exposed_waiting_us
    rows = [
        (_time(time), f"{100 * time / step.mean_us:.0f} %", what)
        for time, what in (
            (computing, "computing, loading, and all else that the program does"),
            (step.exposed_waiting_us, "waiting until the last rank calls, with nothing else to do"),
            (moving, "waiting while data moves"),
        )
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [
        f"a step takes {_time(step.median_us)} (median of {counted(step.count, 'step')} of "
        f"{counted(step.ranks, 'rank')}; p99 {_time(step.p99_us)}); the mean, {_time(step.mean_us)}, is",
        *(f"    {row[0].rjust(widths[0])}  {row[1].rjust(widths[1])}  {row[2]}" for row in rows),
        f"communication is under way for {_time(step.communication_us)} of it; {_time(step.hidden_us)} of that, "
        f"{100 * step.overlap:.0f} %, is hidden behind computation",
    ]


def _operations(summary: TimelineSummary) -> List[str]:
    rows = [_HEADINGS[:-1]]
    shown = summary.operations[:_SHOWN]
    for each in shown:
        rows.append(
            (
                str(each.count),
                bytes_text(each.bytes) if each.bytes else "-",
                _time(each.median_us),
                _time(each.moving_us),
                _time(each.waiting_us),
                "-" if each.overlap is None else f"{100 * each.overlap:.0f} %",
            )
        )
    names = [_HEADINGS[-1], *(f"{each.name:.{_NAME}}" for each in shown)]
    lines = [f"{line}  {name}" for line, name in zip(aligned(rows), names)]
    return [*lines, *_more(len(summary.operations), "operation")]


def _late(summary: TimelineSummary) -> List[str]:
    shown = summary.late[:_SHOWN]
    rows = [("times", "share", "late by", "others waited")]
    for each in shown:
        waited = _time(each.others_waited_us)
        rows.append((str(each.times), f"{100 * each.share:.0f} %", _time(each.late_us), waited))
    names = ["the last rank to call an operation", *(each.track for each in shown)]
    lines = [f"{line}  {name}" for line, name in zip(aligned(rows), names)]
    return [*lines, *_more(len(summary.late), "rank")]


def _more(count: int, what: str) -> List[str]:
    return [f"and {counted(count - _SHOWN, what)} more"] if count > _SHOWN else []


def _time(microseconds: float) -> str:
    return duration(microseconds / 1e6)
