"""Hosts with IPv6 alone, with both, and with one each: who reaches whom, and by what."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List

import pytest
from cluster.test_doctor import NOISE, doctor
from ipv6 import needs_kernel_with_ipv6

from ddl.tools.dump_files import read_dumps
from lab import Cluster, Shape
from lab.wiring import Wiring

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, needs_kernel_with_ipv6]

#: A rank says how it came to the store, where it takes data, and where torch.distributed is to meet.
PROGRAM = """
import os
import numpy as np
import ddl
from ddl import api
from ddl.adapter.addresses import own_address
ddl.init()
x = np.arange(1 << 20, dtype=np.float32) * (ddl.rank() + 1)
ddl.allreduce_(x, op=ddl.Sum)
assert (x[:100] == np.arange(100) * sum(range(1, ddl.size() + 1))).all()
assert ddl.broadcast_object("told", root=ddl.size() - 1) == "told"
print(os.environ["DDL_STORE"].rpartition(":")[0], own_address(), os.environ["MASTER_ADDR"], *api.world().job.rails)
"""


def start(cluster: Cluster, hosts: str, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **environ}
    line = [sys.executable, "-m", "ddl.launch", "-H", hosts, *options, "--", sys.executable, "-c", PROGRAM]
    return cluster.run("node1", line, env=variables, cwd="/", timeout=240, check=False)


def said(job: subprocess.CompletedProcess[str]) -> Dict[int, List[str]]:
    """Return what each rank said, by its number."""
    assert job.returncode == 0, job.stderr
    lines = [re.fullmatch(r"\[(\d)\] (.*)", line) for line in job.stdout.splitlines()]
    return {int(line[1]): line[2].split() for line in lines if line is not None}


@pytest.fixture(scope="module")
def without_ipv4(clusters_can_be_built: None) -> Iterator[Cluster]:
    """Two hosts with two rails and no address of IPv4."""
    with Cluster(Shape(2, rails=(None, None), ip="6")) as built:
        assert "10.77" not in built.run("node1", ["ip", "addr"]).stdout
        yield built


RAIL0, RAIL1 = "fd77::/64", "fd77:0:0:1::/64"


@pytest.mark.parametrize("options", [(), ("--encrypt",), ("--min-np", "1")], ids=["plain", "encrypted", "elastic"])
def test_a_job_on_hosts_without_ipv4(without_ipv4: Cluster, options: List[str]) -> None:
    ranks = said(start(without_ipv4, "node1:1,node2:1", *options))
    assert ranks == {rank: ["[fd77::1]", f"fd77::{rank + 1}", "fd77::1", RAIL0, RAIL1] for rank in (0, 1)}


@pytest.mark.slow
def test_ranks_that_another_launcher_has_started(without_ipv4: Cluster, tmp_path: Path) -> None:
    """By torchrun's variables: rank 0 has the store, and is found by a file."""
    program = "import ddl; ddl.init(); print(ddl.allgather_object(ddl.rank()))"
    jobs = []
    for rank, host in enumerate(without_ipv4.hosts):
        variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "DDL_RENDEZVOUS_DIR": str(tmp_path)}
        variables.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="fd77::1", MASTER_PORT="29500")
        pipe = subprocess.PIPE
        jobs.append(without_ipv4.popen(host, [sys.executable, "-c", program], env=variables, stdout=pipe, stderr=pipe))
    for job in jobs:
        assert job.communicate(timeout=240) == ("[0, 1]\n", "")


@pytest.mark.slow
def test_hosts_and_networks_are_named_by_addresses(without_ipv4: Cluster) -> None:
    ranks = said(start(without_ipv4, "[fd77::1]:1,[fd77::2]:2", "--network-interface", RAIL1))
    assert ranks == {
        rank: ["[fd77::1]", f"fd77:0:0:1::{host}", "fd77:0:0:1::1", "#0"] for rank, host in enumerate((1, 2, 2))
    }
    done = start(without_ipv4, "fd77::1,fd77::2")
    assert done.returncode == 2 and "write an IPv6 address in brackets, [fd77::1] or [fd77::1]:slots" in done.stderr


@pytest.mark.slow
def test_the_doctor_on_hosts_without_ipv4(without_ipv4: Cluster, tmp_path: Path) -> None:
    seen = doctor(without_ipv4, "-H", "node1,node2", cwd=tmp_path)
    assert seen.bad <= NOISE and seen.find("ok", "interface")["text"] == "data goes by rail0", seen.verdicts
    assert seen.find("ok", "mtu")["text"] == "packets pass at full size"

    # The switch between the hosts takes less than both of them think, and tells nobody.
    names = [f"node{number}.0" for number in (1, 2)]
    without_ipv4._wire("fabric", _mtu(names, 1400))
    without_ipv4.refuse("node2", "node1", 1)
    try:
        seen = doctor(without_ipv4, "-H", "node1,node2", cwd=tmp_path)
    finally:
        without_ipv4._wire("fabric", _mtu(names, 1500))
        without_ipv4.restore("node2", 1)
    assert "packets of 1500 bytes vanish on rail0" in seen.find("error", "mtu")["text"]
    assert "no answer to connections on rail1" in seen.find("warning", "ports")["text"]


def _mtu(names: List[str], size: int) -> Wiring:
    return Wiring([f"link set {name} mtu {size}" for name in names])


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(3, rails=(None, None), ip="both")], indirect=True)
def test_hosts_with_both(own_cluster: Cluster, tmp_path: Path) -> None:
    """IPv4, unless a host has no way over it; each cable is one rail; and it is said who cannot reach whom."""
    hosts = own_cluster
    rails4, rails6 = ["10.77.0.0/24", "10.77.1.0/24"], [RAIL0, RAIL1]

    ranks = said(start(hosts, "node1:1,node2:1"))
    assert ranks == {rank: ["10.77.0.1", f"10.77.0.{rank + 1}", "10.77.0.1", *rails4] for rank in (0, 1)}
    ranks = said(start(hosts, "node1:1,node2:1", "--network-interface", RAIL1))
    assert ranks == {rank: ["10.77.0.1", f"fd77:0:0:1::{rank + 1}", "fd77:0:0:1::1", "#0"] for rank in (0, 1)}

    # node3 is known by its address of IPv6: node1 and node2 come over IPv4, and all have both.
    ranks = said(start(hosts, "node1:1,node2:1,[fd77::3]:1"))
    assert [ranks[rank][0] for rank in range(3)] == ["10.77.0.1", "10.77.0.1", "[fd77::1]"]
    assert [ranks[rank][1:] for rank in range(3)] == [[f"fd77::{rank + 1}", "fd77::1", *rails6] for rank in range(3)]

    for rail in (0, 1):
        hosts.run("node2", ["ip", "addr", "del", f"{hosts.addresses('node2', rail)[1]}/64", "dev", f"rail{rail}"])
        hosts.run("node3", ["ip", "addr", "del", f"{hosts.addresses('node3', rail)[0]}/24", "dev", f"rail{rail}"])
    ranks = said(start(hosts, "node1:1,node3:1"))
    assert [ranks[rank][1:] for rank in (0, 1)] == [[f"fd77::{number}", "fd77::1", *rails6] for number in (1, 3)]
    seen = doctor(hosts, "-H", "node1,node3", cwd=tmp_path)
    assert seen.bad <= NOISE, seen.verdicts

    done = start(hosts, "node1:1,node2:1,node3:1")
    assert done.returncode == 1
    assert "ddlrun: node2 can be reached over IPv4 only, node3 over IPv6 only; give the hosts" in done.stderr
    seen = doctor(hosts, "-H", "node1,node2,node3", cwd=tmp_path)
    words = seen.find("error", "sharing")["text"]
    assert "rank 2 (host node2), rank 3 (host node2) can be reached over IPv4 only" in words, words


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(2, ip="both")], indirect=True)
def test_who_is_to_blame_where_hosts_reach_ddlrun_at_different_addresses(own_cluster: Cluster, tmp_path: Path) -> None:
    """The dumps of all ranks count as those of one job."""
    program = "import os, ddl; ddl.init(); ddl.barrier(); ddl.rank() == 0 or os.abort(); ddl.barrier()"
    environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    options = ["-H", "node1:1,[fd77::2]:1", "--dump-dir", str(tmp_path)]
    line = [sys.executable, "-m", "ddl.launch", *options, sys.executable, "-c", program]
    assert own_cluster.run("node1", line, env=environ, cwd="/", check=False).returncode != 0
    dumps, _ = read_dumps(next(tmp_path.glob("*/rank.0.json")).parent)
    assert len({dump.record.identity["store"] for dump in dumps}) == 2
    assert len({dump.record.identity["job"] for dump in dumps}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(2, ip="6")], indirect=True)
def test_temporary_addresses_are_not_used(own_cluster: Cluster) -> None:
    """They go in days, and a connection goes with its address. The kernel prefers them where nobody says otherwise."""
    for number, host in enumerate(own_cluster.hosts, 1):
        script = f"""
        echo 2 >/proc/sys/net/ipv6/conf/rail0/use_tempaddr
        ip addr del fd77::{number}/64 dev rail0
        ip addr add fd77::{number}/64 dev rail0 mngtmpaddr nodad
        until ip -6 addr show dev rail0 temporary -tentative | grep -q fd77; do sleep 0.05; done
        """
        own_cluster.run(host, ["sh", "-ec", script])
    ask = "import socket as s; c = s.create_connection(('node1', 22)); print(c.getsockname()[0])"
    assert len(own_cluster.run("node2", [sys.executable, "-c", ask]).stdout.strip()) > len("fd77::2")
    ranks = said(start(own_cluster, "node1:1,node2:1"))
    assert ranks == {rank: ["[fd77::1]", f"fd77::{rank + 1}", "fd77::1", RAIL0] for rank in (0, 1)}
