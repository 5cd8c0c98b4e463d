"""A rank that does not come to ``init`` because it has ended: the others are told at once who and how."""

from __future__ import annotations

import re
import time
from typing import Callable, Tuple

import pytest
from launch.launcher import Launcher

pytestmark = pytest.mark.processes
Script = Callable[[str], str]

#: Rank 0 writes what init raised, and ends by itself. It has a second for that after another rank has failed, so the
#: others wait until it has loaded everything.
COME = """
import ddl
load, ready = ddl.init, os.path.join(os.path.dirname(__file__), "ready")
if rank == 0:
    open(ready, "w").close()
while not os.path.exists(ready):
    time.sleep(0.01)
def come():
    try:
        ddl.init()
    except ddl.RendezvousError as error:
        print("init:", error, flush=True)
        raise SystemExit(5)
"""
ADVICE = "and did not come; see what it printed, and let every rank call init() as often as the others do"


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
    begin = time.monotonic()
    done = launcher.run(*where, program)
    assert time.monotonic() - begin < 30  # DDL_START_TIMEOUT is 60
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
    done = launcher.run("-np", "3", script(COME + text))
    told = re.findall(r"^\[(\d)\] init: rank \1 of 3 checked in, but rank 1 \(pid \d+\) was killed", done.stdout, re.M)
    assert sorted(told) == ["0", "2"], done.stdout + done.stderr
    assert done.returncode == 137


def test_a_rank_ends_in_a_second_init(launcher: Launcher, script: Script) -> None:
    text = """
come()
ddl.shutdown()
if rank == 1:
    from ddl.store.store import StoreClient
    StoreClient.check_in = lambda *args, **kwargs: os._exit(4)
come()
"""
    done = launcher.run("-np", "3", script(COME + text))
    told = re.findall(r"^\[(\d)\] init: rank \1 of 3 checked in, but .*rank 1.* and did not come", done.stdout, re.M)
    assert sorted(told) == ["0", "2"], done.stdout + done.stderr
    assert done.returncode == 4
