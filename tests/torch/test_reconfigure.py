"""``enable_reconfigure=True``: the ranks of the default group become others, and the group works at once."""

from __future__ import annotations

import os
import threading
import time

import pytest
import ranks
from reconfiguring import SIZE, SUM, Member, skip_below

torch = pytest.importorskip("torch")
pytestmark = [skip_below(), pytest.mark.processes]


def at_once(path):
    import ddl

    member = Member(path)
    assert member.dist._supports_reconfigure() and member.group.supports_reconfigure
    assert member.numbers() == [member.first_rank, SIZE]  # as it was told, until it has ranks
    member.fails(ddl.InvalidState, "no ranks yet.*enable_reconfigure=True; call torch.distributed._reconfigure first")
    assert member.group.errored() is None and member.group.get_error().name == "SUCCESS" and not ddl.is_initialized()
    member.group.abort()  # nothing happens
    handles = member.handles()
    member.go_to(1, handles)
    assert member.numbers() == [member.first_rank, SIZE] and member.total() == SUM
    assert member.handles() == handles
    rank = member.first_rank
    after, before = (rank + 1) % SIZE, (rank - 1) % SIZE
    for tag in (0, 7):
        got = torch.zeros(4)
        sent = member.group.send([torch.full((4,), rank + 1.0)], after, tag)
        member.group.recv([got], before, tag).wait()
        sent.wait()
        assert got.tolist() == [before + 1.0] * 4
    member.go_to(2, handles)  # the same ranks once more
    assert member.total() == SUM and ddl.size() == SIZE
    if rank == 0:
        got = torch.zeros(1)
        sources = {member.dist.recv(got) for _ in range(SIZE - 1)}  # from any source, by notices of this job only
        assert sources == {1, 2}
    else:
        member.dist.send(torch.ones(1), 0)
    member.dist.destroy_process_group()
    assert not ddl.is_initialized()


def test_the_group_works_at_once(tmp_path) -> None:
    ranks.run(3, at_once, str(tmp_path / "store"), initialise=False)


def in_order(path):
    member = Member(path)
    handles, rank = member.handles(), member.first_rank
    seen = []
    for uuid, given in enumerate(([2, 0, 1], [1, 0, 2])):
        member.go_to(uuid, [handles[other] for other in given])
        assert given[member.dist.get_rank()] == rank and member.total() == SUM
        x = torch.tensor([float(rank)])
        member.dist.broadcast(x, group_src=0)
        seen.append(x.item())
        for other in range(SIZE):  # the ranks of the world are those of the group
            x = torch.tensor([float(rank)])
            member.dist.broadcast(x, src=other)
            assert x.item() == given[other]
    member.go_to(10, set(handles))
    assert member.numbers() == [rank, SIZE] and member.total() == SUM
    return seen


def test_a_list_gives_the_order_and_a_set_is_sorted(tmp_path) -> None:
    assert ranks.run(3, in_order, str(tmp_path / "store"), initialise=False) == [[2.0, 1.0]] * 3


def some_leave(path, left):
    """``left``: the first ranks of those that stay; the others come back later, as the last ones."""
    import ddl

    member = Member(path)
    handles, rank = member.handles(), member.first_rank
    gone = [other for other in range(SIZE) if other not in left]
    for round in range(3):
        member.go_to(10 * round, handles)
        assert member.numbers() == [rank, SIZE] and member.total() == SUM
        ranks.meet()  # who leaves breaks off what the others have not finished
        if rank in left:
            member.go_to(10 * round + 1, [handles[other] for other in left])
            assert member.numbers() == [left.index(rank), len(left)]
            assert member.total() == sum(range(1, len(left) + 1))
        else:
            member.fails(ddl.CommunicatorError)
        ranks.meet()
        order = [*left, *gone]
        member.go_to(10 * round + 2, [handles[other] for other in order])
        assert member.numbers() == [order.index(rank), SIZE] and member.total() == SUM
    member.dist.destroy_process_group()


@pytest.mark.parametrize("left", [[0, 1], [0, 2], [2, 1], [1]])
def test_ranks_leave_and_come_back(left, tmp_path) -> None:
    ranks.run(3, some_leave, str(tmp_path / "store"), left, initialise=False)


def parts(path, first):
    """``first``: how the ranks are split at the beginning; a rank in no part is late."""
    member = Member(path)
    handles = member.handles()
    for number, part in enumerate(first):
        if member.first_rank in part:
            member.go_to(number, [handles[rank] for rank in part])
            assert member.numbers() == [part.index(member.first_rank), len(part)]
            assert member.total() == sum(range(1, len(part) + 1))
    member.go_to(100, member.handles())
    assert member.numbers() == [member.first_rank, SIZE] and member.total() == SUM
    ranks.meet()  # who leaves breaks off what the others have not finished
    member.go_to(101 + member.first_rank, [handles[member.first_rank]])
    assert member.numbers() == [0, 1] and member.total() == 1


@pytest.mark.parametrize("first", [[[0], [1], [2]], [[0]], [[0], [1, 2]], [[2, 0]], []])
def test_parts_become_a_whole(first, tmp_path) -> None:
    ranks.run(3, parts, str(tmp_path / "store"), first, initialise=False)


def groups_of_groups(path):
    import ddl

    member = Member(path)
    handles, dist = member.handles(), member.dist
    member.go_to(0, handles)
    before = dist.new_group([0, 2])
    ranks.meet()
    if member.first_rank == 0:
        return
    member.go_to(1, handles[1:])
    if member.first_rank == 2:
        with pytest.raises(ddl.InvalidState, match="was shut down"):
            before.allreduce([torch.ones(1)]).wait()
    for members in ([0, 1], [1], None):
        group = dist.new_group(members)
        if member.dist.get_rank() in (members or [0, 1]):
            x = torch.ones(1)
            dist.all_reduce(x, group=group)
            assert x.item() == len(members or [0, 1]) == dist.get_world_size(group)


def test_groups_are_made_anew(tmp_path) -> None:
    ranks.run(3, groups_of_groups, str(tmp_path / "store"), initialise=False)


def beside_a_job(path):
    """The job that ddlrun began is not touched by a group beside it."""
    import ddl

    world = ddl.world()
    member = Member(path)
    handles = member.handles()
    member.go_to(0, handles)
    if member.first_rank > 0:
        member.go_to(1, handles[:0:-1])
        assert member.numbers() == [2 - member.first_rank, 2] and member.total() == 3
        group = member.dist.new_group([1])  # of the group's rank 1, and not the job's
        if member.dist.get_rank() == 1:
            member.dist.all_reduce(torch.ones(1), group=group)
    member.dist.destroy_process_group()
    assert ddl.world() is world and ddl.allreduce_(torch.ones(2), op=ddl.Sum).tolist() == [3, 3]


def test_beside_a_job_that_was_there_before(tmp_path) -> None:
    ranks.run(3, beside_a_job, str(tmp_path / "store"))


def again_and_again(path):
    member = Member(path)
    handles, seen = member.handles(), []
    for uuid in range(31):
        member.go_to(uuid, handles[uuid % 3 :] + handles[: uuid % 3])
        assert member.total() == SUM
        if uuid in (9, 30):  # then the same rank has the store
            ranks.meet()
            seen.append(until_still(*seen))
            ranks.meet()
    return seen


def until_still(*before):
    """Return how many descriptors and threads there are when the threads that see off the jobs before have ended.

    At first that is after some time; later, when there are no more than there were ``before``.
    """
    for thread in threading.enumerate():
        if thread.name in ("ddl-torch", "ddl-job", "ddl-store") and thread is not threading.current_thread():
            thread.join(1.2)
    deadline = time.monotonic() + 60
    while True:
        now = len(os.listdir("/proc/self/fd")), threading.active_count()
        if time.monotonic() > deadline or all(n <= b for counts in before for n, b in zip(now, counts)):
            return now
        time.sleep(0.05)


def test_nothing_piles_up(tmp_path) -> None:
    for early, late in ranks.run(3, again_and_again, str(tmp_path / "store"), initialise=False):
        assert late[0] <= early[0] and late[1] <= early[1], (early, late)
