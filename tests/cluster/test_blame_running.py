"""What is wrong with jobs that run on: who is late, and which link is slow. In a healthy one nobody is accused.

The sums that are compared are of real networks and processors of this machine, so the limits are wide.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import pytest
from cluster.control_group import control_group
from cluster.test_blame import CULPRIT, PAGE, ROOT, findings_in, hosts, last_words, on_page, start

from ddl.blame.finding import KINDS, Finding
from ddl.blame.judge import blame
from ddl.launch.dashboard.replay import ReplaySource
from ddl.tools.dump_files import read_dumps
from lab import FOUR_HOSTS, TWO_RAILS, Cluster

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.slow, pytest.mark.alone]
__all__ = ["hosts"]


@contextlib.contextmanager
def running(
    cluster: Cluster, folder: Path, code: str, *options: str, ranks: int = 1
) -> Iterator[subprocess.Popen[str]]:
    """Start a job, and end it in any case."""
    with start(cluster, folder, code, *options, ranks=ranks) as job:
        try:
            assert job.stdout is not None and "begun" in job.stdout.readline()
            yield job
        finally:
            job.terminate()
            job.communicate(timeout=60)


def ddlrun_of(cluster: Cluster, folder: Path) -> int:
    return int(cluster.run("node1", ["pgrep", "-o", "-f", f"ddl.launch.*{folder}"]).stdout)


def _blamed_on_page(folder: Path) -> List[str]:
    return [text[:300] for text in on_page(folder) if text.startswith(tuple(f"{kind}: " for kind in KINDS))]


def rails_on_page(folder: Path) -> Dict[Tuple[str, ...], int]:
    """Return what goes from host to host over each pair of addresses, by the last state that the page has shown."""
    last = json.loads(ReplaySource(folder / PAGE).story())["state"]
    return {tuple(last["texts"][text] for text in place): rate for *place, rate in last["rails"]}


def asked(cluster: Cluster, folder: Path) -> List[Finding]:
    """Ask ddlrun for dumps; return what they show. The page must say the same."""
    tool = [sys.executable, "-m", "ddl.tools", "dump", str(ddlrun_of(cluster, folder))]
    cluster.run("node1", tool, env={"PYTHONPATH": str(ROOT)}, cwd=folder)
    findings = findings_in(folder)
    until = time.monotonic() + 5
    while (told := _blamed_on_page(folder)) != [
        f"{finding.kind}: {finding.sentence}"[:300] for finding in findings[:1]
    ]:
        assert time.monotonic() < until, (findings, told)
        time.sleep(0.1)
    return findings


@pytest.mark.parametrize(("milliseconds", "within"), [(200, 20), (5, 2)])
def test_a_rank_is_late_all_the_time(hosts: Cluster, tmp_path: Path, milliseconds: int, within: int) -> None:
    """It sleeps so long in each step. Nothing fails, so somebody has to ask."""
    with running(hosts, tmp_path, f"time.sleep({milliseconds / 1000} if rank == 2 else 0)"):
        time.sleep(8)
        (finding,) = asked(hosts, tmp_path)
    assert (finding.kind, finding.ranks, finding.host) == ("slow", (CULPRIT,), "node3"), finding
    late = re.search(r"comes ([\d.]+) ms late to each operation", finding.sentence)
    assert late is not None and abs(float(late[1]) - milliseconds) <= within, finding


@pytest.fixture
def fifth_of_a_core() -> Iterator[str]:
    """Make a control group that has a fifth of a core; return its folder."""
    with control_group("cpu", {"cpu.max": "20000 100000"}, {"cpu.cfs_quota_us": "20000"}) as group:
        yield str(group)


SHARE = """
    if step == 0 and rank == 2:
        with open(os.environ["GROUP"] + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    begin = time.thread_time()
    while rank == 2 and time.thread_time() < begin + 0.01:
        pass
    if rank != 2:
        time.sleep(0.01)  # so that the ranks of the other hosts do not wait for this machine's processors
"""


def test_a_rank_has_a_fifth_of_a_core(hosts: Cluster, tmp_path: Path, fifth_of_a_core: str) -> None:
    with running(hosts, tmp_path, SHARE, "--env", f"GROUP={fifth_of_a_core}"):
        time.sleep(8)
        (finding,) = asked(hosts, tmp_path)
    assert (finding.kind, finding.ranks, finding.host) == ("slow", (CULPRIT,), "node3"), finding
    assert any("had used up its share of processors" in line for line in finding.evidence), finding


LARGE = """
    if step >= 10:
        ddl.allreduce_(np.ones(1 << 20, np.float32))
"""


def shape(cluster: Cluster, host: str, rate: str) -> None:
    """Let the port of a host send no more than so much."""
    line = ["tc", "qdisc", "replace", "dev", "rail0", "root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms"]
    cluster.run(host, line)


def test_a_port_is_slow(clusters_can_be_built: None, tmp_path: Path) -> None:
    """Before, nobody is accused."""
    with Cluster(FOUR_HOSTS) as cluster:
        for host in cluster.hosts:
            shape(cluster, host, "400mbit")
        with running(cluster, tmp_path, LARGE, "--timeout", "60"):
            time.sleep(3)
            assert asked(cluster, tmp_path) == []
            shape(cluster, "node3", "20mbit")
            time.sleep(3)
            (finding,) = asked(cluster, tmp_path)
    assert finding.kind == "slow link" and CULPRIT in finding.ranks and "host node3" in finding.sentence, finding
    assert any(line.startswith("host node3 to host node4 (") for line in finding.evidence), finding


def test_a_rail_is_down(clusters_can_be_built: None, tmp_path: Path) -> None:
    """The job goes on over the other rail, and before nobody is accused."""
    with Cluster(TWO_RAILS) as cluster, running(cluster, tmp_path, LARGE, "--timeout", "60") as job:
        time.sleep(3)
        assert asked(cluster, tmp_path) == []
        cluster.cut("node2", rail=1)
        time.sleep(3)
        (finding,) = asked(cluster, tmp_path)
        assert job.poll() is None
        time.sleep(5)
        rails = rails_on_page(tmp_path)
    assert finding.kind == "link down", finding
    assert rails["node1", "node2", "10.77.1.1", "10.77.1.2"] == 0 < rails["node1", "node2", "10.77.0.1", "10.77.0.2"]
    assert "10.77.1.1" in finding.sentence and "10.77.1.2" in finding.sentence, finding


HEALTHY = """
    if step == 0 and rank == 1:
        time.sleep(2)  # the first step, while a program is compiled
    if step == 50 and rank == 3:
        time.sleep(1)  # garbage is collected
"""


def test_a_healthy_job_accuses_nobody(hosts: Cluster, tmp_path: Path) -> None:
    """With a slow first step, a pause, and two ranks on each host, more than there are cores here."""
    with running(hosts, tmp_path, HEALTHY, ranks=2):
        for _ in range(5):
            time.sleep(1.5)
            assert asked(hosts, tmp_path) == []


CHECKED = """
    import torch
    import ddl_torch
    weight = torch.nn.Parameter(torch.ones(3))
    sgd = torch.optim.SGD([weight], lr=0.1)
    optimizer = ddl_torch.DistributedOptimizer(sgd, [("weight", weight)], check=1)
    for step in range(20):
        optimizer.zero_grad()
        ((weight * (float("nan") if rank == 2 and step == 7 else 1.0)).sum()).backward()
        optimizer.step()
"""


def test_a_gradient_is_not_a_number(hosts: Cluster, tmp_path: Path) -> None:
    job = start(hosts, tmp_path, CHECKED, "--timeout", "60")
    _, err = job.communicate(timeout=120)
    assert job.returncode == 1
    first = findings_in(tmp_path)[0]
    assert (first.kind, first.ranks, first.host) == ("not finite", (CULPRIT,), "node3"), (first, err)
    assert "ddlrun: not finite: " in last_words(err) and "rank 2 (host node3" in last_words(err)
    assert any(text.startswith("not finite: ") for text in on_page(tmp_path)), on_page(tmp_path)


def test_ddlrun_is_killed(hosts: Cluster, tmp_path: Path) -> None:
    """Each other host keeps what its ranks did last, and blames none of them."""
    with running(hosts, tmp_path, "pass"):
        hosts.run("node1", ["kill", "-KILL", str(ddlrun_of(hosts, tmp_path))])
        until = time.monotonic() + 30
        while len(list(tmp_path.glob("dumps/*/job.json"))) < 3 and time.monotonic() < until:
            time.sleep(0.1)
    kept = [blame(*read_dumps(path.parent))[0] for path in tmp_path.glob("dumps/*/job.json")]
    assert {"node2", "node3", "node4"} <= {first.host for first in kept}
    for first in kept:
        assert first.kind == "launcher lost" and "ddlrun was killed" in first.evidence[0], first
