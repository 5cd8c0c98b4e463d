"""Communicators of parts of the ranks: who is in them, in which order, and that they do not disturb one another."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, List, Optional, Tuple

import numpy as np
import pytest
import ranks
from core.everything import check_everything
from core.jobs import TRANSPORTS, connected
from core.values import check_equal

import ddl
from ddl._comm.group import Group
from ddl.bootstrap.agent import Agent
from ddl.bootstrap.agent_records import Member

pytestmark = pytest.mark.processes


def who(comm: Optional[ddl.Communicator]) -> Optional[Tuple[int, int, List[int]]]:
    """My rank, the size, and the world ranks of the members."""
    return None if comm is None else (comm.rank, comm.size, comm.allgather(np.array([ddl.rank()])).tolist())


def colors_and_keys() -> List[Any]:
    rank, size = ddl.rank(), ddl.size()
    return [
        who(ddl.split(rank % 2)),
        who(ddl.split(0, key=-rank)),
        who(ddl.split(None if rank == 1 else 5)),
        who(ddl.split(rank)),
        who(ddl.split(-(10**15) if rank < 2 else 10**15, key=0)),
        who(ddl.split(None)),
        who(ddl.split(np.int32(rank // 3), key=size - rank)),
    ]


@pytest.mark.few(3)
@pytest.mark.parametrize("transport", [*TRANSPORTS, "interleaved"])
def test_colors_and_keys(transport: str) -> None:
    everybody = ranks.run(5, colors_and_keys, **connected(transport))
    for rank, answers in enumerate(everybody):
        groups = [
            [r for r in range(5) if r % 2 == rank % 2],
            [4, 3, 2, 1, 0],
            None if rank == 1 else [0, 2, 3, 4],
            [rank],
            [0, 1] if rank < 2 else [2, 3, 4],
            None,
            [2, 1, 0] if rank < 3 else [4, 3],
        ]
        assert answers == [None if g is None else (g.index(rank), len(g), g) for g in groups]


def everything_on_parts() -> int:
    """All collectives on a child, on a child of the child, and on the parent in between."""
    world = ddl.world()
    child = world.split(world.rank % 2, key=-world.rank)
    assert child is not None
    grandchild = child.split(0 if child.rank else 1)
    assert grandchild is not None
    done = 0
    for counts in ([0, 3, 5000], [1, 70_001]):
        for comm in (child, world, grandchild):
            done += check_everything(comm, counts)
    return done


@pytest.mark.few(1)
@pytest.mark.parametrize(("transport", "size"), [("shared", 4), ("tcp", 4), ("hybrid", 6), ("interleaved", 6)])
def test_everything_on_parts(transport: str, size: int) -> None:
    assert ranks.run(size, everything_on_parts, **connected(transport)) == [15] * size


def interleaved() -> bool:
    """Asynchronous operations on three communicators at once, waited for in the reverse order."""
    world = ddl.world()
    half = world.split(world.rank // 2)
    other = world.split(world.rank % 2)
    assert half is not None and other is not None
    posted = []
    for number in range(30):
        for comm, members in ((world, [0, 1, 2, 3]), (half, None), (other, None)):
            count = [5, 3000, 90_000][number % 3]
            x = np.full(count, float(world.rank + number))
            if members is None:
                members = (
                    [2 * (world.rank // 2), 2 * (world.rank // 2) + 1]
                    if comm is half
                    else [world.rank % 2, world.rank % 2 + 2]
                )
            want = np.full(count, sum(members) / len(members) + number)
            posted.append((comm.allreduce_async(x, name=f"{number}"), want))
    for number, (work, want) in reversed(list(enumerate(posted))):
        check_equal(work.wait(), want, f"operation {number}")
    return True


@pytest.mark.few(3)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_interleaved(transport: str) -> None:
    assert ranks.run(4, interleaved, **connected(transport)) == [True] * 4


def broken_child() -> Tuple[str, str, str, float]:
    """Calls that do not match on a child break the child of those ranks, and nothing else."""
    child = ddl.split(ddl.rank() // 2)
    assert child is not None
    kind, text, again = "returned", "", ""
    try:
        child.allreduce(np.ones(3 if ddl.rank() else 4))
    except ddl.CommunicatorError as error:
        kind, text = type(error).__name__, str(error)
        try:
            child.barrier()
        except ddl.CommunicatorError as error:
            again = str(error)
    value = float(ddl.allreduce(np.full(20_000, float(ddl.rank())))[0])
    fresh = ddl.split(0)
    assert fresh is not None and float(fresh.allreduce(1.0, op=ddl.Sum)) == ddl.size()
    return kind, text, again, value


@pytest.mark.few(3)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_broken_child_leaves_the_parent_whole(transport: str) -> None:
    answers = ranks.run(4, broken_child, **connected(transport))
    assert [kind for kind, *_ in answers] == ["CollectiveMismatch"] * 2 + ["returned"] * 2
    for rank, (_, text, again, value) in enumerate(answers):
        assert value == 1.5
        if rank < 2:
            assert text == again and "3 x float64" in text and "4 x float64" in text
            assert f"as rank {rank}/2 of communicator" in text


def aborted_child() -> List[str]:
    child = ddl.split(ddl.rank() % 2)
    assert child is not None
    if ddl.rank() == 2:
        child.abort("only this part")
    kinds = []
    for comm in (child, ddl.world()):
        try:
            comm.allreduce(np.ones(3))
            kinds.append("returned")
        except ddl.Error as error:
            kinds.append(type(error).__name__)
    return kinds


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_abort_of_a_child_stays_there(transport: str) -> None:
    broken, whole = ["Aborted", "returned"], ["returned", "returned"]
    assert ranks.run(4, aborted_child, **connected(transport)) == [broken, whole, broken, whole]


def aborted_before_it_is_here() -> str:
    """Rank 0 is still making the communicator when the news comes that it has failed."""
    if ddl.rank() == 0:
        add = Agent.add

        def add_late(agent: Agent, member: Member) -> None:
            deadline = time.monotonic() + 60
            while not agent._failures:
                assert time.monotonic() < deadline, "no news of the failure"
                time.sleep(0.01)
            add(agent, member)

        Agent.add = add_late  # type: ignore[method-assign]
    child = ddl.split(0)
    assert child is not None
    if ddl.rank() == 1:
        child.abort("at once")
    with pytest.raises(ddl.Aborted) as caught:  # not by the deadline, which would be another error
        child.allreduce(np.ones(3))
    return str(caught.value)


def test_a_failure_before_the_communicator_is_here() -> None:
    for text in ranks.run(2, aborted_before_it_is_here):
        assert "at once" in text


def dropped_children() -> int:
    """Children that nobody needs any more give back what they hold, at the latest with the job."""
    from ddl import _core

    ddl.barrier()
    for _ in range(60):
        child = ddl.split(0)
        assert child is not None
        child.allreduce(np.ones(3))
        del child
    ddl.shutdown()
    return int(_core.arena_used())


def test_many_children() -> None:
    assert len(ranks.run(2, dropped_children)) == 2


def parts_of_parts():
    """Numbers of communicators, of which each is to be another one; all of them work at once."""
    world = ddl.world()
    half = world.split(world.rank % 2)
    parts = [half, half.split(0), world.split(0), half.split(half.rank), half.split(0), world.subset(range(world.size))]
    parts.append(parts[1].split(0))
    for number, part in enumerate(parts):
        assert part.allreduce(np.array([1.0]), op=ddl.Sum)[0] == part.size, number
    for part in reversed(parts):
        part.close()
    assert world.split(0).allreduce(np.array([1.0]), op=ddl.Sum)[0] == world.size
    return [(part._group.number, tuple(part._group.ranks)) for part in parts]


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_no_two_communicators_have_a_number(transport):
    answers = ranks.run(4, parts_of_parts, **connected(transport))
    there = {}
    for number, members in (entry for answer in answers for entry in answer):
        assert there.setdefault(number, members) == members


def numberless(part_fails: str) -> str:
    """One rank cannot do its part of a split of a part; the others hear of it."""
    half = ddl.world().split(0)
    assert half is not None
    fine = half.split(0)
    assert fine is not None
    if ddl.rank() == 0:

        def fail(*_: Any) -> Any:
            raise ddl.PeerLost("the store is gone")

        setattr(half._group.job if part_fails == "count_group" else Group, part_fails, fail)
    with pytest.raises(ddl.Error) as caught:  # who waited for its deadline would not know why
        half.split(0)
    half.barrier()
    return str(caught.value)


@pytest.mark.parametrize("part_fails", ["count_group", "make_core"])
def test_a_rank_that_cannot_split_tells_the_others(part_fails: str) -> None:
    first, second = ranks.run(2, numberless, part_fails)
    assert "the store is gone" in first and "split: rank 0 could not: the store is gone" in second


def late_for_a_subset(late: int) -> List[str]:
    """A rank that comes to one attempt only when it has failed comes to the next."""
    outcomes = []
    job = ddl.world()._group.job
    if ddl.rank() != late:
        usual = job.settings
        job.settings = dataclasses.replace(usual, start_timeout=0.5)
        with pytest.raises(ddl.RendezvousError) as caught:
            ddl.world().subset([0, 1])
        outcomes.append(str(caught.value))
        job.settings = usual
    ranks.meet()
    part = ddl.world().subset([0, 1])
    outcomes.append(str(float(part.allreduce(np.ones(1), op=ddl.Sum)[0])))
    return outcomes


@pytest.mark.few(1)
@pytest.mark.parametrize("late", [0, 1])
def test_a_late_rank_does_not_spoil_the_next_subset(late: int) -> None:
    answers = ranks.run(2, late_for_a_subset, late)
    assert answers[late] == ["2.0"]
    first, second = answers[1 - late]
    assert f"rank {late} did not come within 0.5 s" in first and second == "2.0"


def closed_children() -> List[int]:
    """What all members of a part have closed is let go when they make another one, by ``split`` or by ``subset``."""
    world = ddl.world()
    kept = []
    for _ in range(4):
        for ranks_of in ([0, 1], [2], [0, 1, 2]):
            if world.rank in ranks_of:
                world.subset(ranks_of).close()
        part = world.split(world.rank // 2)
        assert part is not None
        with part as same:
            assert same.allreduce(1, op="sum") == part.size
        with pytest.raises(ddl.InvalidState):
            part.barrier()
        kept.append(len(world._group._children))
    return kept


def test_closed_children_are_let_go() -> None:
    for kept in ranks.run(3, closed_children):
        assert kept[-1] == kept[1] <= 4, kept


def world_in_a_with() -> float:
    with pytest.raises(ddl.InvalidState, match="closed by ddl.shutdown"):
        with ddl.world():
            pass
    return float(ddl.allreduce(1, op="sum"))


def test_the_world_is_closed_by_shutdown_only() -> None:
    assert ranks.run(2, world_in_a_with) == [2.0, 2.0]
