"""Whole jobs: ddlrun, the core and a fault in the middle of an all-reduce; what a user sees, and what is left."""

from __future__ import annotations

import glob
import re
import subprocess
import time
from typing import Callable

import pytest
from launch.launcher import Launcher

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.alone]
Script = Callable[[str], str]

LOOP = """
import numpy as np
import ddl

def sockets():
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink("/proc/self/fd/" + fd))
        except FileNotFoundError:
            pass  # the descriptor of the listing itself
    return [name for name in names if "socket" in name or "eventfd" in name]

ddl.init()
x = ddl.empty({count}, np.float32)
x[:] = 1
try:
    for step in range(1000000):
        if step == 40 and rank == 2:
            print("FAULT", time.time(), flush=True)
            {fault}
        ddl.allreduce_(x)
except ddl.CommunicatorError as first:
    print("ERROR", time.time(), type(first).__name__, first, flush=True)
    try:
        ddl.allreduce_(x)
    except ddl.CommunicatorError as second:
        assert str(second) == str(first) and type(second) is type(first)
        print("AGAIN", flush=True)
    ddl.shutdown()
    print("DESCRIPTORS", sockets(), flush=True)
    sys.exit(7)
"""


def check_survivors(result: subprocess.CompletedProcess[str], kind: str, within: float) -> None:
    """Every survivor raised ``kind`` about rank 2 in time, twice the same."""
    fault = float(re.search(r"\[2\] FAULT (\S+)", result.stdout)[1])
    for rank in (0, 1, 3):
        error = re.search(rf"\[{rank}\] ERROR (\S+) (\w+) (.*)", result.stdout)
        assert error is not None, result.stdout + result.stderr
        assert error[2] == kind
        assert "rank 2" in error[3], error[3]
        assert f"[rank {rank}/4" in error[3], error[3]
        assert float(error[1]) - fault < within
        assert f"[{rank}] AGAIN" in result.stdout
        assert f"[{rank}] DESCRIPTORS []" in result.stdout


@pytest.mark.parametrize("count", [2, 4 << 20], ids=["small", "large"])
@pytest.mark.parametrize("shm", ["1", "0"], ids=["shared memory", "TCP"])
@pytest.mark.parametrize(
    ("fault", "status"),
    [("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9), ("os._exit(3)", 3)],
    ids=["killed", "exits"],
)
def test_a_death_is_named_by_all_within_a_second(
    launcher: Launcher, script: Script, count: int, shm: str, fault: str, status: int
):
    before = set(glob.glob("/dev/shm/*"))
    result = launcher.run("-np", "4", "--env", f"DDL_SHM={shm}", script(LOOP.format(count=count, fault=fault)))
    assert result.returncode == status, result.stdout + result.stderr
    check_survivors(result, "PeerLost", 1.0)
    assert "rank 2" in result.stderr.splitlines()[-1] or "ddlrun: rank 2" in result.stderr
    assert set(glob.glob("/dev/shm/*")) == before


@pytest.mark.slow
def test_a_stopped_rank_is_named_by_its_deadline(launcher: Launcher, script: Script):
    deadline = 2.0
    program = script(LOOP.format(count=4 << 20, fault="os.kill(os.getpid(), signal.SIGSTOP)"))
    started = time.monotonic()
    result = launcher.run("-np", "4", "--timeout", str(deadline), program)
    assert result.returncode != 0
    check_survivors(result, "CollectiveTimeout", deadline + 0.5)
    assert time.monotonic() - started < deadline + 10


@pytest.mark.slow
def test_a_rank_that_never_calls_is_named_and_told_of(launcher: Launcher, script: Script):
    program = script(LOOP.format(count=2, fault="time.sleep(30)"))
    result = launcher.run("-np", "4", "--timeout", "2", program)
    assert result.returncode != 0
    for rank in (0, 1, 3):
        assert re.search(rf"\[{rank}\] ERROR \S+ CollectiveTimeout .*rank 2 .*has not called it", result.stdout)
    assert "still waiting: rank 2 has not called it" in result.stderr
