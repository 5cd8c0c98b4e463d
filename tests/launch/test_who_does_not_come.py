"""A rank that does not come to ``init`` because it has ended: the others are told at once who and how."""

from __future__ import annotations

import re
import subprocess
from typing import Callable, Tuple

import pytest
from launch.launcher import PATIENT, Launcher

pytestmark = pytest.mark.processes
Script = Callable[[str], str]

#: A rank writes what init raised, and ends by itself.
COME = """
import ddl
def come():
    try:
        ddl.init()
    except ddl.RendezvousError as error:
        print("init:", error, flush=True)
        raise SystemExit(5)
"""
#: Nobody waits so long here: what has ended by then was told at once.
NEVER = ("--start-timeout", "1000")
ADVICE = "and did not come; see what it printed, and let every rank call init() as often as the others do"


def run(launcher: Launcher, *arguments: str) -> subprocess.CompletedProcess[str]:
    return launcher.run(*NEVER, *arguments, constants=PATIENT)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("where", "end", "how", "status"),
    [
        (("-np", "2"), "sys.exit(0)", "exited with status 0", 5),
        (("-np", "2"), "os.kill(os.getpid(), signal.SIGKILL)", r"was killed by signal 9 \(SIGKILL\)", 137),
        (("-H", "localhost:2"), "sys.exit(0)", "exited with status 0", 5),
        (("-H", "localhost:2"), "sys.exit(3)", "exited with status 3", 3),
    ],
)
def test_a_rank_ends_before_init(
    launcher: Launcher, script: Script, where: Tuple[str, ...], end: str, how: str, status: int
) -> None:
    program = script(f"{COME}\nif rank == 1:\n    {end}\ncome()\n")
    done = run(launcher, *where, program)
    host = "host localhost, " if where[0] == "-H" else ""
    expected = rf"\[0\] init: rank 0 of 2 checked in, but rank 1 \({host}pid \d+\) {how} {re.escape(ADVICE)}\n"
    assert re.fullmatch(expected, done.stdout), done.stdout + done.stderr
    assert done.returncode == status


def test_a_rank_ends_between_two_jobs(launcher: Launcher, script: Script) -> None:
    text = """
come()
ddl.shutdown()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
come()
"""
    done = run(launcher, "-np", "3", script(COME + text))
    told = re.findall(r"^\[(\d)\] init: rank \1 of 3 checked in, but rank 1 \(pid \d+\) was killed", done.stdout, re.M)
    assert sorted(told) == ["0", "2"], done.stdout + done.stderr
    assert done.returncode == 137


def test_a_rank_ends_in_a_second_init(launcher: Launcher, script: Script) -> None:
    text = """
come()
ddl.shutdown()
if rank == 1:
    from ddl.store.asking import AskingClient
    AskingClient.check_in = lambda *args, **kwargs: os._exit(4)
come()
"""
    done = run(launcher, "-np", "3", script(COME + text))
    told = re.findall(r"^\[(\d)\] init: rank \1 of 3 checked in, but .*rank 1.* and did not come", done.stdout, re.M)
    assert sorted(told) == ["0", "2"], done.stdout + done.stderr
    assert done.returncode == 4
