"""Elastic jobs in an allocation of a real Slurm: ranks and hosts are lost, and come back; with ddlrun and without."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator

import pytest
from cluster.elastic_hosts import DDLRUN, PATIENCE, HostsJob
from cluster.elastic_steps import Note
from cluster.slurm import slurm, why_no_slurm
from cluster.test_launching import missing

from lab import FOUR_HOSTS, Cluster

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.slow]
SALLOC = ("salloc", "--no-kill", "-Q", "-N4", "-n4", "--ntasks-per-node=1")
AGAIN = ("--max-restarts", "9", "--blacklist-cooldown-range", "0.5", "1")
Variables = Dict[str, str]
four_hosts = pytest.mark.parametrize("own_cluster", [FOUR_HOSTS], indirect=True, ids=[""])


@pytest.fixture
def variables(own_cluster: Cluster) -> Iterator[Variables]:
    reason = why_no_slurm()
    if reason is not None:
        missing(reason)
    with slurm(own_cluster) as environ:
        yield environ


def ddlrun(cluster: Cluster, folder: Path, variables: Variables, *options: str) -> HostsJob:
    return HostsJob(cluster, folder, "commits", *options, line=[*SALLOC, *DDLRUN], variables=variables)


def output(folder: Path) -> str:
    return (folder / "output").read_text()


def kill_two_of_four(job: HostsJob) -> Dict[int, Note]:
    """Kill rank 2, then rank 0; return what the four had noted before, by rank, once the other two go on."""
    there = job.full(4)
    for rank in (2, 0):
        job.kill([there[rank]])
        job.change(lost=[there[rank].process])
    job.full(2)
    return there


@four_hosts
def test_ranks_are_killed(own_cluster: Cluster, variables: Variables, tmp_path: Path) -> None:
    with ddlrun(own_cluster, tmp_path, variables) as job:
        there = kill_two_of_four(job)
        for rank, left in ((2, 3), (0, 2)):  # the others may go on, and even end, before ddlrun hears of a death
            names = f"rank {rank} (host {there[rank].host}, pid {there[rank].pid})"
            words = f"{names} was killed by signal 9 (SIGKILL); {left} ranks are left"
            job.wait_until(lambda words=words: words in output(tmp_path), f"ddlrun does not say {words!r}")
        job.end()
        job.check("commits")


def agent(job: HostsJob, variables: Variables, victim: Note) -> None:
    job.cluster.run(victim.host, ["pkill", "-9", "-f", "ddl.launch.agent.remote"])


def scancel(job: HostsJob, variables: Variables, victim: Note) -> None:
    steps = job.cluster.run("node1", ["squeue", "-s", "-h", "-o", "%i %N"], env=variables).stdout
    (number,) = [line.split()[0] for line in steps.splitlines() if line.split()[1] == victim.host]
    job.cluster.run("node1", ["scancel", number], env=variables)


def link(job: HostsJob, variables: Variables, victim: Note) -> None:
    job.cluster.link_down(victim.host)
    job.change(lost=[victim.process])
    job.cluster.link_up(victim.host)


@four_hosts
@pytest.mark.parametrize("lose", [agent, scancel, link])
def test_a_host_is_lost_and_comes_back(
    own_cluster: Cluster,
    variables: Variables,
    tmp_path: Path,
    lose: Callable[[HostsJob, Variables, Note], None],
) -> None:
    with ddlrun(own_cluster, tmp_path, variables, *AGAIN) as job:
        victim = job.full(4)[2]
        lose(job, variables, victim)
        job.change(lost=[2], joined=[4])
        assert job.full(4, time.monotonic())[3].host == victim.host
        job.end()
        job.check("commits")
    assert f"host {victim.host} is lost" in output(tmp_path)


@four_hosts
def test_slurm_takes_a_node_for_dead(own_cluster: Cluster, variables: Variables, tmp_path: Path) -> None:
    with ddlrun(own_cluster, tmp_path, variables, *AGAIN) as job:
        victim = job.full(4)[2]
        down = ["scontrol", "update", "NodeName=node3", "State=DOWN", "Reason=test"]
        own_cluster.run("node1", down, env=variables)
        job.change(lost=[victim.process])
        assert {note.host for note in job.full(3, time.monotonic()).values()} == {"node1", "node2", "node4"}
        job.end()
        job.check("commits")
    assert "host node3 is lost" in output(tmp_path)


@four_hosts
def test_a_job_grows_onto_another_node(own_cluster: Cluster, variables: Variables, tmp_path: Path) -> None:
    with ddlrun(own_cluster, tmp_path, variables, "-np", "2", "--max-np", "3") as job:
        there = job.full(3)
        job.kill([there[1]])
        job.change(lost=[1], joined=[3])
        assert job.full(3, time.monotonic())[2].host == "node4"
        job.end()
        job.check("commits")


@four_hosts
def test_srun_alone(own_cluster: Cluster, variables: Variables, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    line = ["srun", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "-N4", "-n4", "--ntasks-per-node=1"]
    line += ["--output=logs/rank.%t.out", "--error=logs/rank.%t.err", sys.executable]
    more = {**variables, "DDL_ELASTIC": "1", "HOME": str(tmp_path)}
    with HostsJob(own_cluster, tmp_path, "commits", line=line, variables=more) as job:
        kill_two_of_four(job)
        job.let_end()
        assert job.process.wait(PATIENCE) == 137  # srun tells of the worst end of all
        job.check("commits")
