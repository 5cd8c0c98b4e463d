"""Deterministic sums on real hosts: four ranks on one, on two of them, evenly and not, and on four."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lab import Cluster, Shape

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes

PROGRAM = """
import hashlib
import numpy as np
import ddl
ddl.init()
hosts = ddl.allgather_object(ddl.world()._group.job.peers[ddl.rank()].host)
digests = {}
for deterministic in (True, False):
    comm = ddl.split(0, deterministic=deterministic)
    digest = hashlib.sha256()
    for count in (5, 20_011, 1_500_007):
        x = np.random.default_rng([ddl.rank(), count]).standard_normal(count).astype(np.float32)
        digest.update(comm.allreduce(x).tobytes())
    digests[deterministic] = digest.hexdigest()
assert len(set(ddl.allgather_object(digests[True]))) == len(set(ddl.allgather_object(digests[False]))) == 1
if ddl.rank() == 0:
    print(",".join(hosts), digests[True], digests[False])
"""
#: Hosts by rank, as ddlrun is told.
PLACES = {"node1:4": "1111", "node1:2,node2:2": "1122", "node1:3,node2:1": "1112"}
PLACES["node1:1,node2:1,node3:1,node4:1"] = "1234"


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(4, slots=4)], indirect=True)
def test_any_hosts_have_the_same_bits(own_cluster: Cluster) -> None:
    bits, usual = set(), set()
    for hosts, expected in PLACES.items():
        line = [sys.executable, "-m", "ddl.launch", "-H", hosts, "--no-prefix", sys.executable, "-c", PROGRAM]
        variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "DDL_TUNED": "off"}
        job = own_cluster.run("node1", line, env=variables, cwd="/", timeout=240, check=False)
        assert job.returncode == 0, job.stderr
        names, first, other = job.stdout.split()
        assert names.replace("node", "").replace(",", "") == expected
        bits.add(first)
        usual.add(other)
    assert len(bits) == 1
    assert len(usual) > 1  # so that these inputs show another order
