"""``ddlrun --jax`` on two hosts: JAX finds the ranks, its collectives are DDL's and right, and a lost rank is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab import Cluster

pytest.importorskip("jaxlib", reason="JAX is not installed: pip install 'open-ddl[engines]'")
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "jax_ranks" / "programs"  #: they call jax.distributed.initialize() without arguments
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def ddlrun(cluster: Cluster, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # JAX waits for a rank that is lost as long as it may. The grace leaves time to say so first.
    line = [
        sys.executable,
        "-m",
        "ddl.launch",
        "--jax",
        "--grace",
        "8",
        "-H",
        "node1:2,node2:2",
        str(PROGRAMS / program),
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    environ.pop("MPITRAMPOLINE_LIB", None)  # ddl_jax sets it, and other tests import that
    return cluster.run("node1", [*line, *arguments], env=environ, cwd="/", timeout=240, check=False)


def test_every_collective_is_right(cluster: Cluster) -> None:
    done = ddlrun(cluster, "collectives.py")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(4):
        assert f"rank {rank} of 4: all right, True" in done.stdout, done.stdout


@pytest.mark.faults
@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_rank_is_named_on_the_other_host(cluster: Cluster, victim: int) -> None:
    done = ddlrun(cluster, "killed.py", "psum", str(victim))
    assert done.returncode == 137, done.stdout + done.stderr
    others, here, there = ("23", "node1", "node2") if victim == 0 else ("01", "node2", "node1")
    lost = rf"ddl: PeerLost: \[rank [{others}]/4 host {there}\].*lost rank {victim} \(host {here}\)"
    assert re.search(lost, done.stderr), done.stderr
