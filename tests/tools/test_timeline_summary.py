"""The numbers of ``ddl timeline``, of calls and steps whose times are chosen: exact."""

from __future__ import annotations

from typing import List

import pytest

from ddl.tools.timeline.reading import CallSlice, StepSlice, TimelineContent
from ddl.tools.timeline.report import report
from ddl.tools.timeline.spans import length, shared, union, without
from ddl.tools.timeline.summary import summary_of


def call(
    rank: int, name: str, begin: float, end: float, group: int, *, blocking: bool = False, waited: float = 0.0
) -> CallSlice:
    """Return a call, of which rank 1 was the last to call, 5 us after the one before."""
    return CallSlice(name, "allreduce", rank + 1, rank, begin, end, group, 64, blocking, 1, 5.0, waited)


def content_of(steps: List[StepSlice], calls: List[CallSlice]) -> TimelineContent:
    about = {"command": ["train"]}
    return TimelineContent(about, steps=steps, calls=calls, tracks={1: "rank 000 (host a)", 2: "rank 001 (host a)"})


def test_hidden_is_what_lies_before_the_last_call_that_does_not_wait() -> None:
    steps = [StepSlice(1, 0, 100), StepSlice(1, 100, 200)]
    calls = [
        call(0, "a", 10, 50, 1, waited=10),  # all of it before the call of b, but 45 to 48, when c waits
        call(0, "c", 45, 48, 2, blocking=True, waited=3),
        call(0, "b", 60, 90, 3, waited=20),  # nothing is called after it
    ]
    summary = summary_of(content_of(steps, calls))
    step = summary.step
    assert step is not None and (step.count, step.ranks, step.median_us, step.p99_us) == (2, 1, 100, 100)
    assert step.communication_us == 70 / 2  # nothing in the second step
    assert step.hidden_us == 37 / 2 and step.exposed_us == 33 / 2
    assert step.exposed_waiting_us == (3 + 20) / 2  # of a, waiting was hidden
    assert step.overlap == pytest.approx(37 / 70)
    overlaps = {each.name: each.overlap for each in summary.operations}
    assert overlaps == {"a": pytest.approx(37 / 40), "b": 0.0, "c": 0.0}


def test_a_call_that_lasts_over_the_end_of_a_step_counts_in_both() -> None:
    summary = summary_of(content_of([StepSlice(1, 0, 100), StepSlice(1, 100, 200)], [call(0, "a", 90, 130, 1)]))
    assert summary.step is not None and summary.step.communication_us == 40 / 2
    assert summary.step.hidden_us == 0


def test_operations_and_late_ranks() -> None:
    calls = [
        *(call(0, "a", 100 * n, 100 * n + 30, n, waited=20) for n in range(4)),
        *(call(1, "a", 100 * n + 20, 100 * n + 30, n) for n in range(4)),
        call(0, "b", 1000, 1001, 9)._replace(last=None),
    ]
    content = content_of([], calls)
    summary = summary_of(content)
    assert summary.step is None
    first, second = summary.operations
    assert (first.name, first.count, first.bytes, first.median_us, first.moving_us) == ("a", 4, 64, 20, 10)
    assert first.waiting_us == 10 and first.overlap is None and second.name == "b"
    (late,) = summary.late
    assert (late.rank, late.times, late.share, late.late_us, late.others_waited_us) == (1, 4, 1.0, 5.0, 80.0)
    said = "\n".join(report("trace.json", content, summary))
    assert "nobody has noted a training step" in said and "rank 001 (host a)" in said


def test_an_empty_file_has_a_summary() -> None:
    content = content_of([], [])
    assert "2 ranks, 0 calls" in report("trace.json", content, summary_of(content))[0]


def test_spans() -> None:
    a, b = union([(5.0, 7.0), (0, 2), (1, 3), (3, 4), (9, 9)]), [(1.0, 6.0)]
    assert a == [(0, 4), (5, 7)]
    assert shared(a, b) == [(1, 4), (5, 6)] and length(shared(a, b)) == 4
    assert without(a, b) == [(0, 1), (6, 7)] and without(a, []) == a and without([], b) == []
