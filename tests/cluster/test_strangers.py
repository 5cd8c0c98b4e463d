"""Strangers at every port on which a job over several hosts listens change nothing but a line in the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from cluster import stranger

from lab import FOUR_HOSTS, Cluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes

# Goes on until it is told that the strangers have been there; every sum is checked.
PROGRAM = """
import os, sys, time
import numpy as np
import ddl
ddl.init()
x = ddl.empty(30_000, np.float32)
print("on", flush=True)
end = time.monotonic() + 60
while True:
    x[:] = ddl.rank()
    ddl.allreduce_(x, op=ddl.Sum)
    assert (x == ddl.size() * (ddl.size() - 1) / 2).all()
    if ddl.allreduce(float(os.path.exists(sys.argv[1]) or time.monotonic() > end), op=ddl.Max):
        break
print("right", flush=True)
"""


def listening(cluster: Cluster, hosts: List[str]) -> List[str]:
    """Where anything of ours listens on ``hosts``; sshd's port is its own affair."""
    open_ports = []
    for host in hosts:
        for line in cluster.run(host, ["ss", "-Htln"]).stdout.splitlines():
            address, _, port = line.split()[3].rpartition(":")
            if port != "22":
                assert not address.startswith("127."), f"{host} listens on {address} only"
                open_ports.append(f"{cluster.address(host)}:{port}")
    return open_ports


@pytest.mark.slow
def test_strangers_at_every_port(clusters_can_be_built: None, tmp_path: Path) -> None:
    program, done = tmp_path / "program.py", tmp_path / "done"
    program.write_text(PROGRAM)
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "DDL_LOG": "info"}
    hosts = ["node1", "node2", "node3"]
    line = [sys.executable, "-m", "ddl.launch", "-H", "node1:2,node2:2,node3:2", str(program), str(done)]
    pipe = subprocess.PIPE
    with Cluster(FOUR_HOSTS) as cluster:
        with cluster.popen("node1", line, env=variables, cwd=tmp_path, stdout=pipe, stderr=pipe) as job:
            assert job.stdout is not None
            assert sorted(job.stdout.readline()[4:] for _ in range(6)) == ["on\n"] * 6
            ports = listening(cluster, hosts)
            assert len(ports) >= 7  # the store, and each rank's data
            visits = cluster.run("node4", [sys.executable, stranger.__file__, *ports], timeout=240).stdout
            done.touch()
            out, err = job.communicate(timeout=240)
    assert int(visits) == len(ports) * len(stranger.VISITS)
    assert job.returncode == 0, err
    assert sorted(line[4:] for line in out.splitlines()) == ["right"] * 6
    assert "does not know this job's secret" in err or "does not speak DDL's handshake" in err
    assert "Traceback" not in err
