"""Whole jobs: ddlrun, the core and a fault in the middle of an all-reduce; what a user sees, and what is left.

What each rank sees of a death is tested in tests/core/test_faults.py, for all transports and sizes.
"""

from __future__ import annotations

import re
import subprocess
from typing import Callable

import pytest
from launch.launcher import PATIENT, Launcher

pytestmark = [pytest.mark.processes, pytest.mark.faults]
Script = Callable[[str], str]

#: The fault happens when all ranks are there, so who is late is no matter of luck.
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

def meet():
    open(f"{{__file__}}.{{rank}}", "w").close()
    while not all(os.path.exists(f"{{__file__}}.{{other}}") for other in range(size)):
        time.sleep(0.01)

ddl.init()
x = ddl.empty({count}, np.float32)
x[:] = 1
try:
    for step in range(1000000):
        if step == 40:
            meet()
            with open("/proc/self/maps") as maps:
                print("NAMED", maps.read().count("/dev/shm"), flush=True)
            if {deadline}:
                ddl.world().set_timeout({deadline})
            if rank == 2:
                {fault}
        ddl.allreduce_(x)
except ddl.CommunicatorError as first:
    print("ERROR", type(first).__name__, first, flush=True)
    try:
        ddl.allreduce_(x)
    except ddl.CommunicatorError as second:
        assert str(second) == str(first) and type(second) is type(first)
        print("AGAIN", flush=True)
    ddl.shutdown()
    print("DESCRIPTORS", sockets(), flush=True)
    sys.exit(7)
"""


def check_survivors(result: subprocess.CompletedProcess[str], kind: str) -> None:
    """Every survivor raised ``kind`` about rank 2, twice the same, and has left nothing open or with a name."""
    for rank in (0, 1, 3):
        error = re.search(rf"\[{rank}\] ERROR (\w+) (.*)", result.stdout)
        assert error is not None, result.stdout + result.stderr
        assert error[1] == kind
        assert "rank 2" in error[2], error[2]
        assert f"[rank {rank}/4" in error[2], error[2]
        for line in ("AGAIN", "DESCRIPTORS []", "NAMED 0"):
            assert f"[{rank}] {line}\n" in result.stdout, result.stdout


@pytest.mark.parametrize(
    ("count", "shm", "fault", "status"),
    [(4 << 20, "1", "os.kill(os.getpid(), signal.SIGKILL)", 128 + 9), (2, "0", "os._exit(3)", 3)],
    ids=["killed", "exits"],
)
def test_a_death_is_named_by_all_at_once(
    launcher: Launcher, script: Script, count: int, shm: str, fault: str, status: int
) -> None:
    """Not by the deadline: that is never."""
    program = script(LOOP.format(count=count, fault=fault, deadline=0))
    options = ("-np", "4", "--timeout", "1000", "--env", f"DDL_SHM={shm}")
    result = launcher.run(*options, program, constants=PATIENT)
    assert result.returncode == status, result.stdout + result.stderr
    check_survivors(result, "PeerLost")
    assert "rank 2" in result.stderr.splitlines()[-1] or "ddlrun: rank 2" in result.stderr


@pytest.mark.slow
def test_a_stopped_rank_is_named_by_its_deadline(launcher: Launcher, script: Script) -> None:
    """ddlrun ends it then: it would not do so itself. The others have had a second to say what they saw."""
    program = script(LOOP.format(count=4 << 20, fault="os.kill(os.getpid(), signal.SIGSTOP)", deadline=3.0))
    constants = {"ddl.launch.agent.grace.FAILED": 10.0}
    result = launcher.run("-np", "4", "--timeout", "1000", program, constants=constants)
    assert result.returncode != 0
    check_survivors(result, "CollectiveTimeout")


@pytest.mark.slow
def test_a_rank_that_never_calls_is_named_and_told_of(launcher: Launcher, script: Script) -> None:
    program = script(LOOP.format(count=2, fault="time.sleep(600)", deadline=3.0))
    constants = {"ddl.launch.agent.grace.FAILED": 10.0, "ddl.store.verdict.TELL_AFTER": 0.0}
    result = launcher.run("-np", "4", "--timeout", "1000", program, constants=constants)
    assert result.returncode != 0
    for rank in (0, 1, 3):
        assert re.search(rf"\[{rank}\] ERROR CollectiveTimeout .*rank 2 .*has not called it", result.stdout)
    words = r"still waiting, for [\d.]+ m?s, in allreduce #\d+ .*: rank 2 has not called it; it is at .*\.py:\d+ in "
    assert re.search(words, result.stderr), result.stderr
