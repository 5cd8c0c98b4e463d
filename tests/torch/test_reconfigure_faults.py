"""``enable_reconfigure=True``: what goes wrong is an error on all ranks in time, and another attempt recovers."""

from __future__ import annotations

import datetime
import os
import signal
import time

import pytest
import ranks
from process_groups import run
from reconfiguring import SIZE, SUM, Member, skip_below

torch = pytest.importorskip("torch")
pytestmark = [skip_below(), pytest.mark.faults]


def kill(member, victim):
    """Let ``victim`` die when all ranks have met."""
    ranks.meet()
    if member.first_rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)


def dying(path, victim):
    import ddl

    member = Member(path)
    handles = member.handles()
    member.go_to(0, handles)
    assert member.total() == SUM
    kill(member, victim)
    text = member.fails(ddl.PeerLost)
    assert f"lost rank {victim} " in text or victim == 0 and "had the job's store" in text
    assert member.group.get_error().name == "COMM_ERROR" and isinstance(member.group.errored(), ddl.PeerLost)
    left = [rank for rank in range(SIZE) if rank != victim]
    member.go_to(1, [handles[rank] for rank in left])
    assert member.group.get_error().name == "SUCCESS" and member.group.errored() is None
    assert member.numbers() == [left.index(member.first_rank), 2] and member.total() == 3
    member.meet(left)
    with pytest.raises(ddl.RendezvousError, match=f"ddl:{victim}:|rank {victim} ") as caught:
        member.go_to(2, handles, seconds=3)  # in which these two have to come
    assert "uuid 2 failed" in str(caught.value)
    assert "the next attempt needs a fresh number" in str(caught.value)
    assert member.numbers() == [left.index(member.first_rank), 2] and member.total() == 3  # as before


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_dies(victim, tmp_path) -> None:
    ranks.run(3, dying, str(tmp_path / "store"), victim, initialise=False, may_die=[victim])


def dying_while_others_wait(path):
    import ddl

    member = Member(path)
    member.go_to(0, member.handles())
    if member.first_rank == 1:
        ranks.meet()
        time.sleep(0.3)  # so that the others mostly wait by then
        os.kill(os.getpid(), signal.SIGKILL)
    work = member.dist.all_reduce(torch.ones(2), async_op=True)
    ranks.meet()
    assert work.get_future_result().wait() == 2  # COMM_ERROR
    with pytest.raises(ddl.PeerLost, match="lost rank 1"):
        work.wait()


def test_a_rank_dies_while_others_wait(tmp_path) -> None:
    ranks.run(3, dying_while_others_wait, str(tmp_path / "store"), initialise=False, may_die=[1])


def dying_in_an_attempt(path):
    """Rank 2 comes to the attempt, and dies there: the others learn it long before their time is over."""
    import ddl
    from ddl._comm.job import Job

    member = Member(path)
    handles = member.handles()
    member.go_to(0, handles)
    ranks.meet()
    if member.first_rank == 2:
        Job.introduce = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # it knows all ranks, and not yet their memory
    begun = time.monotonic()
    with pytest.raises(ddl.RendezvousError, match="uuid 1 failed"):
        member.go_to(1, handles)
    assert time.monotonic() - begun < 50  # it may take 100 s
    member.go_to(2, handles[:2])
    assert member.total() == 3


def test_a_rank_dies_in_an_attempt(tmp_path) -> None:
    ranks.run(3, dying_in_an_attempt, str(tmp_path / "store"), initialise=False, may_die=[2])


def late(path, victim):
    """``victim`` comes when the others have given up: it is told at once, and a fresh attempt works."""
    import ddl

    member = Member(path)
    handles = member.handles()
    if member.first_rank == victim:
        ranks.meet()
    begun = time.monotonic()
    with pytest.raises(ddl.RendezvousError, match="uuid 0 failed"):
        member.go_to(0, handles, seconds=100 if member.first_rank == victim else 1)
    assert time.monotonic() - begun < 50
    if member.first_rank != victim:
        ranks.meet()
    member.fails(ddl.InvalidState, "no ranks yet")
    with pytest.raises(ddl.InvalidState, match="uuid 0 was refused: it was already used"):
        member.go_to(0, handles)
    member.go_to(1, member.handles())
    assert member.total() == SUM


@pytest.mark.parametrize("victim", [0, 2])
def test_a_late_rank(victim, tmp_path) -> None:
    ranks.run(3, late, str(tmp_path / "store"), victim, initialise=False)


def used_again(path):
    import ddl

    member = Member(path)
    handles = member.handles()
    if member.first_rank < 2:
        member.go_to(7, handles[:2])
        ranks.meet()
        for given in (handles[:2], handles[1::-1], handles, set(handles)):
            with pytest.raises(ddl.InvalidState, match="already used"):
                member.go_to(7, given)
        assert member.total() == 3  # as before
    else:
        ranks.meet()
        for given in (handles, handles[::-1], handles[1:]):  # it has never used this number, and learns it all the same
            with pytest.raises(RuntimeError, match="already used"):
                member.go_to(7, given)
    ranks.meet()
    member.go_to(8, handles)
    assert member.total() == SUM


def test_a_number_is_used_again(tmp_path) -> None:
    ranks.run(3, used_again, str(tmp_path / "store"), initialise=False)


def differing(path):
    """Ranks that disagree on the order: nobody is in a group with wrong ranks."""
    member = Member(path)
    handles = member.handles()
    if member.first_rank < 2:
        with pytest.raises(RuntimeError, match="uuid 3 failed"):
            member.go_to(3, handles, seconds=2)
    else:  # it learns of the others' order whenever they come
        with pytest.raises(RuntimeError, match="already used"):
            member.go_to(3, [handles[0], *handles[:0:-1]])
    member.go_to(4, handles)
    assert member.total() == SUM


def test_ranks_disagree(tmp_path) -> None:
    ranks.run(3, differing, str(tmp_path / "store"), initialise=False)


def aborted(path):
    import ddl

    member = Member(path)
    handles = member.handles()
    member.go_to(0, handles)
    work = None
    if member.first_rank < 2:
        work = member.dist.all_reduce(torch.ones(2), async_op=True)
        result = work.get_future_result()
    ranks.meet()
    if member.first_rank == 1:
        member.group.abort()
    if work is not None:
        assert result.wait() == 2  # COMM_ERROR
        with pytest.raises(ddl.Aborted, match="the process group was aborted"):
            work.wait()
        assert member.group.get_error().name == "COMM_ERROR"
    ranks.meet()
    member.fails(ddl.Aborted)
    member.go_to(1, member.handles())
    assert member.total() == SUM and member.group.get_error().name == "SUCCESS"
    x = torch.ones(2)
    work = member.dist.all_reduce(x, async_op=True)
    assert work.get_future_result().wait() == 0 and x[0] == SIZE


def test_after_an_abort(tmp_path) -> None:
    ranks.run(3, aborted, str(tmp_path / "store"), initialise=False)


def timed_out(path):
    import ddl

    member = Member(path)
    member.go_to(0, member.handles())
    member.dist.barrier()
    ranks.meet()
    member.group.set_timeout(datetime.timedelta(milliseconds=500))
    if member.first_rank < 2:
        # The second one has not begun when the first one's time is over.
        works = [member.dist.all_reduce(torch.ones(2), async_op=True) for _ in range(2)]
        for work in works:
            assert work.get_future_result().wait() == 1  # TIMEOUT
            with pytest.raises(ddl.CollectiveTimeout, match="rank 2 has not called it"):
                work.wait()
    ranks.meet()
    member.fails(ddl.CollectiveTimeout)
    assert member.group.get_error().name == "TIMEOUT"
    member.group.set_timeout(datetime.timedelta(seconds=20))
    member.go_to(1, member.handles())
    assert member.total() == SUM and member.group.get_error().name == "SUCCESS"
    assert member.group.communicator.timeout == 20


def test_after_a_timeout(tmp_path) -> None:
    ranks.run(3, timed_out, str(tmp_path / "store"), initialise=False)


def left_out(path):
    """Its operations end, also the one that it waits for; the others go on."""
    import ddl

    member = Member(path)
    handles = member.handles()
    member.go_to(0, handles)
    ranks.meet()
    if member.first_rank < 2:
        member.go_to(1, handles[:2])
        assert member.total() == 3
    else:
        with pytest.raises(ddl.CommunicatorError, match="the process group was reconfigured|lost rank [01] "):
            member.dist.all_reduce(torch.ones(1), async_op=True).wait()
        member.fails(ddl.CommunicatorError)


def test_a_rank_that_is_left_out_is_told(tmp_path) -> None:
    ranks.run(3, left_out, str(tmp_path / "store"), initialise=False)


def nonsense(path):
    import ddl
    import ddl_torch

    member = Member(path)
    handles, own = member.handles(), member.dist._get_reconfigure_handle()
    others = [handle for handle in handles if handle != own]
    for given, text in (
        (others, "that of this process, ddl:.*, is one of them"),
        ([own, own], "each rank has one handle"),
        ([], "each rank has one handle"),
        (["gloo:0:-1:0:x", own], "'gloo:0:-1:0:x' is no handle of the backend ddl"),
        (["ddl:x:y:z", own], "is no handle"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=text):
            member.go_to(1, given)
    member.go_to(1, handles)  # nothing was used up
    assert member.total() == SUM
    group = member.dist.new_group([0, 1, 2])
    assert not group.supports_reconfigure
    for call in (group.get_reconfigure_handle, lambda: group.reconfigure(None)):
        with pytest.raises(ddl_torch.InvalidState, match="reconfigure.*pass enable_reconfigure=True"):
            call()


def test_handles_that_make_no_sense(tmp_path) -> None:
    ranks.run(3, nonsense, str(tmp_path / "store"), initialise=False)


def several_backends(path):
    import torch.distributed as dist

    import ddl_torch

    store = dist.FileStore(path, 1)
    dist.init_process_group("cpu:ddl,cuda:gloo", store=store, rank=0, world_size=1, enable_reconfigure=True)
    for call in (
        dist._supports_reconfigure,
        dist._get_reconfigure_handle,
        lambda: dist._reconfigure(1, ["x"]),
    ):
        with pytest.raises(RuntimeError, match="multiple backends") as caught:
            call()
        assert isinstance(caught.value, ddl_torch.InvalidState)


def test_several_backends_are_refused(tmp_path) -> None:
    ranks.run(1, several_backends, str(tmp_path / "store"), initialise=False)


WITHOUT_LAUNCHER = """
import datetime, os, pathlib, signal, time
import torch, torch.distributed as dist, torch.multiprocessing
import ddl, ddl_torch

PORT, LOST = pathlib.Path("port"), [pathlib.Path(f"lost.{rank}") for rank in (1, 2)]

def wait_for(paths):
    deadline = time.monotonic() + 150
    while not all(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.01)

def work(rank):
    assert not any(name.startswith("DDL_RANK") for name in os.environ)
    if rank > 0:
        wait_for([PORT])
    port = int(PORT.read_text()) if rank > 0 else 0
    store = dist.TCPStore("127.0.0.1", port, 3, rank == 0, wait_for_workers=False)
    if rank == 0:
        PORT.with_name("draft").write_text(str(store.port))
        PORT.with_name("draft").rename(PORT)
    dist.init_process_group("ddl", store=store, rank=rank, world_size=3, enable_reconfigure=True)
    store.set(f"handle/{rank}", dist._get_reconfigure_handle())
    handles = [store.get(f"handle/{other}").decode() for other in range(3)]
    dist._reconfigure(0, handles, timeout=datetime.timedelta(seconds=100)).wait()
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x[0] == 3 and ddl.size() == 3
    if os.fork() == 0:  # a data loader's worker, say: it holds nothing open that its parent has
        wait_for(LOST)
        os._exit(0)
    pathlib.Path(f"reduced.{rank}").touch()
    if rank == 0:  # and torch's store with it
        wait_for([pathlib.Path(f"reduced.{other}") for other in (1, 2)])
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(x)
        raise AssertionError("there were two ranks left of three")
    except ddl.PeerLost:  # while that worker of rank 0 lives; torch's store ends with it
        pathlib.Path(f"lost.{rank}").touch()
    try:
        dist._reconfigure(1, handles[1:], timeout=datetime.timedelta(seconds=100))
    except ddl.RendezvousError as error:
        assert "torch's store, in which the ranks meet, has ended" in str(error), error
        print("understood", flush=True)

if __name__ == "__main__":
    spawn = torch.multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=work, args=(rank,)) for rank in range(3)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [-9, 0, 0]
"""


@pytest.mark.slow
def test_without_a_launcher(tmp_path) -> None:
    (tmp_path / "program.py").write_text(WITHOUT_LAUNCHER)
    assert run(["program.py"], tmp_path).count("understood") == 2
