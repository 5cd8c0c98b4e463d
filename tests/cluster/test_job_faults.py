"""Eight ranks on four hosts and a fault in the middle: all end in time, with an error that names the right rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple

import pytest

from lab import FOUR_HOSTS, Cluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.alone]
DEADLINE = 4.0  #: seconds, DDL_TIMEOUT

# Each rank writes what it sees to a file of its own: ddlrun may be cut off from it.
PROGRAM = """
import os, sys, time
import numpy as np
import ddl
ddl.init()
x = ddl.empty({count}, np.float32)
x[:] = 1
try:
    for step in range(100_000_000):
        if step == 20:
            open(f"on.{{ddl.rank()}}", "w").write(str(os.getpid()))
        {call}
except ddl.CommunicatorError as error:
    with open(f"part.{{ddl.rank()}}", "w") as file:
        file.write(f"{{time.time()}} {{type(error).__name__}} {{error}}")
    os.rename(f"part.{{ddl.rank()}}", f"error.{{ddl.rank()}}")
    deadline = time.monotonic() + 30
    while not os.path.exists("seen") and time.monotonic() < deadline:
        time.sleep(0.01)  # so that nobody's end explains anybody's error
    sys.exit(7)
"""


class Seen(NamedTuple):
    after: float  # seconds since the fault
    kind: str
    text: str


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Job:
    """Eight ranks that all-reduce without end, two on each of node1 to node4."""

    def __init__(
        self, cluster: Cluster, folder: Path, count: int, call: str = "ddl.allreduce_(x)", *options: str
    ) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "program.py").write_text(PROGRAM.format(count=count, call=call))
        hosts = ",".join(f"{host}:2" for host in cluster.hosts)
        line = [sys.executable, "-m", "ddl.launch", "-np", "8", "-H", hosts, *options]
        variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "DDL_TIMEOUT": str(DEADLINE)}
        pipe = subprocess.PIPE
        self.process = cluster.popen(
            "node1",
            [*line, "program.py"],
            env=variables,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
        )
        wait_for(lambda: len(list(folder.glob("on.*"))) == 8, 40, "the ranks have not begun")
        time.sleep(0.3)

    def pid(self, rank: int) -> int:
        return int((self.folder / f"on.{rank}").read_text())

    def signal(self, rank: int, name: str) -> float:
        """Send a signal to a rank; return when."""
        begin = time.time()
        self.cluster.run(self.cluster.hosts[rank // 2], ["kill", f"-{name}", str(self.pid(rank))])
        return begin

    def has_failed(self, rank: int) -> bool:
        """Whether it has written what it saw."""
        return (self.folder / f"error.{rank}").exists()

    def is_gone(self, rank: int) -> bool:
        """Whether its process has ended."""
        host = self.cluster.hosts[rank // 2]
        return self.cluster.run(host, ["kill", "-0", str(self.pid(rank))], check=False).returncode != 0

    def errors(self, ranks: List[int], since: float, seconds: float) -> Dict[int, Seen]:
        """What ``ranks`` saw, each within ``seconds``."""
        paths = {rank: self.folder / f"error.{rank}" for rank in ranks}
        limit = max(0.0, since + seconds + 5 - time.time())
        wait_for(
            lambda: all(path.exists() for path in paths.values()), limit, f"only {list(self.folder.glob('error.*'))}"
        )
        seen = {}
        for rank, path in paths.items():
            at, kind, text = path.read_text().split(" ", 2)
            seen[rank] = Seen(float(at) - since, kind, text)
            assert seen[rank].after < seconds, seen
        return seen

    def end(self) -> str:
        (self.folder / "seen").touch()
        _, err = self.process.communicate(timeout=240)
        assert self.process.returncode not in (0, None)
        return err


@pytest.fixture(params=[2, 1_000_000], ids=["8B", "4MB"])
def job(request: pytest.FixtureRequest, clusters_can_be_built: None, tmp_path: Path) -> Iterator[Job]:
    with Cluster(FOUR_HOSTS) as cluster:
        job = Job(cluster, tmp_path, request.param)
        yield job
        job.process.kill()
        job.process.communicate(timeout=240)


def test_a_process_is_killed(job: Job) -> None:
    since = job.signal(5, "KILL")
    for seen in job.errors([0, 1, 2, 3, 4, 6, 7], since, 1.0).values():
        assert seen.kind == "PeerLost" and "rank 5 (host node3)" in seen.text
    err = job.end()
    assert job.process.returncode == 137 and "rank 5 (host node3, pid " in err


@pytest.mark.slow
def test_a_process_is_stopped(job: Job) -> None:
    since = job.signal(5, "STOP")
    for seen in job.errors([0, 1, 2, 3, 4, 6, 7], since, DEADLINE + 1).values():
        assert seen.kind == "CollectiveTimeout" and "rank 5 (host node3)" in seen.text
    job.end()


def cut(cluster: Cluster) -> None:
    cluster.cut("node3")


def freeze(cluster: Cluster) -> None:
    cluster.freeze("node3")


def power_off(cluster: Cluster) -> None:
    cluster.power_off("node3")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [cut, freeze, power_off])
def test_a_host_falls_silent(job: Job, fault: Callable[[Cluster], None]) -> None:
    since = time.time()
    fault(job.cluster)
    for seen in job.errors([0, 1, 2, 3, 6, 7], since, DEADLINE + 1).values():
        assert seen.kind in ("CollectiveTimeout", "PeerLost"), seen
        assert re.search(r"rank [45] \(host node3\)", seen.text), seen
    if fault is cut:
        # They cannot know that it is they, and wait 3 s for a verdict that does not reach them. They end with an error
        # then, or before, by their host's agent, which misses ddlrun.
        for rank in (4, 5):
            limit = since + DEADLINE + 8 - time.time()
            wait_for(lambda rank=rank: job.has_failed(rank) or job.is_gone(rank), limit, f"rank {rank} goes on")
            if job.has_failed(rank):
                seen = job.errors([rank], since, DEADLINE + 8)[rank]
                assert seen.kind in ("CollectiveTimeout", "PeerLost") and f"rank {rank}/8 host node3" in seen.text, seen
    if fault is freeze:
        job.cluster.thaw("node3")
    err = job.end()
    assert fault is freeze or "node3" in err


@pytest.mark.slow
def test_a_host_that_is_cut_off_says_why_its_ranks_end(clusters_can_be_built: None, tmp_path: Path) -> None:
    """Its agent misses ddlrun before its ranks have a verdict: it tells since when, and so does ddlrun of it."""
    with Cluster(FOUR_HOSTS) as cluster:
        job = Job(cluster, tmp_path, 2, "ddl.allreduce_(x)", "--output-dir", "logs")
        since = time.time()
        cluster.cut("node3")
        for rank in (4, 5):
            file = tmp_path / "logs" / f"rank.{rank}.err"
            wait_for(lambda file=file: file.read_text().endswith("ended\n"), 20, f"rank {rank} was told nothing")
            said = re.search(r"ddlrun's agent on \S+: .* is lost since (\S+) .*; so ranks? .*here", file.read_text())
            assert said is not None and near(said[1], since), (said, since)
        err = job.end()
        said = re.search(r"host node3 \(ranks 4, 5\): the connection to its agent is gone since (\S+) ", err)
        assert said is not None and near(said[1], since), (err, since)


def near(clock: str, since: float) -> bool:
    """Whether a time of day is that of the fault: keepalive asks every two seconds."""
    return clock in {time.strftime("%H:%M:%S", time.localtime(since + second)) for second in range(-4, 3)}


@pytest.mark.parametrize("job", [1_000_000], indirect=True)  # fewer bytes do not go from each host to the next
@pytest.mark.parametrize("half_open", [False, True])
def test_connections_are_reset(job: Job, half_open: bool) -> None:
    """By somebody between the hosts, or forgotten by one side, without a word that the other one would hear."""
    since = time.time()
    if half_open:
        job.cluster.cut("node3")
    job.cluster.run("node3", ["ss", "-K", "dst", job.cluster.address("node2")], check=False)
    if half_open:
        job.cluster.mend("node3")
    for rank, seen in job.errors(list(range(8)), since, DEADLINE + 1).items():
        given_up = rank in (2, 3, 4, 5) and "the other ranks have given this rank up" in seen.text
        assert seen.kind == "PeerLost", seen
        assert given_up or re.search(r"rank [2345] \(host node[23]\)", seen.text), seen
    job.end()


@pytest.mark.slow
@pytest.mark.parametrize("job", [1_000_000], indirect=True)
def test_a_host_is_slow(job: Job) -> None:
    """Its network still carries something, but 4 MB do not pass in time."""
    since = time.time()
    slow = ["tc", "qdisc", "add", "dev", "rail0", "root", "tbf", "rate", "512kbit", "burst", "20kb", "latency", "50ms"]
    job.cluster.run("node3", slow)
    for seen in job.errors(list(range(8)), since, DEADLINE + 3).values():
        # Either the answers of its ranks are late, too, or they come and say that these ranks are still at it. Two
        # ranks that are silent are named by their numbers only.
        named = re.search(
            r"rank [45] \(host node3\)|ranks 4, 5 do not answer"
            r"|every rank answers .* ranks? [0-9, -]+ ha(s|ve) not finished it",
            seen.text,
        )
        assert seen.kind == "CollectiveTimeout" and named, seen
    job.end()


MISMATCHES = {
    "shape": ("ddl.allreduce_(x[:5] if wrong else x)", "5 x float32", "1000 x float32"),
    "dtype": ("ddl.allreduce_(x.view(np.int32) if wrong else x)", "int32", "float32"),
    "op": ("ddl.allreduce_(x, op=ddl.Max if wrong else ddl.Average)", "max", "average"),
    "order": ("ddl.barrier() if wrong else ddl.allreduce_(x)", "barrier", "allreduce"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", sorted(MISMATCHES))
def test_calls_that_do_not_match(what: str, clusters_can_be_built: None, tmp_path: Path) -> None:
    call, theirs, ours = MISMATCHES[what]
    call = f"wrong = step > 40 and os.path.exists('go') and ddl.rank() == 5; {call}"
    with Cluster(FOUR_HOSTS) as cluster:
        job = Job(cluster, tmp_path, 1000, call)
        since = time.time()
        (tmp_path / "go").touch()
        for seen in job.errors(list(range(8)), since, DEADLINE + 2).values():
            assert seen.kind == "CollectiveMismatch" and theirs in seen.text and ours in seen.text, seen
            assert "rank 5" in seen.text
        job.end()
