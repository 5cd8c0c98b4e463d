"""Elastic jobs on several hosts: names of this machine, each with an agent of its own, by -H or by a script."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, List

import pytest
from launch.launcher import Launcher, eventually, zombies_of
from launch.test_elastic_job import GO_ON, SOME_FAIL, WAIT, lines_of, wait_until_told

from ddl.launch.job.elastic_course import _ONE_CAUSE

pytestmark = pytest.mark.processes
Script = Callable[[str], str]
TWO = ("-H", "localhost:2,127.0.0.1:2")


NAMES = "ddlrun: warning: on "  # two names of this machine: what checks names is not happy with that


def told(err: str) -> List[str]:
    lines = [line for line in err.splitlines() if line.startswith("ddlrun: ") and not line.startswith(NAMES)]
    return [re.sub(r"pid \d+", "pid", line) for line in lines]


def next_told(process: subprocess.Popen[str]) -> str:
    """Return the next line that ddlrun prints on stderr."""
    assert process.stderr is not None
    while (line := process.stderr.readline()).startswith(NAMES):
        pass
    return line


class HostList:
    """A script that prints a file; what is written into it are the hosts of now."""

    def __init__(self, folder: Path, *hosts: str) -> None:
        self._file = folder / "hosts"
        self.name(*hosts)
        self.script = folder / "hosts.sh"
        self.script.write_text(f"#!/bin/sh\ncat {self._file}\n")
        self.script.chmod(0o755)

    def name(self, *hosts: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text("".join(f"{host}\n" for host in hosts))
        new.rename(self._file)

    @property
    def options(self) -> List[str]:
        return ["--host-discovery-script", str(self.script)]


@pytest.fixture
def host_list(tmp_path: Path) -> HostList:
    return HostList(tmp_path, "localhost:2")


def touch(program: str, name: str) -> None:
    Path(program).with_name(name).touch()


def test_a_rank_that_fails_does_not_end_the_job(launcher: Launcher, script: Script) -> None:
    program = script(WAIT + "print('on', rank); sys.exit(3) if rank == 1 else wait('go')")
    process = launcher.start(*TWO, "--elastic", program)
    words = r"ddlrun: rank 1 \(host localhost, pid \d+\) exited with status 3; 3 ranks are left\n"
    assert re.fullmatch(words, next_told(process))
    touch(program, "go")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0 and len(out.splitlines()) == 4
    assert told(err) == [
        "ddlrun: ranks that were lost: 1; that left: 0; that came: 0, of which 0 in place of lost ones"
    ]


def test_a_process_in_place_of_a_lost_one_starts_on_another_host(launcher: Launcher, script: Script) -> None:
    text = """
if rank == 1:
    sys.exit(3)
if rank == 2:
    names = "INCARNATION RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE ELASTIC".split()
    print(*(os.environ["DDL_" + name] for name in names), flush=True)
    time.sleep(600)
wait("go")
"""
    program = script(WAIT + text)
    process = launcher.start("-np", "2", *TWO, "--elastic", program)
    # Free: a slot of localhost, on which a process has failed, and two of 127.0.0.1, whose agent is not there yet.
    assert lines_of(process, 1) == ["[2] 2 2 3 0 2 1 2 1\n"]
    touch(program, "go")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0
    assert told(err)[:3] == [
        "ddlrun: rank 1 (host localhost, pid) exited with status 3; 1 rank is left",
        "ddlrun: host localhost gets no new process, as one has failed there",
        "ddlrun: rank 2 (host 127.0.0.1, pid) was started",
    ]


@pytest.mark.slow
def test_of_lost_processes_none_is_kept(launcher: Launcher, script: Script, host_list: HostList) -> None:
    program = script(WAIT + SOME_FAIL)
    process = launcher.start("-np", "2", "--elastic", *host_list.options, program)
    assert lines_of(process, 1) == ["[5] 5\n"]
    (agent,) = agents(process)
    assert eventually(lambda: not zombies_of(agent))
    touch(program, "end")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0 and "ranks that were lost: 4;" in err


@pytest.mark.slow
def test_hosts_come_and_go(launcher: Launcher, script: Script, host_list: HostList) -> None:
    """As in Horovod's hosts_added_and_removed, but that nobody tells ddlrun which processes have become ranks."""
    text = """
print("on", rank, os.environ["HOROVOD_CROSS_RANK"], flush=True)
wait(f"end.{rank}")
"""
    program = script(WAIT + text)
    process = launcher.start("-np", "2", "--min-np", "1", *host_list.options, program)
    assert sorted(lines_of(process, 2)) == ["[0] on 0 0\n", "[1] on 1 0\n"]
    host_list.name("localhost:2", "127.0.0.1:2")
    assert sorted(lines_of(process, 2)) == ["[2] on 2 1\n", "[3] on 3 1\n"]
    host_list.name("localhost:1")
    left = [next_told(process)]
    while sum("is to leave: " in line for line in left) < 3:
        left.append(next_told(process))
    for number in (1, 2, 3):  # they know nothing of leaving
        touch(program, f"end.{number}")
    while sum("as it was to leave" in line for line in left) < 3:
        left.append(next_told(process))
    assert {line.split()[2] for line in left if "as it was to leave" in line} == {"1", "2", "3"}
    assert "ddlrun: host 127.0.0.1 has left the list of hosts\n" in left
    host_list.name("localhost:1", "127.0.0.1:1")
    assert lines_of(process, 1) == ["[4] on 4 1\n"]  # by the agent that is still there
    touch(program, "end.0")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0
    assert told(err)[-1] == (
        "ddlrun: ranks that were lost: 0; that left: 4; that came: 3, of which 0 in place of lost ones"
    )


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("echo no network >&2; exit 3", "ended with status 3: no network"),
        (
            "echo what is this?",
            "printed what names no hosts: line 1 of its output, 'what is this?': 'what is this?' is "
            "not the name of a host; write host or host:slots",
        ),
    ],
    ids=["status", "rubbish"],
)
def test_a_script_that_fails_at_once(launcher: Launcher, names: str, why: str) -> None:
    done = launcher.run("-np", "1", "--host-discovery-script", names, "echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ddlrun: --host-discovery-script: {names} {why}; nothing was started\n"


@pytest.mark.slow
def test_a_script_that_fails_later(launcher: Launcher, script: Script, host_list: HostList) -> None:
    program = script(WAIT + "print('on', flush=True); wait('go')")
    process = launcher.start("-np", "2", *host_list.options, program)
    lines_of(process, 2)
    host_list.name("what is this?")
    warning = next_told(process)
    assert warning.startswith("ddlrun: warning: --host-discovery-script: ") and "what is this?" in warning
    time.sleep(1.2)  # it is told once
    touch(program, "go")
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")


def test_a_script_that_runs_when_the_job_ends(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    program = script(WAIT + "wait('asked')")
    names = f"cd {tmp_path}; [ -e once ] && touch asked && sleep 3; touch once; echo localhost:1"
    done = launcher.run("-np", "1", "--host-discovery-script", names, program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_too_few_slots_at_the_start(launcher: Launcher, host_list: HostList) -> None:
    """The script has to name two of them in that time."""
    done = launcher.run("-np", "3", *host_list.options, "--elastic-timeout", "8", "true")
    assert done.returncode == 1
    assert done.stderr == (
        "ddlrun: waiting for 3 slots to begin; there are only 2 slots (localhost:2), and the job ends after 8 s "
        "without (--elastic-timeout)\n"
        "ddlrun: the job begins with 3 ranks, but within 8 s (--elastic-timeout) there were only 2 slots "
        "(localhost:2); add hosts, or lower -np\n"
    )


def test_a_host_that_comes_later_and_cannot_be_reached(
    launcher: Launcher, script: Script, host_list: HostList, tmp_path: Path
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'far: Permission denied (publickey).' >&2\nexit 255\n")
    ssh.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    program = script(WAIT + "print('on', flush=True); wait('go')")
    process = launcher.start("-np", "2", *host_list.options, program, environ=environ)
    lines_of(process, 2)
    host_list.name("localhost:2", "far:1")
    while "is lost" not in (line := next_told(process)):
        assert line
    assert line.startswith("ddlrun: host far is lost: ssh ended with status 255 before DDL had begun there: ")
    touch(program, "go")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err


@pytest.mark.slow
def test_a_host_that_comes_later_and_never_calls(
    launcher: Launcher, script: Script, host_list: HostList, tmp_path: Path
) -> None:
    """The agent of the first host has to call in that time."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 600\n")
    ssh.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    program = script(WAIT + "print('on', flush=True); wait('go')")
    process = launcher.start("-np", "2", "--start-timeout", "10", *host_list.options, program, environ=environ)
    lines_of(process, 2)
    host_list.name("localhost:2", "far:1")
    while "is lost" not in (line := next_told(process)):
        assert line
    assert line == "ddlrun: host far is lost: its agent was not ready within 10 s (--start-timeout)\n"
    touch(program, "go")
    process.communicate(timeout=240)
    assert process.returncode == 0


def agents(process: subprocess.Popen[str]) -> List[int]:
    """Return the agents that ddlrun has started on this machine."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if re.search(rf"\) \w {process.pid} ", stat) and b"ddl.launch.agent.remote" in line:
            pids.append(int(name))
    return sorted(pids)


def test_an_agent_that_is_killed_takes_its_ranks_along_and_the_others_go_on(launcher: Launcher, script: Script) -> None:
    program = script(WAIT + "print('on', flush=True); wait('go'); print('end', flush=True)")
    process = launcher.start("-H", "localhost:1,127.0.0.1:1", "--elastic", program)
    lines_of(process, 2)
    os.kill(agents(process)[1], signal.SIGKILL)
    assert re.match(r"ddlrun: host (\S+) is lost: the connection to its agent is gone since ", next_told(process))
    touch(program, "go")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0 and len(out.splitlines()) == 1
    assert told(err) == [
        "ddlrun: ranks that were lost: 1; that left: 0; that came: 0, of which 0 in place of lost ones"
    ]


def test_too_few_ranks_give_the_status_of_the_failure(launcher: Launcher, script: Script) -> None:
    text = "if rank == 1: wait('go')\nif rank < 2: sys.exit(f'last words of {rank}')\ntime.sleep(600)"
    program = script(WAIT + text)
    process = launcher.start(*TWO, "--min-np", "3", program)
    wait_until_told(process, r"rank 0 \(host localhost, pid \d+\) exited with status 1; 3 ranks are left")
    time.sleep(_ONE_CAUSE + 0.1)  # the next failure has another cause
    touch(program, "go")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert told(err)[-2:] == [
        "ddlrun: 2 ranks left, and --min-np is 3; --max-restarts 0 allows no other process in place of a lost one; the "
        "last change: rank 1 (host localhost, pid) exited with status 1",
        "ddlrun: rank 1 (host localhost, pid) exited with status 1; its last lines on stderr:",
    ]
    assert err.endswith("    last words of 1\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ddlrun_that_is_told_to_stop_ends_all(launcher: Launcher, host_list: HostList, number: signal.Signals) -> None:
    process = launcher.start("-np", "2", *host_list.options, "sh", "-c", "echo on; exec sleep 600")
    lines_of(process, 2)
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number and told(err) == [f"ddlrun: stopped by {number.name}"]
    assert eventually(lambda: not launcher.alive()), launcher.alive()


def test_ranks_go_on_when_ddlrun_is_killed(launcher: Launcher, script: Script) -> None:
    """Nobody hears what they print then, but they do not notice."""
    program = script(WAIT + GO_ON)
    process = launcher.start("-H", "localhost:1,127.0.0.1:1", "--elastic", program)
    lines_of(process, 2)
    process.kill()
    process.communicate(timeout=240)
    time.sleep(0.3)
    touch(program, "killed")
    assert eventually(lambda: all(Path(program).with_name(f"end.{rank}").exists() for rank in range(2)))
    assert eventually(lambda: not launcher.alive()), launcher.alive()
