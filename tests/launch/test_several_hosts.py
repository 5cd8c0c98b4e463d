"""``ddlrun -H``, with this machine as the host: all of the way but ssh, which tests/cluster tests with real hosts."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict

import pytest
from launch.launcher import ROOT, Launcher, eventually

from ddl.launch.agent.control import Assignment, Invitation
from ddl.net import interfaces
from ddl.net.address import is_loopback
from ddl.store.server import StoreServer

pytestmark = pytest.mark.processes
HERE = ("-H", "localhost:2")
ALLREDUCE = "import ddl; ddl.init(); print(ddl.allreduce(float(ddl.rank() + 1), op=ddl.Sum))"


def test_ranks_are_told_who_they_are_and_meet(launcher: Launcher) -> None:
    done = launcher.run(*HERE, sys.executable, "-c", ALLREDUCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] 3.0", "[1] 3.0"]


def test_the_store_is_never_on_loopback_unless_nothing_else_is_there(launcher: Launcher) -> None:
    done = launcher.run(*HERE, "sh", "-c", "echo $DDL_STORE")
    real = [address for address in interfaces.addresses() if not is_loopback(address)]
    for line in done.stdout.splitlines():
        assert line.split()[1].rpartition(":")[0] in (real or ["127.0.0.1"])


def test_what_is_in_the_environment_and_what_is_not(launcher: Launcher) -> None:
    program = "env | sort | grep 'DDL_\\|PMI\\|OMPI\\|COLOUR\\|KERAS\\|TF_ENABLE'"
    options = (*HERE, "--no-prefix", "--env", "COLOUR=blue", "--timeout", "9")
    frameworks = {"KERAS_BACKEND": "jax", "TF_ENABLE_ONEDNN_OPTS": "0"}
    done = launcher.run(*options, "sh", "-c", program, environ=frameworks)
    lines = done.stdout.splitlines()
    numbers = ("DDL_SIZE=2", "DDL_LOCAL_SIZE=2", "DDL_CROSS_SIZE=1")
    for wanted in ("COLOUR=blue", "DDL_TIMEOUT=9", *numbers, *map("=".join, frameworks.items())):
        assert lines.count(wanted) == 2
    assert not [line for line in lines if "INVITATION" in line]


def test_the_secret_is_on_no_command_line(launcher: Launcher) -> None:
    program = """
import glob, os
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        with open(path) as file:
            assert os.environ["DDL_SECRET"] not in file.read(), path
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended since
print("looked")
"""
    done = launcher.run(*HERE, "--no-prefix", sys.executable, "-c", program)
    assert done.stdout.splitlines() == ["looked"] * 2, done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        ("echo last words >&2; exit 3", 3, "exited with status 3; its last lines on stderr are those above"),
        ("kill -9 $$", 137, "was killed by signal 9 (SIGKILL)"),
    ],
)
def test_the_first_failure_decides(launcher: Launcher, program: str, status: int, words: str) -> None:
    done = launcher.run(*HERE, "sh", "-c", f"[ $DDL_RANK = 1 ] || exec sleep 60; {program}")
    assert done.returncode == status
    assert "ddlrun: rank 1 (host localhost, pid " in done.stderr and words in done.stderr


def test_output_of_a_megabyte_a_rank_arrives_whole(launcher: Launcher) -> None:
    program = "for n in range(20000): print(n, 'x' * 100)"
    done = launcher.run(*HERE, sys.executable, "-c", program)
    lines = done.stdout.splitlines()
    for rank in ("[0] ", "[1] "):
        printed = [line[4:] for line in lines if line.startswith(rank)]
        assert printed == [f"{number} {'x' * 100}" for number in range(20000)]


def test_a_reader_that_stops_reading_does_not_fill_the_memory(launcher: Launcher) -> None:
    process = launcher.start(*HERE, sys.executable, "-c", "while True: print('x' * 1000)")
    assert process.stdout is not None and process.stdout.read(100)
    time.sleep(1.5)
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    assert resident < 150 << 10  # KiB; a megabyte per stream and agent is under way at most
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM


def test_files_and_of_rank_0_the_terminal_too(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.run(*HERE, "--output-dir", "logs", "sh", "-c", "echo out; echo err >&2", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0] out\n", "[0] err\n")
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "rank.0.err",
        "rank.0.out",
        "rank.1.err",
        "rank.1.out",
    ]
    assert (tmp_path / "logs" / "rank.1.out").read_text() == "out\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_ddlrun(launcher: Launcher, number: signal.Signals) -> None:
    process = launcher.start(*HERE, "sh", "-c", "trap '' INT TERM; echo on; sleep 60 & wait; sleep 60")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] and len(launcher.alive()) >= 5
    process.send_signal(number)
    process.communicate(timeout=240)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert eventually(lambda: not launcher.alive()), launcher.alive()


def test_an_agent_that_has_lost_ddlrun_says_so_and_why_its_ranks_end(tmp_path: Path) -> None:
    """It ends them: whoever reads their output later shall not take that for a crash of theirs."""
    secret = bytes(range(32))
    news: queue.Queue[Dict[str, Any]] = queue.Queue()
    program = ("/bin/sh", "-c", "echo on >&2; exec sleep 60")
    files = [tmp_path / "logs" / f"rank.{rank}.err" for rank in range(2)]
    with StoreServer(secret, 2, agents=1, from_agent=lambda host, message: news.put(message)) as server:
        line = [sys.executable, "-m", "ddl.launch.agent.remote"]
        agent = subprocess.Popen(line, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert agent.stdin is not None
        agent.stdin.write(Invitation(secret, (server.address,), 0, 100.0, False, True, "").text() + "\n")
        agent.stdin.flush()
        assert news.get(timeout=100)["type"] == "hello"
        job = Assignment((0, 1), 2, 0, 1, program, str(tmp_path), (), str(tmp_path / "logs"), True, False, "")
        server.post(0, job.message())
        ready = news.get(timeout=100)
        server.post(0, {"type": "go", "address": "127.0.0.1", "port": ready["port"]})
        assert eventually(lambda: all(file.exists() and file.read_text() == "on\n" for file in files))
    _, err = agent.communicate(timeout=240)
    said = r"ddlrun's agent on \S+: the connection to ddlrun at \S+:\d+ is lost since \d\d:\d\d:\d\d \(.*\); "
    said += r"so ranks 0, 1 here cannot go on: ended\n"
    assert agent.returncode == 1 and re.fullmatch(said, err), err
    for file in files:
        assert re.fullmatch("on\n" + said, file.read_text()), file.read_text()


def test_the_agent_is_killed(launcher: Launcher) -> None:
    process = launcher.start(*HERE, "sh", "-c", "echo $PPID; exec sleep 60")
    assert process.stdout is not None
    agent = int(process.stdout.readline().split()[1])
    os.kill(agent, signal.SIGKILL)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert re.search(
        r"host localhost \(ranks 0, 1\): the connection to its agent is gone since \d\d:\d\d:\d\d ", err
    ), err
    assert eventually(lambda: not launcher.alive()), launcher.alive()


def test_the_agent_is_told_to_stop(launcher: Launcher) -> None:
    """By somebody on its host, which is shut down, say: the ranks elsewhere cannot go on."""
    process = launcher.start(*HERE, "sh", "-c", "echo $PPID; exec sleep 60")
    assert process.stdout is not None
    os.kill(int(process.stdout.readline().split()[1]), signal.SIGTERM)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert err == "ddlrun: host localhost (ranks 0, 1): its agent was told to stop by SIGTERM\n"


def with_ssh(folder: Path, *lines: str) -> Dict[str, str]:
    """Return an environment in which ``ssh`` is a shell script of these lines."""
    program = folder / "ssh"
    program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_host_that_cannot_be_reached(launcher: Launcher, tmp_path: Path) -> None:
    """ssh says why; nothing has been started anywhere."""
    environ = with_ssh(tmp_path, "echo 'user@far: Permission denied (publickey).' >&2", "exit 255")
    done = launcher.run("-H", "localhost:1,far:1", "sh", "-c", "echo started", environ=environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert "host far (rank 1): ssh ended with status 255 before DDL had begun there" in done.stderr
    assert done.stderr.rstrip().endswith(
        "Permission denied (publickey).; `ssh far true` must work here without a question"
    )


@pytest.mark.parametrize(
    ("hosts", "seconds"), [("far:1", 1), pytest.param("localhost:1,far:1", 8, marks=pytest.mark.slow)]
)
def test_a_host_that_never_calls(launcher: Launcher, tmp_path: Path, hosts: str, seconds: int) -> None:
    """The other one has to call in that time, or it would be named, too."""
    environ = with_ssh(tmp_path, "exec sleep 600")
    done = launcher.run("-H", hosts, "--start-timeout", str(seconds), "true", environ=environ)
    assert done.returncode == 1
    assert f"no agent has called from far within {seconds} s (--start-timeout)" in done.stderr
