"""``ddlrun -H``, with this machine as the host: all of the way but ssh, which tests/cluster tests with real hosts."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest
from launch.launcher import ROOT, Launcher, eventually

from ddl.errors import ConfigError, ProtocolError
from ddl.launch.agent.control import Assignment, Invitation
from ddl.launch.agent.preflight import HostEntry, look_around, open_token_port, wrong_names
from ddl.launch.agent.reach import TokenPort
from ddl.launch.ask.placement import Placement
from ddl.launch.ask.program import script_of
from ddl.launch.cli import parse
from ddl.launch.launchers.mpi import MpiLauncher
from ddl.launch.launchers.slurm import SlurmLauncher
from ddl.launch.launchers.ssh import SshLauncher
from ddl.net import interfaces
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
    real = [address for address in interfaces.addresses().values() if not address.startswith("127.")]
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
        agent.stdin.write(Invitation(secret, (server.address,), 0, 100.0).text() + "\n")
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


def test_what_is_missing_on_a_host_is_said_before_anything_starts(tmp_path: Path) -> None:
    here = Assignment((0,), 1, 0, 1, (sys.executable, "-u", "train.py"), str(tmp_path), (), None, True, False, "")
    program = "import sys\n"
    program += (
        "from ddl.launch.agent.preflight import prepare; from ddl.launch.agent.control import Assignment; import json\n"
    )
    program += "prepare(Assignment.parse(json.loads(sys.stdin.read())))"
    for change, words in [
        ({"directory": "/no/such"}, "the directory /no/such cannot be entered"),
        ({"command": ("/no/python", "-u", "train.py")}, "the program /no/python is not here"),
        ({}, f"the script train.py is not in {tmp_path}"),
        ({"command": ("/bin/true",), "interface": "ib7"}, "there is no network interface 'ib7'"),
    ]:
        message = dataclasses.replace(here, **change).message()
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(message),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert words in done.stderr, done.stderr


def test_scripts_are_recognised() -> None:
    for line, script in [
        ("/usr/bin/python3.11 -u train.py --config other.py", "train.py"),
        ("python -O -B dir/train.py", "dir/train.py"),
        ("python -X dev -W ignore train.py", "train.py"),
        ("python -Xdev -Wignore train.py", "train.py"),
        ("python -u -- train.py", "train.py"),
        ("python -Im train.py", ""),
        ("python -m train.py", ""),
        ("python -c train.py", ""),
        ("python -u", ""),
        ("python -u data.csv x.py", ""),
        ("./program train.py", ""),
    ]:
        assert script_of(line.split()) == script


def peer(number: int, address: str, token: bytes = b"") -> HostEntry:
    return HostEntry(number, f"me@h{number}", address, token.hex())


def test_a_host_looks_around() -> None:
    """One port is open, at one somebody else answers, one is closed; and there is nobody else to look at."""
    with TokenPort("127.0.0.1") as own, TokenPort("127.0.0.1") as right, TokenPort("127.0.0.1") as wrong:
        closed = TokenPort("127.0.0.1")
        with closed:
            pass
        peers = [
            peer(0, f"127.0.0.1:{own.port}", own.token),
            peer(1, f"127.0.0.1:{right.port}", right.token),
            peer(2, f"127.0.0.1:{wrong.port}", right.token),
            peer(3, f"127.0.0.1:{closed.port}", closed.token),
        ]
        threads = [threading.Thread(target=greet_one, args=(token_port,)) for token_port in (right, wrong)]
        for thread in threads:
            thread.start()
        warned = look_around(0, peers, own)
        for thread in threads:
            thread.join()
    assert warned["problems"] == [
        f"me@h0 cannot connect to me@h2 at 127.0.0.1:{wrong.port}: somebody else answers there",
        f"me@h0 cannot connect to me@h3 at 127.0.0.1:{closed.port}: refused",
    ]


def greet_one(token_port: TokenPort) -> None:
    assert select.select([token_port], [], [], 100)[0]
    token_port.greet()


def test_two_hosts_look_around_at_once() -> None:
    """Each greets the other while it waits for the other's greeting."""
    with TokenPort("127.0.0.1") as first, TokenPort("127.0.0.1") as other:
        peers = [peer(0, f"127.0.0.1:{first.port}", first.token), peer(1, f"127.0.0.1:{other.port}", other.token)]
        reports: List[Dict[str, List[str]]] = []
        thread = threading.Thread(target=lambda: reports.append(look_around(0, peers, first)))
        thread.start()
        # The second one goes on greeting after it has seen all, as agents do until the job begins.
        reports.append(look_around(1, peers, other))
        while thread.is_alive():
            if select.select([other], [], [], 0.05)[0]:
                other.greet()
    assert [entry["problems"] for entry in reports] == [[], []]


def test_names_that_lead_to_other_hosts() -> None:
    peers = [peer(0, "10.0.0.1:1"), peer(1, "10.0.0.2:2")]
    for answers, words in [
        ({"h0": ["127.0.1.1"], "h1": ["10.0.0.2"]}, []),
        ({"h0": ["10.0.0.1"], "h1": []}, []),  # DDL needs no names
        ({"h0": ["10.0.0.1"], "h1": ["192.168.0.7"]}, []),  # another interface of it, or an address that is translated
        ({"h0": ["10.0.0.1"], "h1": ["10.0.0.1"]}, ["on me@h0, the name me@h1 leads to 10.0.0.1, which is me@h0"]),
        ({"h0": ["10.0.0.2"], "h1": ["10.0.0.2"]}, ["on me@h0, the name me@h0 leads to 10.0.0.2, which is me@h1"]),
        ({"h0": ["10.0.0.1"], "h1": ["127.0.0.1"]}, ["on me@h0, the name me@h1 leads to 127.0.0.1, which is me@h0"]),
        ({"h0": ["10.0.0.1"]}, ["me@h0 got no answer within 1 s when it asked for the address of me@h1"]),
    ]:
        warnings = list(wrong_names(peers[0], peers, answers))
        assert [text.partition(";")[0] for text in warnings] == words


def test_an_address_that_this_host_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_INTERFACE", "192.0.2.1")
    with pytest.raises(ConfigError, match="data cannot be awaited on 192.0.2.1: .*--network-interface"):
        open_token_port("127.0.0.1")


def test_invitations_are_read_back_and_not_shown() -> None:
    invitation = Invitation(bytes(range(32)), ("10.0.0.1:5", "[::1]:6"), 3, 5.0)
    assert Invitation.parse(invitation.text()) == invitation
    assert bytes(range(32)).hex() not in repr(invitation)
    for text in ("", "{}", "[1]", '{"secret": "zz"}', "[" * 100_000):
        with pytest.raises(ProtocolError, match="makes no sense"):
            Invitation.parse(text)


def test_bad_usage() -> None:
    for options, words in [
        (["-np", "9", "-H", "a:4,b:4"], "-np 9, but a:4,b:4 are 8 slots"),
        (["-H", "a:4", "--hostfile", "x"], "-H and --hostfile say which hosts"),
        (["--hostfile", "/no/such"], "--hostfile /no/such: it cannot be read"),
        (
            ["-H", "a:1", "--launcher", "rsh"],
            "--launcher rsh: there is none of that name; choose one of ssh, mpi, slurm",
        ),
        ([], "the number of ranks is missing"),
    ]:
        with pytest.raises(ConfigError, match=words.replace("(", "\\(")):
            parse([*options, "true"], {"PATH": os.environ["PATH"]})


def test_without_a_number_every_slot_has_a_rank(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a slots=2\nb slots=3\n")
    config = parse(["--hostfile", str(hostfile), "true"], {"PATH": os.environ["PATH"]})
    assert config.num_proc == 5 and str(config.placement) == "a:2,b:3" and config.launcher == "ssh"


def test_an_allocation_of_slurm_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "n[1-2],x",
        "SLURM_TASKS_PER_NODE": "2(x2),1",
        "SLURM_JOB_CPUS_PER_NODE": "8(x2),4",
    }
    monkeypatch.setenv("PATH", environ["PATH"])
    config = parse(["true"], environ)
    assert config.launcher == "slurm" and str(config.placement) == "n1:2,n2:2,x:1"
    (start,) = SlurmLauncher().starts(config.placement, environ)
    line = " ".join(start.command)
    assert "--nodes 3 --ntasks 3 --ntasks-per-node 1" in line and "--cpus-per-task 4" in line
    elastic = SlurmLauncher(apart=True).starts(config.placement, environ)
    lines = [" ".join(start.command) for start in elastic]
    for number, (host, cores) in enumerate((("n1", 8), ("n2", 8), ("x", 4))):
        assert elastic[number].hosts == (number,) and elastic[number].host == number
        assert f"--nodes 1 --ntasks 1 --ntasks-per-node 1 --nodelist {host} " in lines[number]
        assert f"--cpus-per-task {cores} " in lines[number] and "--overlap --no-kill" in lines[number]
    with pytest.raises(ConfigError, match="y: not among the nodes of this allocation"):
        SlurmLauncher().starts(Placement(("y",), ((0,),)), environ)
    with pytest.raises(ConfigError, match="SLURM_JOB_NODELIST is not set"):
        SlurmLauncher().starts(Placement(("y",), ((0,),)), {"PATH": environ["PATH"]})


def test_ssh_runs_the_same_python_without_asking(tmp_path: Path) -> None:
    (start,) = SshLauncher().starts(
        Placement(("user@far",), ((0, 1),)), {"PATH": os.environ["PATH"], "PYTHONPATH": "/a b"}
    )
    assert "BatchMode=yes" in start.command and start.command[-2] == "user@far"
    assert start.command[-1] == f"exec env 'PYTHONPATH=/a b' {sys.executable} -m ddl.launch.agent.remote"
    with pytest.raises(ConfigError, match="there is no ssh on the PATH"):
        SshLauncher().starts(Placement(("far",), ((0, 1),)), {"PATH": str(tmp_path)})


def test_an_mpiexec_that_is_nobodys(tmp_path: Path) -> None:
    program = tmp_path / "mpiexec"
    for said, wanted in [("echo HYDRA build details", ["-hosts", "a,b", "-ppn"]), ("echo Open MPI", ["a:1,b:1"])]:
        program.write_text(f"#!/bin/sh\n{said}\n")
        program.chmod(0o755)
        (start,) = MpiLauncher().starts(Placement(("a", "b"), ((0, 1), (2, 3))), {"PATH": f"{tmp_path}:/bin"})
        assert set(wanted) <= set(start.command) and start.host is None and not start.stdin
    program.write_text("#!/bin/sh\necho Intel\n")
    with pytest.raises(ConfigError, match="neither Open MPI's nor MPICH's"):
        MpiLauncher().starts(Placement(("a",), ((0, 1),)), {"PATH": f"{tmp_path}:/bin"})
    with pytest.raises(ConfigError, match="there is no mpiexec on the PATH"):
        MpiLauncher().starts(Placement(("a",), ((0, 1),)), {"PATH": str(tmp_path / "none")})
