"""Ranks on four hosts come and go, hosts die or are cut off: who has a majority trains on, and nobody else does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Callable, Iterable, List, Sequence, Set, Tuple

import pytest
from cluster.elastic_hosts import PATIENCE, HostsJob
from cluster.elastic_steps import Note
from cluster.test_rails import ways
from ipv6 import needs_kernel_with_ipv6

from benchmarks.churn.hosts import CUT_OFF
from lab import FOUR_HOSTS, TWO_PAIRS, Cluster, Shape

pytestmark = [pytest.mark.processes, pytest.mark.faults]
PATIENT = ("--elastic-timeout", "3")
four_hosts = pytest.mark.parametrize("own_cluster", [FOUR_HOSTS], indirect=True, ids=[""])


def kill_each(job: HostsJob, victims: Sequence[Callable[[int], Set[int]]], size: int) -> None:
    """Kill ranks, group after group, each chosen by the number of ranks that there are; the others go on."""
    since = 0.0
    for choose in victims:
        there = job.full(size, since)
        ranks = choose(size)
        since = job.kill([there[rank] for rank in ranks])
        job.go_on(since, [note for rank, note in there.items() if rank not in ranks])
        size -= len(ranks)
    job.full(size, since)
    job.end()


def middle(size: int) -> Set[int]:
    return {size // 2}


def first(size: int) -> Set[int]:
    return {0}


def third_host(size: int) -> Set[int]:
    return {4, 5}


def first_host(size: int) -> Set[int]:
    """Of which ddlrun is left."""
    return {0, 1}


@pytest.mark.parametrize(
    "own_cluster",
    [FOUR_HOSTS, pytest.param(Shape(4, slots=2, ip="6"), marks=[pytest.mark.slow, needs_kernel_with_ipv6])],
    indirect=True,
    ids=["IPv4", "IPv6"],
)
def test_a_middle_rank_and_rank_0_are_killed(own_cluster: Cluster, tmp_path: Path) -> None:
    with HostsJob(own_cluster, tmp_path, "commits", slots=1) as job:
        kill_each(job, [middle, first], 4)
        job.check("commits")


@four_hosts
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "victims"),
    [("training", 3 * [middle, first]), ("commits", [third_host, first_host])],
    ids=["ranks", "hosts"],
)
def test_ranks_are_killed(
    own_cluster: Cluster, tmp_path: Path, program: str, victims: List[Callable[[int], Set[int]]]
) -> None:
    with HostsJob(own_cluster, tmp_path, program) as job:
        kill_each(job, victims, 8)
        job.check(program)


@four_hosts
@pytest.mark.slow
@pytest.mark.parametrize("program", ["commits", "training"])
def test_deaths_at_bad_moments(own_cluster: Cluster, tmp_path: Path, program: str) -> None:
    """In a commit, in the first step after a change, and while a newcomer is given the state.

    There it is the newcomer, its source or, of eight ranks, another one that dies.
    """
    options = ("--max-restarts", "20", "--blacklist-cooldown-range", "1", "1")
    slots = 2 if program == "commits" else 1  # torch takes long to start
    with HostsJob(own_cluster, tmp_path, program, *options, slots=slots) as job:
        source, other, in_step, in_commit = [job.full(4 * slots)[rank].process for rank in range(0, 4 * slots, slots)]
        newcomer = 4 * slots + 1  # the second of the processes that are started in place of dead ones
        job.die_at("sync", newcomer, 0.02)
        job.die_at("commit", in_commit)
        job.change(lost=[in_commit])
        job.die_at("step", in_step, 0.055)
        job.wait_until(lambda: in_step not in job.members(), f"process {in_step} should be lost")
        before = job.generation()
        job.wait_for_death("sync", newcomer)
        # Of three ranks on three hosts, two that die in one change would take the majority along.
        job.wait_until(lambda: job.generation() > before and newcomer not in job.members(), "the others should go on")
        job.die_at("sync", source, 0.02)
        job.wait_for_death("sync", source)
        lost = [in_commit, in_step, newcomer, source]
        if slots == 2:
            job.die_at("sync", other, 0.02)
            lost.append(other)
        joined = {4 * slots + number for number in range(len(lost))} - {newcomer}
        job.change(lost, joined)
        job.end()
        job.check(program)


def later_ones(job: HostsJob, there: Iterable[Note]) -> Set[int]:
    """Return the processes that have made steps in a later generation than these notes are of.

    Who is left out may still note down the step in which it was.
    """
    newest = max(note.generation for note in there)
    return {note.process for note in job.read() if note.generation > newest}


def link_down(cluster: Cluster) -> None:
    cluster.link_down("node4")


def one_way(cluster: Cluster) -> None:
    cluster.mute("node3")
    cluster.deafen("node4")


def store_away(cluster: Cluster) -> None:
    cluster.cut("node1")


@four_hosts
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut", "away"), [(link_down, {"node4"}), (one_way, {"node3", "node4"}), (store_away, {"node1"})]
)
def test_hosts_are_cut_off(
    own_cluster: Cluster, tmp_path: Path, cut: Callable[[Cluster], None], away: Set[str]
) -> None:
    """The others go on. Who is cut off ends by itself, and says why."""
    with HostsJob(own_cluster, tmp_path, "commits", *PATIENT) as job:
        there = job.full(8).values()
        off, on = [n for n in there if n.host in away], [n for n in there if n.host not in away]
        since = time.monotonic()
        cut(own_cluster)
        job.go_on(since, on)
        job.wait_for_ends(off)
        for note in off:
            assert CUT_OFF.search(job.words(note)), job.words(note)
        if cut is store_away:
            assert job.process.wait(PATIENCE) == 1
            job.let_end()
            job.wait_for_ends(on)
        else:
            job.end()
        job.check("commits")
        assert later_ones(job, there) == {note.process for note in on}


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [TWO_PAIRS], indirect=True, ids=[""])
def test_two_pairs(own_cluster: Cluster, tmp_path: Path) -> None:
    """The half that has ddlrun goes on: its vote makes a majority."""
    with HostsJob(own_cluster, tmp_path, "commits", *PATIENT) as job:
        there = job.full(8).values()
        on, off = halves(there)
        since = time.monotonic()
        own_cluster.split(1)
        job.go_on(since, on)
        job.wait_for_ends(off)
        job.end()
        job.check("commits")
        assert later_ones(job, there) == {note.process for note in on}


def halves(there: Iterable[Note]) -> Tuple[List[Note], List[Note]]:
    """Return the notes of the first pair of hosts, and of the second."""
    first = [note for note in there if note.host in ("node1", "node2")]
    return first, [note for note in there if note not in first]


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [TWO_PAIRS], indirect=True, ids=[""])
@pytest.mark.parametrize("killed", [[], [7], [3, 7]], ids=["4 and 4", "4 and 3", "3 and 3"])
def test_two_pairs_without_ddlrun(own_cluster: Cluster, tmp_path: Path, killed: List[int]) -> None:
    """Its vote is missing, so no half of eight has a majority. Once a rank has died, the others need its vote no more.

    Then 4 of 7 are enough, and of two halves the one with rank 0.
    """
    with HostsJob(own_cluster, tmp_path, "commits", *PATIENT) as job:
        there = job.full(8)
        job.process.kill()
        there = job.full(8, time.monotonic())
        for number, rank in enumerate(killed, 1):
            there = job.full(8 - number, job.kill([there[rank - number + 1]]))
        since = time.monotonic()
        own_cluster.split(1)
        on, off = halves(there.values()) if killed else ([], list(there.values()))
        if on:
            job.go_on(since, on)
        job.wait_for_ends(off)
        job.let_end()
        job.wait_for_ends(on)
        job.check("commits")
        assert later_ones(job, there.values()) == {note.process for note in on}


@four_hosts
@pytest.mark.slow
def test_a_rank_is_stopped(own_cluster: Cluster, tmp_path: Path) -> None:
    """The others go on without it after DDL_TIMEOUT. When it goes on, it learns that, and ends."""
    with HostsJob(own_cluster, tmp_path, "commits", timeout=8) as job:
        stopped, *others = job.full(8).values()
        since = time.monotonic()
        job.signal("STOP", [stopped])
        job.go_on(since, others)
        job.signal("CONT", [stopped])
        job.wait_for_ends([stopped])
        assert "LeftOut: " in job.words(stopped)
        job.end()
        job.check("commits")
        assert later_ones(job, [stopped]) == {note.process for note in others}


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(2, rails=(None, None))], indirect=True, ids=[""])
def test_newcomers_on_two_rails_and_on_one(own_cluster: Cluster, tmp_path: Path) -> None:
    """All use the rails that all members of a generation have."""
    options = ("--max-restarts", "20", "--blacklist-cooldown-range", "1", "1")
    with HostsJob(own_cluster, tmp_path, "commits", *options, slots=1) as job:
        there = job.full(2)
        job.kill([there[1]])
        job.change(lost=[1], joined={2})
        own_cluster.run("node2", ["ip", "addr", "del", f"{own_cluster.address('node2', 1)}/24", "dev", "rail1"])
        there = job.full(2, time.monotonic())
        job.kill([there[1]])
        job.change(lost=[1, 2], joined={3})
        job.end()
        job.check("commits")


def silently(cluster: Cluster) -> None:
    cluster.cut("node2", 0)


def for_all_to_see(cluster: Cluster) -> None:
    """The kernel knows that the cable is out."""
    cluster.link_down("node2", 0)


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(3, rails=(None, None))], indirect=True, ids=[""])
@pytest.mark.parametrize("lose", [silently, for_all_to_see])
def test_newcomers_where_a_host_has_lost_its_first_rail(
    own_cluster: Cluster, tmp_path: Path, lose: Callable[[Cluster], None]
) -> None:
    """The store is on node1. The ranks of node2, too, learn from it who comes; and processes of node2 find it."""
    options = ("--max-restarts", "20", "--blacklist-cooldown-range", "1", "1")
    with HostsJob(own_cluster, tmp_path, "commits", *options, slots=1) as job:
        there = job.full(3)
        variables = own_cluster.run("node2", ["cat", f"/proc/{there[1].pid}/environ"]).stdout.split("\0")
        port = next(text.rpartition(":")[2] for text in variables if text.startswith("DDL_STORE="))
        job.wait_until(lambda: ways(own_cluster, port, 1) == 2, "the agent and the rank should come over both rails")
        lose(own_cluster)
        job.kill([there[2]])
        job.change(lost=[2], joined={3})
        job.kill([there[1]])
        job.change(lost=[1, 2], joined={4})
        job.end()
        job.check("commits")


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(4, rails=(None, None))], indirect=True, ids=[""])
@pytest.mark.parametrize("lose", [silently, for_all_to_see])
def test_a_newcomer_asks_members_for_their_state_where_one_has_lost_its_first_rail(
    own_cluster: Cluster, tmp_path: Path, lose: Callable[[Cluster], None]
) -> None:
    options = ("--max-restarts", "20", "--blacklist-cooldown-range", "1", "1")
    with HostsJob(own_cluster, tmp_path, "large", *options, slots=1, variables={"DDL_LOG": "info"}) as job:
        there = job.full(4)
        lose(own_cluster)
        job.kill([there[3]])
        job.change(lost=[3], joined={4})
        job.end()
        job.check("large")
        said = (tmp_path / "logs" / "rank.4.err").read_text()
        assert "INFO: " in said and "state of the job" not in said, said  # that it cannot ask one, or not follow it


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(4, rails=(None, None))], indirect=True, ids=[""])
@pytest.mark.parametrize("lose", [silently, for_all_to_see])
def test_the_store_is_lost_where_a_host_has_lost_its_first_rail(
    own_cluster: Cluster, tmp_path: Path, lose: Callable[[Cluster], None]
) -> None:
    """The ranks of node2 take part in elections: of a store on node1 when ddlrun is killed, then of one elsewhere."""
    with HostsJob(own_cluster, tmp_path, "commits", *PATIENT, slots=1) as job:
        job.full(4)
        lose(own_cluster)
        job.full(4, time.monotonic())
        job.process.kill()
        there = job.full(4, time.monotonic())
        job.kill([there[3]])
        job.change(lost=[3])
        there = job.full(3, time.monotonic())
        since = time.monotonic()
        for rail in range(2):
            own_cluster.cut("node1", rail)
        on = [note for note in there.values() if note.host != "node1"]
        job.go_on(since, on)
        job.let_end()
        job.wait_for_ends(on)
        job.check("commits")
