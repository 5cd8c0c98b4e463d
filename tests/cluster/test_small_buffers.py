"""Sockets that hold less than a message: a sender without room must not keep back what the other side needs first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lab import Cluster, Shape

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.slow]

# Several pieces of several operations are under way at once, and rank 1 comes late to every other one.
PROGRAM = """
import sys, time
import numpy as np
import ddl
ddl.init()
rank, size = ddl.rank(), ddl.size()
for step in range(2):
    if rank == 1 and step % 2:
        time.sleep(0.3)
    x = [np.full(1_500_017, rank + number + 1, np.int32) for number in range(3)]
    works = [ddl.allreduce_async_(array, op=ddl.Sum) for array in x]
    gathered = ddl.allgather(np.full((100_003,), rank, np.int32)[None])
    swapped = ddl.alltoall(np.repeat(np.arange(size, dtype=np.int32) + 10 * rank, 100_001))
    for number, work in enumerate(works):
        work.wait()
        assert (x[number] == sum(r + number + 1 for r in range(size))).all(), (step, number)
    assert (gathered == np.arange(size)[:, None]).all()
    assert (swapped == np.repeat(10 * np.arange(size) + rank, 100_001)).all()
print("done", rank, flush=True)
"""


@pytest.mark.parametrize("own_cluster", [Shape(3, slots=2), Shape(3, rails=(None, None))], indirect=True)
def test_all_pieces_arrive_through_small_buffers(own_cluster: Cluster) -> None:
    for host in own_cluster.hosts:
        for name in ("rmem", "wmem"):
            own_cluster.run(host, ["sysctl", "-qw", f"net.ipv4.tcp_{name}=16384 16384 16384"])
    slots = own_cluster.shape.slots
    hosts = ",".join(f"{host}:{slots}" for host in own_cluster.hosts)
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "DDL_TIMEOUT": "200"}
    line = [sys.executable, "-m", "ddl.launch", "-H", hosts, "--no-prefix", sys.executable, "-c", PROGRAM]
    job = own_cluster.run("node1", line, env=variables, cwd="/", timeout=240, check=False)
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == [f"done {rank}" for rank in range(3 * slots)]
