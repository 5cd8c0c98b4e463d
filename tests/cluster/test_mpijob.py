"""The launcher's command of containers/mpijob.yaml, as a process on hosts with a real sshd, by the operator's hostfile.

In containers: tests/containers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from lab import TWO_HOSTS, Cluster

ROOT = Path(__file__).resolve().parents[2]
ALLREDUCE = "import socket, ddl\nddl.init()\nprint(socket.gethostname(), ddl.allreduce(1.0, op=ddl.Sum))\n"
pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("cluster", [TWO_HOSTS], indirect=True)
def test_an_mpi_job_on_two_hosts(cluster: Cluster, tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / "containers" / "mpijob.yaml").read_text())["spec"]
    assert job["mpiReplicaSpecs"]["Worker"]["replicas"] == len(cluster.hosts) == 2
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"{host} slots={job['slotsPerWorker']}\n" for host in cluster.hosts))
    (container,) = job["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    program = tmp_path / "train.py"
    program.write_text(ALLREDUCE)
    there = {"/etc/mpi/hostfile": str(hostfile), "python": sys.executable, "train.py": str(program)}
    words = [there.get(word, word) for word in container["command"]]
    assert words[0] == "ddlrun" and set(there.values()) <= set(words)
    environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root")}
    line = [sys.executable, "-m", "ddl.launch", *words[1:]]
    done = cluster.run("node1", line, env=environ, cwd="/", timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] node{1 + rank // 4} 8.0" for rank in range(8)]
