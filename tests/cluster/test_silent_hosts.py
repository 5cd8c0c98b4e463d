"""A host falls silent: the others give it up after DDL_HOST_TIMEOUT, and not before; under ddlrun, and without it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List

import pytest
from cluster.elastic_hosts import HostsJob
from launch.launcher import eventually

from lab import FOUR_HOSTS, Cluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.slow]  # seconds of silence have to pass
AWAY = 12.0  # seconds, more than a host may be silent where nobody says otherwise
PATIENT = "60"  # DDL_HOST_TIMEOUT: a connection that was cut may be tried again as late as it was cut

# Each rank writes down how many sums it has, until it finds a file: so all do as many.
PROGRAM = """
import pathlib, sys, time
import numpy as np
import ddl
ddl.init()
folder = pathlib.Path(sys.argv[1])
x = np.ones(1000, np.float32)
steps = 0
while not ddl.allreduce(np.array([(folder / "stop").exists()], np.float32), op="max")[0]:
    steps += 1
    assert ddl.allreduce(x, op="sum")[0] == ddl.size()
    (folder / f"steps.{ddl.rank()}").write_text(str(steps))
    time.sleep(0.01)
print("done", steps, flush=True)
"""


class Ranks:
    """Two ranks on each of two hosts. ``launcher``: ddlrun, or one that only sets torchrun's variables."""

    def __init__(self, cluster: Cluster, folder: Path, launcher: str, **variables: str) -> None:
        self.cluster, self.folder = cluster, folder
        self.processes: List[subprocess.Popen[str]] = []
        path = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
        environ = {**path, "DDL_TIMEOUT": "300", "DDL_RENDEZVOUS_DIR": str(folder), **variables}
        program = [sys.executable, "-c", PROGRAM, str(folder)]
        if launcher == "ddlrun":
            options = ["-H", "node1:2,node2:2", "--output-dir", str(folder / "logs")]
            self._start("node1", [sys.executable, "-m", "ddl.launch", *options, *program], environ)
        else:
            for rank in range(4):
                named = {"MASTER_ADDR": cluster.address("node1"), "MASTER_PORT": "29500", "WORLD_SIZE": "4"}
                environ.update(named, RANK=str(rank), LOCAL_RANK=str(rank % 2), LOCAL_WORLD_SIZE="2")
                self._start(f"node{1 + rank // 2}", program, environ)
        assert eventually(lambda: min(self.steps().values(), default=0) > 20 and len(self.steps()) == 4)

    def _start(self, host: str, line: List[str], environ: Dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.processes.append(
            self.cluster.popen(
                host, line, env=environ, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        )

    def steps(self) -> Dict[str, int]:
        return {path.name: int(path.read_text() or 0) for path in self.folder.glob("steps.*")}

    def ends(self) -> List[str]:
        """Wait for all processes; return what each has said."""
        return ["".join(process.communicate(timeout=240)) for process in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, launcher: str, **variables: str) -> Iterator[Ranks]:
    job = Ranks(cluster, folder, launcher, **variables)
    try:
        yield job
    finally:
        job.kill()


@pytest.mark.parametrize("host", [1, 2])
@pytest.mark.parametrize("fault", ["cut", "power_off"])
def test_ranks_without_ddlrun_are_told(own_cluster: Cluster, tmp_path: Path, host: int, fault: str) -> None:
    """Nobody has an agent there that would be missed. Rank 0, on the first host, has the store."""
    with running(own_cluster, tmp_path, "torchrun") as job:
        getattr(own_cluster, fault)(f"node{host}")
        said = job.ends()
    for rank in (2, 3) if host == 1 else (0, 1):
        lost = r"lost rank [23] \(host node2\): nothing has come from its host"
        store = r"nothing has come from the host of the job's store, \S+:\d+,"
        words = (
            rf"PeerLost: \[rank {rank}/4 host node\d\] allreduce .*{store if host == 1 else lost} for \d+ s: it is down"
        )
        assert re.search(words, said[rank]), said[rank]


@pytest.mark.parametrize("launcher", ["ddlrun", "torchrun"])
@pytest.mark.parametrize("encrypt", ["0", "1"])
def test_a_network_comes_back_in_time(own_cluster: Cluster, tmp_path: Path, launcher: str, encrypt: str) -> None:
    with running(own_cluster, tmp_path, launcher, DDL_HOST_TIMEOUT=PATIENT, DDL_ENCRYPT=encrypt) as job:
        own_cluster.cut("node2")
        time.sleep(AWAY)
        before = job.steps()
        own_cluster.mend("node2")
        assert eventually(lambda: min(job.steps().values()) > max(before.values()) + 20)
        (tmp_path / "stop").touch()
        said = job.ends()
    assert [process.returncode for process in job.processes] == [0] * len(said), said


@pytest.mark.parametrize("own_cluster", [FOUR_HOSTS], indirect=True, ids=[""])
def test_an_elastic_job_waits_for_a_host_as_well(own_cluster: Cluster, tmp_path: Path) -> None:
    with HostsJob(own_cluster, tmp_path, "commits", "--host-timeout", PATIENT) as job:
        there = job.full(8)
        own_cluster.cut("node3")
        time.sleep(AWAY)
        mended = time.monotonic()
        own_cluster.mend("node3")
        again = job.full(8, after=mended)
        assert {note.process for note in again.values()} == {note.process for note in there.values()}
        assert {note.generation for note in again.values()} == {note.generation for note in there.values()}
