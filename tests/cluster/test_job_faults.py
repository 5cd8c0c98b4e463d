"""Eight ranks on four hosts and a fault in the middle: all end, with an error that names the right rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Tuple

import pytest

from lab import FOUR_HOSTS, Cluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.faults]
DEADLINE = 4.0  #: seconds that a rank waits for others, from when all have begun
NEVER = 1000.0  #: a deadline that nobody waits for: what is seen was not brought about by it
PATIENCE = 100.0  #: seconds for what has no limit of its own

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
            while not all(os.path.exists(f"on.{{rank}}") for rank in range(ddl.size())):
                time.sleep(0.01)
            ddl.world().set_timeout({deadline})
        {call}
except ddl.CommunicatorError as error:
    with open(f"part.{{ddl.rank()}}", "w") as file:
        file.write(f"{{type(error).__name__}} {{error}}")
    os.rename(f"part.{{ddl.rank()}}", f"error.{{ddl.rank()}}")
    deadline = time.monotonic() + 200
    while not os.path.exists("seen") and time.monotonic() < deadline:
        time.sleep(0.01)  # so that nobody's end explains anybody's error
    sys.exit(7)
"""


class Seen(NamedTuple):
    kind: str
    text: str


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Job:
    """Eight ranks that all-reduce without end, two on each of node1 to node4, until the context ends."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        count: int,
        *options: str,
        call: str = "ddl.allreduce_(x)",
        deadline: float = DEADLINE,
    ) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "program.py").write_text(PROGRAM.format(count=count, call=call, deadline=deadline))
        hosts = ",".join(f"{host}:2" for host in cluster.hosts)
        line = [sys.executable, "-m", "ddl.launch", "-np", "8", "-H", hosts, *options]
        variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "DDL_TIMEOUT": str(NEVER)}
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

    def __enter__(self) -> Job:
        with ExitStack() as on_error:
            on_error.push(self)
            wait_for(lambda: len(list(self.folder.glob("on.*"))) == 8, "the ranks have not begun")
            time.sleep(0.3)
            on_error.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=240)

    def pid(self, rank: int) -> int:
        return int((self.folder / f"on.{rank}").read_text())

    def signal(self, rank: int, name: str) -> None:
        """Send a signal to a rank."""
        self.cluster.run(self.cluster.hosts[rank // 2], ["kill", f"-{name}", str(self.pid(rank))])

    def has_failed(self, rank: int) -> bool:
        """Whether it has written what it saw."""
        return (self.folder / f"error.{rank}").exists()

    def is_gone(self, rank: int) -> bool:
        """Whether its process has ended."""
        host = self.cluster.hosts[rank // 2]
        return self.cluster.run(host, ["kill", "-0", str(self.pid(rank))], check=False).returncode != 0

    def errors(self, ranks: List[int]) -> Dict[int, Seen]:
        """What ``ranks`` saw."""
        paths = {rank: self.folder / f"error.{rank}" for rank in ranks}
        wait_for(lambda: all(path.exists() for path in paths.values()), f"not all of {ranks} have failed")
        return {rank: Seen(*path.read_text().split(" ", 1)) for rank, path in paths.items()}

    def end(self) -> str:
        (self.folder / "seen").touch()
        _, err = self.process.communicate(timeout=240)
        assert self.process.returncode not in (0, None)
        return err


def with_counts(deadline: float, **counts: int) -> pytest.MarkDecorator:
    """Run the test with a job for each count of elements."""
    jobs = [(count, deadline) for count in counts.values()]
    return pytest.mark.parametrize("job", jobs, indirect=True, ids=list(counts))


BOTH = {"8B": 2, "4MB": 1_000_000}


@pytest.fixture
def job(request: pytest.FixtureRequest, clusters_can_be_built: None, tmp_path: Path) -> Iterator[Job]:
    count, deadline = request.param
    with Cluster(FOUR_HOSTS) as cluster, Job(cluster, tmp_path, count, deadline=deadline) as job:
        yield job


@pytest.mark.few(1)
@with_counts(NEVER, **BOTH)
def test_a_process_is_killed(job: Job) -> None:
    job.signal(5, "KILL")
    for seen in job.errors([0, 1, 2, 3, 4, 6, 7]).values():
        assert seen.kind == "PeerLost" and "rank 5 (host node3)" in seen.text
    err = job.end()
    assert job.process.returncode == 137 and "rank 5 (host node3, pid " in err


@pytest.mark.slow
@with_counts(DEADLINE, **BOTH)
def test_a_process_is_stopped(job: Job) -> None:
    job.signal(5, "STOP")
    for seen in job.errors([0, 1, 2, 3, 4, 6, 7]).values():
        assert seen.kind == "CollectiveTimeout" and "rank 5 (host node3)" in seen.text
    job.end()


def cut(cluster: Cluster) -> None:
    cluster.cut("node3")


def freeze(cluster: Cluster) -> None:
    cluster.freeze("node3")


def power_off(cluster: Cluster) -> None:
    cluster.power_off("node3")


@pytest.mark.slow
@with_counts(DEADLINE, **BOTH)
@pytest.mark.parametrize("fault", [cut, freeze, power_off])
def test_a_host_falls_silent(job: Job, fault: Callable[[Cluster], None]) -> None:
    fault(job.cluster)
    for seen in job.errors([0, 1, 2, 3, 6, 7]).values():
        assert seen.kind in ("CollectiveTimeout", "PeerLost"), seen
        assert re.search(r"rank [45] \(host node3\)", seen.text), seen
    if fault is cut:
        # They cannot know that it is they, and wait 3 s for a verdict that does not reach them. They end with an error
        # then, or before, by their host's agent, which misses ddlrun.
        for rank in (4, 5):
            wait_for(lambda rank=rank: job.has_failed(rank) or job.is_gone(rank), f"rank {rank} goes on")
            if job.has_failed(rank):
                seen = job.errors([rank])[rank]
                assert seen.kind in ("CollectiveTimeout", "PeerLost") and f"rank {rank}/8 host node3" in seen.text, seen
    if fault is freeze:
        job.cluster.thaw("node3")
    err = job.end()
    assert fault is freeze or "node3" in err


@pytest.mark.slow
def test_a_host_that_is_cut_off_says_why_its_ranks_end(clusters_can_be_built: None, tmp_path: Path) -> None:
    """Its agent misses ddlrun before its ranks have a verdict: it tells since when, and so does ddlrun of it."""
    with Cluster(FOUR_HOSTS) as cluster, Job(cluster, tmp_path, 2, "--output-dir", "logs") as job:
        before = time.time()
        cluster.cut("node3")
        since = before, time.time()
        for rank in (4, 5):
            file = tmp_path / "logs" / f"rank.{rank}.err"
            wait_for(lambda file=file: file.read_text().endswith("ended\n"), f"rank {rank} was told nothing")
            said = re.search(r"ddlrun's agent on \S+: .* is lost since (\S+) .*; so ranks? .*here", file.read_text())
            assert said is not None and near(said[1], since), (said, since)
        err = job.end()
        said = re.search(r"host node3 \(ranks 4, 5\): the connection to its agent is gone since (\S+) ", err)
        assert said is not None and near(said[1], since), (err, since)


def near(clock: str, since: Tuple[float, float]) -> bool:
    """Whether a time of day is that of the fault, which came between two: keepalive asks every two seconds."""
    seconds = range(int(since[0]) - 4, int(since[1]) + 4)
    return clock in {time.strftime("%H:%M:%S", time.localtime(second)) for second in seconds}


@pytest.mark.slow
@with_counts(NEVER, **{"4MB": 1_000_000})  # fewer bytes do not go from each host to the next
@pytest.mark.parametrize("half_open", [False, True])
def test_connections_are_reset(job: Job, half_open: bool) -> None:
    """By somebody between the hosts, or forgotten by one side, without a word that the other one would hear."""
    if half_open:
        job.cluster.cut("node3")
    job.cluster.run("node3", ["ss", "-K", "dst", job.cluster.address("node2")], check=False)
    if half_open:
        job.cluster.mend("node3")
    for rank, seen in job.errors(list(range(8))).items():
        given_up = rank in (2, 3, 4, 5) and "the other ranks have given this rank up" in seen.text
        assert seen.kind == "PeerLost", seen
        assert given_up or re.search(r"rank [2345] \(host node[23]\)", seen.text), seen
    job.end()


@pytest.mark.slow
@with_counts(DEADLINE, **{"4MB": 1_000_000})
def test_a_host_is_slow(job: Job) -> None:
    """Its network still carries something, but 4 MB do not pass in time."""
    slow = ["tc", "qdisc", "add", "dev", "rail0", "root", "tbf", "rate", "512kbit", "burst", "20kb", "latency", "50ms"]
    job.cluster.run("node3", slow)
    for seen in job.errors(list(range(8))).values():
        # Either the answers of its ranks are late, too, or they come and say that these ranks are still at it. Two
        # ranks that are silent are named by their numbers only, and so is one to itself.
        named = re.search(
            r"rank [45] \(host node3\)|ranks 4, 5 do not answer|given this rank up: rank [45] does not answer"
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
    with Cluster(FOUR_HOSTS) as cluster, Job(cluster, tmp_path, 1000, call=call, deadline=NEVER) as job:
        (tmp_path / "go").touch()
        for seen in job.errors(list(range(8))).values():
            assert seen.kind == "CollectiveMismatch" and theirs in seen.text and ours in seen.text, seen
            assert "rank 5" in seen.text
        job.end()
