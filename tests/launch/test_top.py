"""``ddl top``: what it shows of real jobs, in a terminal and for programs, and what it says where there is none."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator, List

import pytest
from launch.launcher import ROOT, Launcher, eventually

from ddl.launch.show.requests import JobRequests
from ddl.tools.cli import main
from ddl.tools.top.table import lines, rows

pytestmark = pytest.mark.processes
Script = Callable[[str], str]
TOOL = [sys.executable, "-m", "ddl.tools", "top"]

TRAIN = """
import ddl, numpy as np
from ddl.adapter.step_record import note_step
ddl.init()
print("begun", flush=True)
going = np.ones(1000)
while going[0] == 1:  # all ranks see the same
    if rank == 1:
        time.sleep(0.05)
    going[0] = not os.path.exists(sys.argv[1])
    ddl.allreduce_(going)
    note_step()
"""


@pytest.fixture
def job(launcher: Launcher, script: Script, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """Start a job of two ranks; return the process of its ddlrun."""
    hosts = getattr(request, "param", ("-np", "2"))
    process = launcher.start(*hosts, script(TRAIN), str(tmp_path / "end"))
    assert process.stdout is not None and process.stdout.readline().endswith("begun\n")
    yield process.pid
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


def top(*arguments: str) -> str:
    environ = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run([*TOOL, *arguments], capture_output=True, text=True, check=True, env=environ, timeout=240)
    return done.stdout


@pytest.mark.few(1)
@pytest.mark.parametrize("job", [("-np", "2"), ("-H", "localhost:1,127.0.0.1:1")], indirect=True)
def test_a_job_is_shown_once(job: int) -> None:
    picture = json.loads(top(str(job), "--once", "--json"))
    assert picture["job"]["pid"] == job and picture["job"]["unit"] == "step" and picture["job"]["ranks"] == 2
    first, second = (rank["sample"] for rank in picture["ranks"])
    assert (first["rank"], second["rank"]) == (0, 1) and min(first["steps"], second["steps"]) > 0

    def shows_who_waits() -> bool:
        """Rank 1 sleeps 50 ms of each step, and rank 0 waits for it; a machine may be busy for a while."""
        ranks = json.loads(top(str(job), "--once", "--json"))["ranks"]
        return 0 < ranks[0]["per_second"] < 21 and ranks[0]["waiting"] > 0.5 > ranks[1]["waiting"]

    assert eventually(shows_who_waits)
    head, _, names, *ranks = top(str(job), "--once").splitlines()
    assert re.match(rf"ddlrun {job}: 2 ranks, 0:\d\d:\d\d, step \d+, .* steps/s, waiting \d+ %", head)
    assert names.split()[:4] == ["rank", "host", "pid", "state"] and len(ranks) == 2
    assert all(f"#{number}" in line for line, number in zip(ranks, re.findall(r"#(\d+)", "\n".join(ranks))))


@pytest.mark.slow
def test_a_program_gets_a_line_a_second(job: int) -> None:
    with subprocess.Popen(
        [*TOOL, str(job), "--json"], stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as watcher:
        assert watcher.stdout is not None
        pictures = [json.loads(watcher.stdout.readline()) for _ in range(3)]
        while pictures[-1]["job"]["count"] == pictures[0]["job"]["count"]:  # no rank has had a processor meanwhile
            pictures.append(json.loads(watcher.stdout.readline()))
        watcher.kill()
    steps = [picture["job"]["count"] for picture in pictures]
    assert steps == sorted(steps)
    assert [picture["job"]["elapsed"] for picture in pictures] == sorted(p["job"]["elapsed"] for p in pictures)


@pytest.mark.slow
def test_a_terminal_shows_it_until_the_job_ends(
    launcher: Launcher, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    process = launcher.start("-np", "2", script(TRAIN), str(tmp_path / "end"))
    assert process.stdout is not None and process.stdout.readline().endswith("begun\n")
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", "160", "rows", "30"], stdin=theirs, check=True)
    watcher = subprocess.Popen([*TOOL, str(process.pid)], stdout=theirs, stdin=theirs, env={**os.environ})
    os.close(theirs)
    pieces: List[bytes] = []
    try:
        while piece := os.read(ours, 1 << 16):
            pieces.append(piece)
            if b"".join(pieces).count(b"allreduce #") >= 4:
                (tmp_path / "end").touch()
    except OSError:  # the terminal is closed
        pass
    os.close(ours)
    assert watcher.wait(60) == 0 and process.wait(60) == 0
    text = b"".join(pieces).decode()
    assert "last operation" in text and "the job has ended; its last second:" in text
    assert re.search(rf"ddlrun {process.pid}: 2 ranks, ", text)


@pytest.mark.slow
def test_which_job(
    job: int, launcher: Launcher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ddl.tools.top.command.jobs_here", lambda: [job, 4711])
    assert main(["top", "--once"]) == 2
    assert f"name the process of ddlrun of this user on this host; there are {job}, 4711" in capsys.readouterr().err
    monkeypatch.setattr("ddl.tools.top.command.jobs_here", lambda: [job])
    assert main(["top", "--once"]) == 0
    assert f"ddlrun {job}: 2 ranks" in capsys.readouterr().out


def test_no_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["top"]) == 2
    assert "name the process of ddlrun of this user on this host; there is none" in capsys.readouterr().err
    assert main(["top", "1"]) == 2
    assert "process 1 is no ddlrun of this user on this host (there are: none)" in capsys.readouterr().err


def test_who_does_not_read_is_told_nothing_any_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    watched: List[bool] = []
    asked = JobRequests(lambda: None, lambda: watched.append(True))
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(tmp_path / "ddl" / f"{os.getpid()}.sock"))
    client.sendall(b'{"do": "watch"}\n')

    def turn() -> bool:
        for _, action in asked.handlers().values():
            action()
        return asked.watched

    assert eventually(turn) and watched == [True]
    for _ in range(100):
        asked.show({"text": "x" * (1 << 20)})
    assert not asked.watched
    client.close()
    asked.close()
    assert not (tmp_path / "ddl" / f"{os.getpid()}.sock").exists()


def test_a_folder_of_somebody_else_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "ddl").mkdir(mode=0o777)
    (tmp_path / "ddl").chmod(0o777)
    asked = JobRequests(lambda: None, lambda: None)
    assert "is not a folder that only this user may enter" in asked.problem and not asked.handlers()
    asked.close()


SAMPLE = {
    **{"rank": 3, "number": 3, "host": "b", "pid": 42, "state": "sleeps", "taken": 1.0, "communicator": 0},
    **{"steps": 0, "operations": 7, "under_way": 0.5, "waited": 0.1, "sent_bytes": 3 << 20, "call": "allreduce #7 (x)"},
    **{"call_state": "begun", "awaited": 1, "failure": ""},
}
JOB = {
    **{"pid": 9, "command": ["python", "a b.py"], "elapsed": 61.0, "ranks": 4, "unit": "operation", "count": 7},
    **{"per_second": None, "waiting": None, "slowest": None, "late": 0.0},
}


def test_what_a_line_says() -> None:
    rank = {"sample": SAMPLE, "per_second": 1234.5, "waiting": 0.256, "late": 0.0}
    stopped = {**rank, "sample": {**SAMPLE, "state": "is stopped", "call_state": "ended"}, "per_second": None}
    failed = {**rank, "sample": {**SAMPLE, "failure": "PeerLost: lost rank 1"}, "waiting": None, "late": 0.012}
    picture = {"job": JOB, "ranks": [rank, stopped, failed]}
    head, _, _, first, second, third = lines(picture)
    assert head == "ddlrun 9: 4 ranks, 0:01:01, operation 7: python 'a b.py'"
    assert first.split(None, 5)[:5] == ["3", "b", "42", "sleeps", "-"]
    assert first.endswith("1.23e+03     26 %      -  3 MiB  allreduce #7 (x), waits for rank 1")
    assert second.endswith("allreduce #7 (x)") and "is stopped" in second
    assert third.endswith("PeerLost: lost rank 1") and "has failed" in third and "12 ms" in third
    assert [(row.is_late, row.is_odd) for row in rows(picture)] == [(False, False), (False, True), (True, True)]
