"""The line at the bottom of a terminal that says how a job is: real terminals, local and on several hosts."""

from __future__ import annotations

import dataclasses
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Callable, List, Optional

import pytest
from launch.launcher import Launcher

from ddl.launch.agent.job_watch import JobNow, JobWatch, status_text
from ddl.records.sample import RankSample

pytestmark = pytest.mark.processes
Script = Callable[[str], str]
HERE = ("-np", "2")
TWO_HOSTS = ("-H", "localhost:1,127.0.0.1:1")
ERASE = "\x1b[K"

#: Makes 22 steps, and goes on until it is told to end.
TRAIN = """
import ddl, numpy as np
ddl.init()
going, step = np.ones(10), 0
while going[0] == 1:  # all ranks see the same
    time.sleep(0.1)
    step += 1
    going[:] = step < 22 or not os.path.exists(sys.argv[1])
    ddl.allreduce_(going)
    if step == 17 and rank == 0:
        print("half of it", flush=True)
print("all of it")
"""


def on_a_terminal(
    launcher: Launcher, *arguments: str, columns: int = 100, end: Optional[Path] = None, after: str = "", times: int = 1
) -> str:
    """Run ddlrun with a terminal for both of its outputs; return what came there.

    ``end``: a file that is made when so much of what matches ``after`` has come.
    """
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", str(columns)], stdin=theirs, check=True)
    job = launcher.start(*arguments, stdout=theirs, stderr=theirs)
    os.close(theirs)
    pieces: List[bytes] = []
    try:
        while piece := os.read(ours, 1 << 16):
            pieces.append(piece)
            if end is not None and len(re.findall(after, b"".join(pieces).decode(errors="replace"))) >= times:
                end.touch()
    except OSError:  # nobody has the terminal any more
        pass
    os.close(ours)
    assert job.wait(60) == 0
    return b"".join(pieces).decode()


def screen(text: str) -> List[str]:
    """Return the lines that stand there in the end, of what only returns, erases to the right, and begins lines."""
    lines, column = [""], 0
    for part in re.findall(r"\r|\n|\x1b\[K|[^\r\n\x1b]+", text):
        if part == "\n":
            lines.append("")
        elif part == "\r":
            column = 0
        elif part == ERASE:
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
            column += len(part)
        if part == "\n":
            column = 0
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [HERE, TWO_HOSTS])
def test_a_line_says_how_the_job_is(launcher: Launcher, script: Script, hosts: List[str], tmp_path: Path) -> None:
    end, rates = tmp_path / "end", r"operations/s, waiting \d+ %\r"
    text = on_a_terminal(launcher, *hosts, script(TRAIN), str(end), end=end, after=rates, times=2)
    said = re.findall(r"ddlrun: (2 ranks, .*?)\r", text)
    nows = [re.search(r"0:\d\d:\d\d, operation (\d+), ([\d.]+) operations/s, waiting (\d+) %$", each) for each in said]
    steps = [int(now[1]) for now in nows if now is not None]
    assert len(steps) >= 2 and steps == sorted(steps), said
    assert all(int(now[3]) <= 100 for now in nows if now is not None), said
    lines = [line for line in screen(text) if line and "warning" not in line]
    assert sorted(lines) == ["[0] all of it", "[0] half of it", "[1] all of it"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--quiet"], ["--verbose"]])
def test_no_line_where_nobody_wants_it(launcher: Launcher, script: Script, options: List[str]) -> None:
    program = script(TRAIN)  # a file that is there: it makes its 22 steps
    assert "operations/s" not in on_a_terminal(launcher, *HERE, *options, program, program)


@pytest.mark.slow
def test_a_progress_bar_of_a_rank_stays(launcher: Launcher, script: Script) -> None:
    bar = "for done in range(25):\n    print(f'{done} of 25', end='\\r', flush=True)\n    time.sleep(0.1)\n"
    text = on_a_terminal(launcher, "-np", "1", script("if rank == 0:\n    print('begins')\n" + bar))
    assert "ddlrun: " not in text[text.index("0 of 25") :]


@pytest.mark.slow
def test_a_line_is_as_long_as_the_terminal(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    end, program = tmp_path / "end", script("while not os.path.exists(sys.argv[1]): time.sleep(0.05)")
    text = on_a_terminal(launcher, *HERE, program, str(end), columns=20, end=end, after="ddlrun: .*?\r")
    said = re.findall(r"ddlrun: .*?(?=\r)", text)
    assert said and all(len(line) <= 19 for line in said)
    assert "".join(screen(text)) == ""


def sample(number: int, taken: float, operations: int, waited: float, communicator: int = 0) -> RankSample:
    return RankSample(
        *(number, number, "a", 1, "runs", taken, communicator), operations=operations, under_way=waited, waited=waited
    )


def test_rates_of_the_last_seconds() -> None:
    watch = JobWatch()
    assert watch.now(2, {}) == JobNow(2, "operation", 0, None, None, None)
    assert status_text(watch.now(2, {}), 5.0) == "2 ranks, 0:00:05"
    for second in range(30):
        watch.take([sample(0, second, 10 * second, 0.1 * second), sample(1, 100 + second, 10 * second, 0.3 * second)])
    now = watch.now(2, {1: 0.01})
    assert (now.unit, now.count, now.per_second, now.slowest) == ("operation", 290, 10.0, 1)
    assert now.waiting == pytest.approx(0.2)
    words = "2 ranks, 1:01:01, operation 290, 10 operations/s, waiting 20 %, rank 1 comes 10 ms late to each operation"
    assert status_text(now, 3661.5) == words
    steps = JobWatch()
    for second in range(5):
        steps.take([dataclasses.replace(sample(0, second, 10 * second, 0.0), steps=2 * second)])
    assert status_text(steps.now(1, {}), 4.0) == "1 rank, 0:00:04, step 8, 2 steps/s, waiting 0 %"
    watch.take([sample(0, 31.0, 2, 0.0, communicator=1 << 40)])  # ranks have changed: it counts from 0 again
    assert [each.sample.operations for each in watch.ranks({})] == [2, 290]
    watch.forget(1)
    assert watch.now(1, {}) == JobNow(1, "operation", 2, None, None, None)
