"""What the page is told, and what stands in a history: lines, rates, curves, and files that end within a record."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import List

import pytest
from launch.simulated_page import SimulatedJob

from ddl.launch.dashboard.history import HistoryWriter, read_history
from ddl.launch.dashboard.line_tap import LineTap
from ddl.launch.dashboard.records import Record, encoded
from ddl.launch.dashboard.replay import ReplaySource
from ddl.launch.dashboard.story import Story
from ddl.tools.cli import main

HEAD: Record = {"k": "job", "t": 0.0, "version": 1, "columns": [], "hosts": []}


def state(elapsed: float) -> Record:
    now = {"per_second": elapsed, "waiting": 0.5, "sent_per_second": None, "unit": "step"}
    return {"k": "state", "t": elapsed, "job": now, "texts": [], "ranks": [], "links": []}


def written(path: Path, records: List[Record]) -> HistoryWriter:
    writer = HistoryWriter(path.open("wb", buffering=0))
    for record in records:
        writer.add(record, encoded(record))
    return writer


def test_lines_of_ranks_and_of_ddlrun() -> None:
    tap = LineTap(prefix=True)
    tap.put(1, b"[ 3] first\n[ 3] second\n")
    tap.put(2, b"2026-01-01T00:00:00.000 [12] with the time\n")
    tap.put(2, b"ddlrun: rank 1 was started\nsrun: no prefix\n")
    tap.put(2, b"\x1b[Kddlrun: 2 ranks, 0:00:01\r")  # the line about the job is none of these
    lines, left_out, own = tap.take()
    assert lines == [(3, 1, "first"), (3, 1, "second"), (12, 2, "with the time"), (-1, 2, "srun: no prefix")]
    assert left_out == 0 and own == ["rank 1 was started"]
    assert tap.take() == ([], 0, [])


def test_a_progress_bar_is_a_line_and_much_output_is_cut() -> None:
    tap = LineTap(prefix=True)
    for percent in range(5):
        tap.put(1, f"[0] {percent} %\r".encode())
    tap.put(1, b"[0] 5 %\r[0] 6 %\r\n[0] behind\n")
    assert tap.take().lines == [(0, 1, "6 %"), (0, 1, "behind")]
    tap.put(1, b"".join(b"[1] %d\n" % number for number in range(10_000)) + b"[1] " + b"x" * 5000 + b"\n")
    lines, left_out, _ = tap.take()
    assert [len(text) for _, _, text in lines][-1] == 400 and [text for _, _, text in lines][0] == "9981"
    assert len(lines) + left_out == 10_001
    for number in range(30):
        for rank in range(20):
            tap.put(1, f"[{rank}] {number}\n".encode())
    lines, left_out, _ = tap.take()
    assert len(lines) == 200 and left_out == 400


def test_a_file_that_was_cut_off_shows_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "job.gz"
    writer = written(path, [HEAD, *(state(float(second)) for second in range(1, 31))])
    whole = path.read_bytes()  # as after a crash: nothing is missing, but the end of the file
    assert [record["t"] for record, _ in read_history(path)] == list(range(31))
    writer.close()
    rest = random.Random(3)
    for length in sorted(rest.sample(range(80, len(whole)), 20)):
        path.write_bytes(whole[:length])
        times = [record["t"] for record, _ in read_history(path)]
        assert times == list(range(len(times))) and times


def test_a_long_job_has_a_small_file_and_its_last_minutes_whole(tmp_path: Path) -> None:
    path = tmp_path / "job.gz"
    hours = 24
    seconds = [float(second) for second in range(1, hours * 3600 + 1)]
    written(path, [HEAD, *map(state, seconds), {"k": "end", "t": seconds[-1], "status": 0}]).close()
    replay = ReplaySource(path)
    times = json.loads(replay.story())["times"]
    assert times[:3000] == seconds[:3000] and set(times) >= set(seconds[-100:]) and times == sorted(set(times))
    assert len(times) < 20_000 and path.stat().st_size < 2_000_000
    moment = replay.moment(seconds[-1] / 2)
    assert moment is not None and abs(json.loads(moment)["state"]["t"] - seconds[-1] / 2) < 15


def test_a_very_large_job_has_fewer_states_and_never_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for limit in (40_000, 1 << 40):
        monkeypatch.setattr("ddl.launch.dashboard.history._LIMIT", limit)
        monkeypatch.setattr("ddl.launch.dashboard.history._DENSE", limit // 4)
        path = tmp_path / f"{limit}.gz"
        records = []
        for second in range(1, 4001):
            records += [state(float(second)), {"k": "lines", "t": float(second), "lines": [[0, 1, f"line {second}"]]}]
        written(path, [HEAD, *records, {"k": "end", "t": 4000.0, "status": 0}]).close()
        story = json.loads(ReplaySource(path).story())
        assert story["lines"][-1] == [0, 1, "line 4000"] and story["times"][-1] == 4000.0
        sizes.append(len(story["times"]))
    assert sizes[0] < 500 and sizes[1] == 4000


def test_curves_have_a_bound() -> None:
    story = Story()
    for second in range(1, 20_001):
        story.add_point(state(float(second)))
    series = story.message()["series"]
    assert 1800 <= len(series[0]) <= 3600 and all(len(curve) == len(series[0]) for curve in series)
    assert series[0] == series[1] == sorted(series[0]) and series[0][-1] > 19_980


def test_lines_of_processes_that_have_ended_have_a_bound() -> None:
    """In an elastic job any number may be lost; those that run are kept in any case."""
    story = Story()
    for number in range(2000):
        story.add({"k": "lines", "t": 0.0, "lines": [[number, 1, f"line of {number}"]], "left_out": 0})
        if number:
            story.add({"k": "event", "t": 0.0, "text": "it was killed", "of": "exit", "number": number})
    assert [line[0] for line in story.message()["lines"]] == [0, *range(2000 - 1024, 2000)]


def test_a_disk_that_is_full_ends_the_history_and_nothing_else() -> None:
    writer = HistoryWriter(open("/dev/full", "wb", buffering=0))
    for second in range(5):
        writer.add(state(float(second)), encoded(state(float(second))))
    assert "the history ends here: [Errno 28]" in writer.problem
    writer.close()


def test_what_is_no_history_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    cases = {
        b"text": "it cannot be read",
        b"": "it has no record",
        gzip.compress(b"[]\n"): "it is no history",
        gzip.compress(b'{"k": "job", "version": 99}\n'): "it is of another version of DDL",
        gzip.compress(encoded(HEAD) + b"\n"): "it has no state of the job",
    }
    for data, words in cases.items():
        path.write_bytes(data)
        assert main(["page", str(path)]) == 2
        assert words in capsys.readouterr().err
    assert main(["page", str(tmp_path / "none")]) == 2
    assert main(["page", str(path), "--listen", "x:y"]) == 2


def test_links_between_hosts_are_sums_of_ranks(tmp_path: Path) -> None:
    job = SimulatedJob(3, 2, history=str(tmp_path / "job.gz"))
    for _ in range(8):
        job.second()
    job.page.end(job.time, 0, None)
    last = json.loads(ReplaySource(tmp_path / "job.gz").story())["state"]
    links = {(last["texts"][a], last["texts"][b]): rate for a, b, rate in last["links"]}
    assert links["node00", "node01"] == 2 * 40_000_000 and links["node01", "node00"] == 2 * 9_000_000
    assert links["node02", "node00"] == 2 * 40_000_000 and links["node02", "node02"] == 2 * 3_000_000
    assert last["job"]["sent_per_second"] == 3 * 2 * 52_000_000 and "rails" not in last


def test_rails_between_hosts_are_sums_of_ranks(tmp_path: Path) -> None:
    job = SimulatedJob(3, 2, rails=3, history=str(tmp_path / "job.gz"))
    for _ in range(8):
        job.second()
    job.page.end(job.time, 0, None)
    last = json.loads(ReplaySource(tmp_path / "job.gz").story())["state"]
    rails = {tuple(last["texts"][text] for text in place): rate for *place, rate in last["rails"]}
    assert len(rails) == 3 * 2 * 3
    for rail, rate in enumerate([2 * 40_000_000 / 3, 2 * 40_000_000 / 3, 0]):
        assert abs(rails["node00", "node01", f"10.77.{rail}.1", f"10.77.{rail}.2"] - rate) <= 1
        assert abs(rails["node02", "node00", f"10.77.{rail}.3", f"10.77.{rail}.1"] - rate) <= 1
