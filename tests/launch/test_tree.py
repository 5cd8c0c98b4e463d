"""Nothing is left behind: Ctrl-C, SIGTERM, kill -9 of ddlrun, children of ranks, and children that try to escape."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest
from launch.launcher import PATIENT, Launcher, eventually, zombies_of

pytestmark = pytest.mark.processes
Script = Callable[[str], str]

# Each rank starts a child, which starts a child, and one that leaves its session and loses its parent.
FAMILY = """
here = os.path.dirname(__file__)
subprocess.Popen(["sh", "-c", "sleep 600 & exec sleep 600"])
subprocess.run(["sh", "-c", "setsid sleep 600 & exit 0"])
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def start_family(launcher: Launcher, script: Script, then: str, first: str = "") -> subprocess.Popen[str]:
    """Start a job of two ranks with their families; when all are there, let the ranks do what ``then`` says."""
    program = script(first + FAMILY + then)
    process = launcher.start("-np", "2", program, program + ".go")
    assert process.stdout is not None
    for _ in range(2):
        assert "ready" in process.stdout.readline()
    # ddlrun, its guard, and of each rank: itself, its child, its grandchild, and the one that left.
    assert eventually(lambda: len(launcher.alive()) == 2 + 2 * 4)
    Path(program + ".go").touch()
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_ddlrun_ends_the_whole_tree(launcher: Launcher, script: Script, number: signal.Signals) -> None:
    process = start_family(launcher, script, "time.sleep(600)")
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number
    assert launcher.alive() == []
    assert err.splitlines()[-1] == f"ddlrun: stopped by {number.name}"


def test_even_if_nobody_listens(launcher: Launcher, script: Script) -> None:
    deaf = "for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)"
    process = start_family(launcher, script, "time.sleep(600)", first=deaf)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=240)
    assert process.returncode == 130
    assert launcher.alive() == []


def test_ctrl_c_lets_programs_clean_up(launcher: Launcher, script: Script) -> None:
    text = """
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("cleaned up", rank)
"""
    process = launcher.start("-np", "2", script(text), constants=PATIENT)
    assert process.stdout is not None
    for _ in range(2):
        assert "ready" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 130
    assert sorted(out.splitlines()) == ["[0] cleaned up 0", "[1] cleaned up 1"]


def test_a_stopped_rank_does_not_keep_ddlrun(launcher: Launcher, script: Script) -> None:
    process = start_family(launcher, script, "os.kill(os.getpid(), signal.SIGSTOP)")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=240)
    assert process.returncode == 143
    assert launcher.alive() == []


def test_kill_9_of_ddlrun_leaves_nothing(launcher: Launcher, script: Script) -> None:
    # Also not the grandchildren; who left the session and the family is beyond reach then.
    process = launcher.start("-np", "2", script(FAMILY.replace("setsid ", "")), "never")
    assert process.stdout is not None
    for _ in range(2):
        assert "ready" in process.stdout.readline()
    assert eventually(lambda: len(launcher.alive()) == 10)
    process.kill()
    assert eventually(lambda: launcher.alive() == [])


def test_what_ranks_leave_behind_ends_with_the_job(launcher: Launcher, script: Script) -> None:
    process = start_family(launcher, script, "sys.exit(0)")
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0 and out == ""
    assert launcher.alive() == []


def test_a_failure_ends_the_families_of_all(launcher: Launcher, script: Script) -> None:
    process = start_family(launcher, script, "sys.exit(9) if rank == 0 else time.sleep(600)")
    process.communicate(timeout=240)
    assert process.returncode == 9
    assert launcher.alive() == []


def test_orphans_are_waited_for_while_the_job_runs(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    text = """
while not os.path.exists(sys.argv[1]):
    subprocess.run(["sh", "-c", "sleep 0.01 & exit 0"])
    time.sleep(0.05)
"""
    stop = tmp_path / "stop"
    process = launcher.start("-np", "1", script(text), str(stop))

    assert eventually(lambda: zombies_of(process.pid))
    first = set(zombies_of(process.pid))
    assert eventually(lambda: first.isdisjoint(zombies_of(process.pid)))
    stop.touch()
    process.communicate(timeout=240)
    assert process.returncode == 0


def test_nohup_is_respected(launcher: Launcher, script: Script) -> None:
    shell = "trap '' HUP; exec \"$@\""
    program = script("print('ready', flush=True); input()")
    arguments = ["-c", shell, "sh", sys.executable, "-m", "ddl.launch", "-np", "1", program]
    process = launcher.start(*arguments, command="sh", stdin=-1)
    assert process.stdout is not None and "ready" in process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    process.communicate("\n", timeout=240)
    assert process.returncode == 0
