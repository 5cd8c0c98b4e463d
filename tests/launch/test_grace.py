"""Ranks have time to save what they have, when ddlrun is told to stop and when another rank has failed.

And they get the signals that warn them, of ddlrun and of agents alike.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Callable, List

import pytest
from launch.launcher import Launcher, eventually

from ddl.launch.agent.end_plan import EndPlan
from ddl.launch.agent.grace import FAILED, KILL_GRACE, TOLD, when_failed, when_given_up, when_told

pytestmark = pytest.mark.processes
Script = Callable[[str], str]
HOSTS = [("-np", "2"), ("-H", "localhost:1,127.0.0.1:1")]
TERM, KILL = signal.SIGTERM, signal.SIGKILL
LATER = 2.5  #: seconds, longer than ranks had for a checkpoint before: ddlrun's own times are a second in these tests

SAVES = """
here = os.path.dirname(__file__)
def save(*_):
    open(f"{here}/saving.{rank}", "w").close()
    while not os.path.exists(f"{here}/go"):
        time.sleep(0.01)
    open(f"{here}/saved.{rank}", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(f"{here}/ready.{rank}", "w").close()
"""


def names(folder: Path, stem: str) -> List[str]:
    return sorted(path.name for path in folder.glob(f"{stem}.*") if path.suffix != ".py")


def both(folder: Path, stem: str) -> bool:
    return eventually(lambda: names(folder, stem) == [f"{stem}.0", f"{stem}.1"])


def test_what_follows_a_signal() -> None:
    assert (TOLD, FAILED) == (30, 10)
    assert when_told(TERM, 5.0, None) == [(5.0, TERM), (35.0, KILL)]
    assert when_told(signal.SIGPIPE, 5.0, None) == [(5.0, TERM), (35.0, KILL)]
    assert when_told(signal.SIGINT, 5.0, 2.0) == [(5.0, signal.SIGINT), (7.0, TERM), (7.0 + KILL_GRACE, KILL)]


def test_what_follows_a_failure() -> None:
    assert when_failed(5.0, None) == [(15.0, TERM), (25.0, KILL)]
    assert when_failed(5.0, 0.1) == [(5.1, TERM), (5.1 + KILL_GRACE, KILL)]
    assert when_given_up(5.0, None) == [(5.0, TERM), (15.0, KILL)]


def test_a_plan_of_signals_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("ddl.clock.now", lambda: now[0])
    plan = EndPlan(None, gives_up=True)
    assert plan.goes_on and plan.next is None and plan.fail() and not plan.fail()
    assert (plan.next, plan.is_due, plan.goes_on) == (110.0, False, True)
    now[0] = 110.0
    assert plan.is_due and plan.take() == TERM and plan.next == 120.0
    plan.stop(signal.SIGINT)  # by a user, who comes to it late
    assert plan.stop_signal == signal.SIGINT and not plan.goes_on
    assert [plan.take() for _ in range(2)] == [signal.SIGINT, TERM] and plan.next == 140.0 + KILL_GRACE
    plan.stop(signal.SIGINT)  # twice: at once
    assert plan.is_due and plan.take() == KILL and plan.next == 112.0 and plan.take() == 0 and plan.next is None


@pytest.mark.parametrize("hosts", HOSTS, ids=["alone", "agents"])
def test_ranks_may_save_when_ddlrun_is_told_to_stop(
    launcher: Launcher, script: Script, tmp_path: Path, hosts: List[str]
) -> None:
    process = launcher.start(*hosts, "--grace", "100", script(SAVES + "time.sleep(600)"))
    assert both(tmp_path, "ready")
    process.send_signal(TERM)
    assert both(tmp_path, "saving")
    time.sleep(LATER)
    (tmp_path / "go").touch()
    process.communicate(timeout=240)
    assert process.returncode == 128 + TERM and names(tmp_path, "saved") == ["saved.0", "saved.1"]


@pytest.mark.parametrize("hosts", HOSTS, ids=["alone", "agents"])
def test_ranks_may_save_when_another_has_failed(
    launcher: Launcher, script: Script, tmp_path: Path, hosts: List[str]
) -> None:
    """By themselves, as an error tells them of it: no signal comes before that."""
    program = SAVES + "while not os.path.exists(f'{here}/ready.0'): time.sleep(0.01)\nsys.exit(3) if rank else save()\n"
    process = launcher.start(*hosts, "--grace", "100", script(program))
    assert eventually(lambda: (tmp_path / "saving.0").exists())
    time.sleep(LATER)
    (tmp_path / "go").touch()
    process.communicate(timeout=240)
    assert process.returncode == 3 and names(tmp_path, "saved") == ["saved.0"]


@pytest.mark.parametrize("hosts", HOSTS, ids=["alone", "agents"])
def test_told_twice_ranks_end_at_once(launcher: Launcher, script: Script, tmp_path: Path, hosts: List[str]) -> None:
    process = launcher.start(*hosts, "--grace", "1000", script(SAVES + "time.sleep(600)"))
    assert both(tmp_path, "ready")
    process.send_signal(TERM)
    assert both(tmp_path, "saving")
    process.send_signal(TERM)
    process.communicate(timeout=240)
    assert process.returncode == 128 + TERM and not names(tmp_path, "saved")


def agents_of(process: int) -> List[int]:
    """Return the children of ddlrun, which here are agents and what keeps watch."""
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


WARNED = """
import subprocess
here = os.path.dirname(__file__)
worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)  # of a data loader, say
warned = []
signal.signal(signal.SIGUSR1, lambda number, _: warned.append(number))
signal.signal(signal.SIGUSR2, lambda number, _: warned.append(number))
open(f"{here}/ready.{rank}", "w").close()
while len(warned) < 2:
    time.sleep(0.01)
worker.communicate(b"\\n")
print(sorted(warned) == [signal.SIGUSR1, signal.SIGUSR2], worker.returncode, flush=True)
"""


@pytest.mark.parametrize("hosts", HOSTS, ids=["alone", "agents"])
def test_warnings_reach_the_ranks_and_end_nobody(
    launcher: Launcher, script: Script, tmp_path: Path, hosts: List[str]
) -> None:
    process = launcher.start(*hosts, script(WARNED))
    assert both(tmp_path, "ready")
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGUSR2)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["[0] True 0", "[1] True 0"]


def test_an_agent_that_is_warned_warns_its_ranks(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    """As of Slurm, which sends signals to all that it runs; a guard beside an agent does not mind, either."""
    process = launcher.start(*HOSTS[1], script(WARNED))
    assert both(tmp_path, "ready")
    for agent in agents_of(process.pid):
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(agent, number)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["[0] True 0", "[1] True 0"]
