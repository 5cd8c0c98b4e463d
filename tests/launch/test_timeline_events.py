"""What becomes of calls that nobody made here: which belong together, who was last, and slices that nest."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

import pytest
from timelines import Event, events_of, names, slices, summary, totals

from ddl.launch.agent.clocks import ClockOffset, HostClock, kernel_clock
from ddl.launch.agent.trace_pace import TracePace
from ddl.launch.ask.config import RunConfig
from ddl.launch.timeline.job_timeline import JobTimeline
from ddl.records.follow import CallKind, RankNews, TracedCall

KIND = CallKind("allreduce", "allreduce(2 x float32, sum)", "bucket", "large", "ring", 8, -1)
SEND = CallKind("send", "send(2 x float32, to rank 1)", "", "messages", "message", 8, 1)
RECV = CallKind("recv", "recv(2 x float32, from rank 0)", "", "messages", "message", 8, 0)
Times = Tuple[Optional[float], Optional[float]]


class Job:
    """A timeline of ranks that were never there. Times are seconds since its begin."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trace.json"
        self.timeline = JobTimeline(RunConfig(2, ("program",)), str(self.path), print)

    def call(self, rank: int, number: int, times: Times, kind: CallKind = KIND, **more: Any) -> TracedCall:
        begun, ended = (None if time is None else self.timeline._began + time for time in times)
        call = TracedCall(number, kind, None, begun, ended, "ended", None)
        return call._replace(**more)

    def submitted(self, rank: int, number: int, times: Times) -> TracedCall:
        """Return a call that did not wait for its end."""
        return self.call(rank, number, times, submitted=self.timeline._began + (times[0] or 0.0))

    def take(self, rank: int, *calls: TracedCall, size: int = 2, missing: int = 0, offset: float = 0.0) -> None:
        messages = any(call.kind.collective in ("send", "recv") for call in calls)
        about = (rank, rank, "h", self.timeline._began + 9, 0, tuple(range(size)), rank, messages, missing)
        self.timeline.take([RankNews(*about, calls=calls)], ClockOffset(offset, 0.0, 0.0))

    def end(self) -> List[Event]:
        self.timeline.close()
        return events_of(self.path)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_last_to_call_has_no_times(job: Job) -> None:
    """It found the others there; they say when it came."""
    job.take(0, job.call(0, 1, (1.0, 3.0)), size=3)
    job.take(2, job.call(2, 1, (None, None)), size=3)
    job.take(1, job.call(1, 1, (2.0, 3.1)), size=3)
    events = job.end()
    about = {event["pid"]: event["args"] for event in slices(events, "allreduce")}
    assert [each["last"] for each in about.values()] == [2, 2, 2]
    assert sorted(each["waited_us"] for each in about.values()) == [0.0, 1e6, 2e6]
    assert {each["late_us"] for each in about.values()} == {1e6}
    assert {event["name"] for event in slices(events, "wait")} == {"waits for rank 2"}
    assert sum(event["ph"] == "s" for event in events) == 2
    assert (totals(events)["calls"], totals(events)["quick"]) == (3, 0)


@pytest.mark.parametrize(("awaited", "last"), [(2, 2), (1, 1), (None, None)])
def test_two_have_no_times(job: Job, awaited: Optional[int], last: Optional[int]) -> None:
    """The third one went to sleep for the one that came last."""
    job.take(0, job.call(0, 1, (1.0, 3.0), awaited=awaited), size=3)
    job.take(1, job.call(1, 1, (None, None)), size=3)
    job.take(2, job.call(2, 1, (None, None)), size=3)
    events = job.end()
    assert {event["args"].get("last") for event in slices(events, "allreduce")} == {last}
    assert totals(events)["quick"] == (2 if last is None else 1)


def test_nobody_has_times(job: Job) -> None:
    for rank in range(2):
        job.take(rank, *(job.call(rank, number, (None, None)) for number in range(1, 6)))
    events = job.end()
    assert slices(events) == [] and totals(events)["quick"] == 10


def test_a_rank_that_never_comes(job: Job) -> None:
    job.take(0, job.call(0, 1, (1.0, None), state="begun", awaited=1))
    events = job.end()
    (call,) = slices(events, "allreduce")
    assert call["args"]["state"] == "begun" and call["dur"] == 8e6 and "last" not in call["args"]
    assert totals(events)["partial"] == 1


def test_messages_are_counted_in_their_order(job: Job) -> None:
    """They end in another one. Two from rank 0 to rank 1 and one back."""
    back = SEND._replace(peer=0), RECV._replace(peer=1)
    job.take(0, job.call(0, 3, (5.0, 5.1), SEND), job.call(0, 1, (1.0, 1.1), SEND))
    job.take(1, job.call(1, 2, (4.0, 4.1), back[0]), job.call(1, 1, (0.5, 1.2), RECV), job.call(1, 3, (2, 6), RECV))
    job.take(0, job.call(0, 2, (2.5, 4.2), back[1]))
    events = job.end()
    arrows = [(event["ph"], event["ts"]) for event in events if event["ph"] in "sf"]
    assert arrows == [("s", 1e6), ("f", 1e6), ("s", 4e6), ("f", 4e6), ("s", 5e6), ("f", 5e6)]
    assert totals(events)["partial"] == 0


def test_messages_of_which_some_are_missing_are_not_matched(job: Job) -> None:
    job.take(0, job.call(0, 1, (1.0, 1.1), SEND))
    job.take(1, job.call(1, 7, (0.5, 1.2), RECV), missing=6)
    events = job.end()
    assert not [event for event in events if event["ph"] == "s"] and totals(events)["partial"] == 2
    assert len(slices(events)) == 2


def test_clocks_that_are_wrong_are_found(job: Job, tmp_path: Path) -> None:
    for number in range(1, 4):
        job.take(0, job.submitted(0, number, (number, number + 0.5)))
        job.take(1, job.submitted(1, number, (number + 0.4, number + 0.5)), offset=-0.3)
    assert totals(job.end())["impossible_us"] == pytest.approx(200e3)
    said = summary(job.path)
    assert "do not trust the clocks: in 3 of 3 operations" in said and "by up to 200 ms" in said


def test_a_rank_that_lost_the_processor_before_it_began_to_wait_says_nothing_of_clocks(job: Job) -> None:
    """The clock is read then. By then it had taken part, and the other had ended."""
    job.take(0, job.submitted(0, 1, (1.0, 1.5)))
    job.take(1, job.call(1, 1, (1.7, 1.8)))
    sums = totals(job.end())
    assert sums["checked"] == sums["impossible"] == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_overlaps_slices_nest_and_arrows_bind(job: Job, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(1, 60):
        for rank in chance.sample(range(3), 3):
            begin = number * 0.01 + chance.choice([0.0, 0.001, chance.random() / 20])
            end = begin + chance.choice([0.0, 0.01, chance.random()])
            times: Sequence[Times] = [(begin, end), (begin, None), (None, None)]
            job.take(rank, job.call(rank, number, chance.choices(times, [8, 1, 1])[0]), size=3)
    events = job.end()
    assert len(names(events)) == 3 and totals(events)["calls"] + totals(events)["quick"] == 177


def test_a_steps_begin_is_the_end_of_the_one_before(job: Job) -> None:
    began = job.timeline._began
    about = RankNews(4, 2, "h", began, -1)
    first = dataclasses.replace(about, first_step=1, step_ends=(began + 1, began + 3))
    job.timeline.take([first], None)
    second = dataclasses.replace(about, first_step=3, step_begin=began + 3, step_ends=(began + 4,))
    job.timeline.take([second], ClockOffset(0.5, 0.1, 0.0))
    events = job.end()
    told = [(event["name"], round(event["ts"]), round(event["dur"])) for event in slices(events, "step")]
    assert told == [("step 2", 1_000_000, 2_000_000), ("step 3", 3_000_000, 500_000)]  # the clock was measured anew
    assert names(events) == ["rank 002 (host h, process 4)"]


def test_the_fastest_exchange_tells_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    asked: List[int] = []
    monkeypatch.setattr("ddl.clock.now", lambda: now[0])
    clock = HostClock(lambda message: asked.append(message["number"]))
    clock.keep_measured(now[0])
    for exchange in range(64):
        assert len(asked) == exchange + 1 and clock.offset is None
        there, back = (1e-6, 3e-6) if exchange == 7 else (0.004, 0.001)
        answer = {"number": asked[-1], "time": now[0] + there + 1000, "kernel": "another one"}
        now[0] += there + back
        assert clock.heard(answer, now[0]) == (exchange == 63)
    assert clock.offset is not None
    assert clock.offset.offset == pytest.approx(1000 - 1e-6, abs=1e-9) and clock.offset.error == pytest.approx(2e-6)
    assert clock.offset.error_at(now[0] + 5) > 1e-4
    clock.keep_measured(now[0] + 1)
    assert len(asked) == 64  # not yet again
    now[0] += 6
    for _ in range(16):
        clock.keep_measured(now[0])
        now[0] += 0.01
        assert not clock.heard({"number": asked[-1], "time": now[0] + 1000, "kernel": ""}, now[0])
    assert clock.offset.error == pytest.approx(2e-6)  # what was known before is better
    now[0] += 6
    clock.keep_measured(now[0])
    assert len(asked) == 64 + 16 + 1
    assert not clock.heard({"number": 3, "time": 0.0, "kernel": ""}, now[0])  # of long ago
    assert clock.heard({"number": 81, "time": 5.0, "kernel": kernel_clock()}, now[0])
    assert clock.offset.offset == clock.offset.error == 0.0


def test_looks_come_sooner_when_rings_fill() -> None:
    pace = TracePace(0.0)
    for _ in range(20):
        pace.looked(1.0, 0.0, 0.05)
    assert pace.next == pytest.approx(1.25)
    for _ in range(20):
        pace.looked(1.0, 0.001, 0.9)
    assert pace.next == pytest.approx(1.02)
    pace.looked(1.0, 0.1, 0.2)
    assert pace.next == pytest.approx(1.9)  # a ninth of a core
    pace.looked(1.0, 0.1, 0.9)
    assert pace.next == pytest.approx(1.3)  # never more than a third
