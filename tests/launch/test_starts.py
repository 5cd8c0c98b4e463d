"""What starts agents on other hosts: which launcher, with which command line, and the invitation that it carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddl.errors import ConfigError, ProtocolError
from ddl.launch.agent.control import Invitation
from ddl.launch.ask.placement import Placement
from ddl.launch.cli import parse
from ddl.launch.launchers.mpi import MpiLauncher
from ddl.launch.launchers.slurm import SlurmLauncher
from ddl.launch.launchers.ssh import SshLauncher


def test_invitations_are_read_back_and_not_shown() -> None:
    invitation = Invitation(bytes(range(32)), ("10.0.0.1:5", "[::1]:6"), 3, 5.0, True, False, "/a/libssl.so")
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
