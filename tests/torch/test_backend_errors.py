"""What goes wrong on the backend "ddl" is an exception: in ``wait``, in futures, and in DDP's backward pass."""

from __future__ import annotations

import datetime
import inspect
import os
import re
import signal
import time

import pytest
import ranks
from process_groups import begin

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.faults


def dying(path):
    dist, r, n = begin(path)
    import ddl

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    dist.barrier()
    ranks.meet()
    if r == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    seen = []
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(2, 4)).sum().backward()
    # DDP gives the text of what failed under way; what fails at once, as the loss is known by then, is raised itself.
    assert re.search("PeerLost.* lost rank 1 .*its process ended", repr(caught.value))
    for call in (
        lambda: dist.all_reduce(torch.ones(3)),
        lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
        lambda: dist.barrier(),
    ):
        with pytest.raises(ddl.PeerLost, match="lost rank 1") as caught:
            call()
        seen.append(str(caught.value))
    return seen


def test_a_rank_dies(tmp_path) -> None:
    ranks.run(3, dying, str(tmp_path / "store"), initialise=False, may_die=[1])


def dying_under_way(path):
    dist, r, n = begin(path)
    import ddl

    dist.barrier()
    if r == 1:
        ranks.meet()
        time.sleep(0.3)  # so that rank 0 mostly waits by then
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(3), async_op=True)
    future = work.get_future()
    ranks.meet()
    with pytest.raises(RuntimeError, match="lost rank 1"):
        future.wait()
    with pytest.raises(ddl.PeerLost, match="lost rank 1"):
        work.wait()
    assert work.is_completed() and not work.is_success() and isinstance(work.exception(), ddl.PeerLost)


def test_a_rank_dies_while_others_wait(tmp_path) -> None:
    ranks.run(2, dying_under_way, str(tmp_path / "store"), initialise=False, may_die=[1])


def mismatch(path):
    dist, r, n = begin(path)
    import ddl

    with pytest.raises(ddl.CollectiveMismatch, match=r"3 x float32.*4 x float32|4 x float32.*3 x float32"):
        dist.all_reduce(torch.ones(3 + r))


def test_different_sizes(tmp_path) -> None:
    ranks.run(2, mismatch, str(tmp_path / "store"), initialise=False)


def late(path):
    dist, r, n = begin(path, timeout=datetime.timedelta(seconds=3))  # also torch's, to begin
    import ddl

    if r == 1:
        ranks.meet()  # rank 0 has the error
    with pytest.raises(ddl.CollectiveTimeout, match="rank 1 has not called it") as caught:
        dist.all_reduce(torch.ones(3))
    if r == 0:
        ranks.meet()
    assert re.search(" (Timed out|closed|timeout) ", str(caught.value))  # so torch's own tests look for it


@pytest.mark.slow
def test_the_timeout_of_the_group(tmp_path) -> None:
    ranks.run(2, late, str(tmp_path / "store"), initialise=False)


def with_deadlines(path, given):
    """The seconds of the default group, of one more like it, and of one with half an hour."""
    from torch.distributed import default_pg_timeout

    options = {} if given is None else {"timeout": default_pg_timeout if given == "torch's" else given}
    dist, r, n = begin(path, **options)
    half_an_hour = datetime.timedelta(minutes=30)
    groups = [dist.group.WORLD, dist.new_group([0, 1], **options), dist.new_group([1, 0], timeout=half_an_hour)]
    if given == half_an_hour:
        groups.append(torch.distributed.device_mesh.init_device_mesh("cpu", (2,)).get_group())
    return [group.communicator.timeout for group in groups]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, [77.0, 77.0, 1800.0]),
        ("torch's", [77.0, 77.0, 1800.0]),
        (datetime.timedelta(minutes=30), [1800.0] * 4),
        (datetime.timedelta(minutes=31), [1860.0, 1860.0, 1800.0]),
    ],
    ids=["none", "torch's", "30 min", "31 min"],
)
def test_half_an_hour_is_a_deadline_as_any_other(given, seconds, tmp_path) -> None:
    """torch's own default is half an hour as well; there DDL_TIMEOUT counts."""
    env = {"DDL_TIMEOUT": "77"}
    assert ranks.run(2, with_deadlines, str(tmp_path / "store"), given, initialise=False, env=env) == [seconds] * 2


def late_for_a_barrier(path):
    dist, r, n = begin(path)
    import ddl

    if "timeout" not in inspect.signature(dist.barrier).parameters:
        return  # an older version of torch
    dist.barrier(timeout=datetime.timedelta(seconds=60))
    if r == 0:
        with pytest.raises(RuntimeError, match="barrier: Timed out waiting 200ms for all ranks") as caught:
            dist.barrier(timeout=datetime.timedelta(seconds=0.2))
        assert isinstance(caught.value, ddl.CollectiveTimeout)
        ranks.meet()
    else:
        ranks.meet()  # rank 0 has the error
        with pytest.raises(ddl.CollectiveTimeout, match="barrier: Timed out waiting 200ms"):
            for _ in range(2):  # the first one may end well, as rank 0 had come to it
                dist.barrier()


def test_the_timeout_of_a_barrier(tmp_path) -> None:
    ranks.run(2, late_for_a_barrier, str(tmp_path / "store"), initialise=False)


def some_late(path, every, seconds):
    dist, r, n = begin(path)
    import ddl

    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))
    if r < 2:
        part = dist.new_group([0, 1], use_local_synchronization=True)
        dist.monitored_barrier(part, 60.0)  # torch's own tests give a number of seconds, too
    ranks.meet()
    if r in (1, 2):
        ranks.meet()  # the others have the error
    late = "1, 2" if every else "1"
    with pytest.raises(ddl.CollectiveTimeout, match=f"monitored_barrier: no sign of rank {late} for {seconds} s"):
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=seconds), wait_all_ranks=every)
    if r in (0, 3):
        ranks.meet()


# Who names all that are late must not name rank 3, which has to come in time.
@pytest.mark.few(1)
@pytest.mark.parametrize(("every", "seconds"), [(False, 1), pytest.param(True, 4, marks=pytest.mark.slow)])
def test_monitored_barrier(every: bool, seconds: int, tmp_path) -> None:
    ranks.run(4, some_late, str(tmp_path / "store"), every, seconds, initialise=False)


def without_time(path):
    dist, r, n = begin(path)
    import ddl

    if r == 0:
        with pytest.raises(ddl.CollectiveTimeout, match="monitored_barrier: no sign of rank 1 for 0 s"):
            dist.monitored_barrier(timeout=datetime.timedelta(0))  # and not the group's time
    ranks.meet()


def test_a_monitored_barrier_without_time(tmp_path) -> None:
    ranks.run(2, without_time, str(tmp_path / "store"), initialise=False)


def first_late(path):
    dist, r, n = begin(path)
    import ddl

    if r == 0:
        ranks.meet()  # rank 1 has the error
    with pytest.raises(ddl.CollectiveTimeout, match="monitored_barrier: no sign of rank 0 for 1 s"):
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
    if r == 1:
        ranks.meet()


@pytest.mark.slow
def test_monitored_barrier_without_rank_0(tmp_path) -> None:
    ranks.run(2, first_late, str(tmp_path / "store"), initialise=False)


def first_has_more_time(path):
    dist, r, n = begin(path)
    import ddl

    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))
    ranks.meet()
    if r == 2:
        ranks.meet()  # the others have the error
    with pytest.raises(ddl.CollectiveTimeout, match="rank 2.*monitored_barrier: no sign of rank 2 for 6 s"):
        # The time of rank 1 is over long before that of rank 0, which has come.
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=3 if r == 1 else 6))
    if r < 2:
        ranks.meet()


@pytest.mark.slow
def test_monitored_barrier_lets_rank_0_judge(tmp_path) -> None:
    ranks.run(3, first_has_more_time, str(tmp_path / "store"), initialise=False)


def longer_than_the_groups(path):
    dist, r, n = begin(path)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))
    ranks.meet()
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=2))  # also of the messages of the barrier, which are small
    time.sleep(2.5 * r)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))
    dist.destroy_process_group()


def test_monitored_barrier_may_take_longer_than_other_verbs(tmp_path) -> None:
    ranks.run(2, longer_than_the_groups, str(tmp_path / "store"), initialise=False)


def monitored_on_gloo(path):
    import torch.distributed as dist

    import ddl_torch

    rank = int(os.environ["DDL_RANK"])
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    assert ddl_torch.__all__
    dist.monitored_barrier()
    if rank == 0:
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=0.5))
    ranks.meet()


def test_monitored_barrier_of_gloo_is_torchs(tmp_path) -> None:
    ranks.run(2, monitored_on_gloo, str(tmp_path / "store"), initialise=False)


def impatient(path):
    dist, r, n = begin(path)
    import ddl

    x = torch.ones(3)
    if r == 1:
        ranks.meet()  # rank 0 has waited in vain
    work = dist.all_reduce(x, async_op=True)
    if r == 0:
        with pytest.raises(ddl.WaitTimeout, match=r" Timed out after 0\.[012]"):  # what is left of the time
            work.wait(datetime.timedelta(seconds=0.2))
        assert not work.is_completed() and not work.is_success()
        ranks.meet()
    work.wait()
    assert x[0] == n


def test_the_timeout_of_wait(tmp_path) -> None:
    ranks.run(2, impatient, str(tmp_path / "store"), initialise=False)


def refused(path):
    dist, r, n = begin(path)
    import ddl

    short, complexes = torch.ones(3), torch.ones(2, dtype=torch.complex64)
    for call, text in (
        (lambda: dist.all_gather_into_tensor(short, short), "3 elements cannot hold 3 elements of each of 2 ranks"),
        (lambda: dist.reduce_scatter_tensor(short, short), "is not 3 elements for each of 2 ranks"),
        (lambda: dist.all_reduce(short.to_sparse(), dist.ReduceOp.MAX), "sparse tensors of type .* use SUM"),
        (lambda: dist.all_reduce(short.int().to_sparse(), dist.ReduceOp.AVG), "sparse tensors of type .* use SUM"),
        (
            lambda: dist.all_reduce(torch.ones(3 + r).to_sparse()),
            r"rank 1 has a sparse tensor of shape \[4\], 1 sparse dimensions, torch.float32; rank 0 has shape \[3\], 1",
        ),
        (lambda: dist.broadcast(short.to_sparse(), 0), "sparse"),
        (lambda: dist.all_to_all_single(short, short), "give splits"),
        (lambda: dist.all_to_all_single(short, short, [1, 1], [1, 2]), "must be 2 numbers that sum to 3 rows"),
        (lambda: dist.all_to_all_single(short, short, [1, 2], [2, 1]), "rank 0 sends 2 elements to rank 0.* expects 1"),
        (lambda: dist.all_to_all_single(short, torch.tensor(1.0)), "no rows to send"),
        (lambda: dist.all_gather([short], short), "1 tensors were given for 2 ranks"),
        (lambda: dist.all_gather([short] * 2, short[:1]), "a tensor of 3 elements was given where 1 elem"),
        (lambda: dist.all_gather([short[:1]] * 2, short), "a tensor of 1 elements was given where 3 elem"),
        (
            lambda: dist.gather(short, [short[:1]] * 2, dst=r),
            "a tensor of 1 elements was given where 3 elem",
        ),
        (
            lambda: dist.scatter(short, [short[:1]] * 2, src=r),
            "a tensor of 1 elements was given where 3 elem",
        ),
        (lambda: dist.reduce_scatter(short, [short[:1], short[:2]]), "elements was given where 3 elem"),
        (lambda: dist.group.WORLD.allreduce([complexes], maximum(dist)), "not defined for tensors of type torch.comp"),
        (lambda: ddl.world().subset([1 - r]), "must be among"),
        (lambda: ddl.world().subset([r, r]), "each of them once"),
        (lambda: ddl.world().subset([r, 7]), "no rank of a communicator of 2"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=text):
            call()
    x = torch.ones(2)
    dist.all_reduce(x)  # nothing is broken
    assert x[0] == n
    if r == 0:
        ddl.world().job.wait_at_most(1)
        with pytest.raises(ddl.RendezvousError, match="ranks 0, 1 was not made: rank 1 did not come within 1 s"):
            dist.new_group([0, 1])


def splits_on_one_rank(path):
    dist, r, n = begin(path)
    import ddl

    with pytest.raises(ddl.CollectiveMismatch, match=r"alltoall\(sizes\)"):
        dist.all_to_all_single(torch.empty(2), torch.ones(2), *([[1, 1]] * 2 if r == 0 else []))


def test_splits_on_some_ranks_only(tmp_path) -> None:
    ranks.run(2, splits_on_one_rank, str(tmp_path / "store"), initialise=False)


def maximum(dist):
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return options


def test_bad_arguments_break_nothing(tmp_path) -> None:
    ranks.run(2, refused, str(tmp_path / "store"), initialise=False)


def aborted(path):
    dist, r, n = begin(path)
    import ddl

    if r == 1:
        dist.group.WORLD.abort()
    with pytest.raises(ddl.Aborted, match="the process group was aborted"):
        for _ in range(100):
            dist.all_reduce(torch.ones(2))
            time.sleep(0.05)


def test_abort(tmp_path) -> None:
    ranks.run(2, aborted, str(tmp_path / "store"), initialise=False)


def contradiction(path):
    import torch.distributed as dist

    import ddl_torch as ddl

    rank = int(os.environ["DDL_RANK"])
    with pytest.raises(ddl.Error, match=f"this is rank {1 - rank} of 2, but it is rank {rank} of 2"):
        dist.init_process_group("ddl", store=dist.FileStore(path, 2), rank=1 - rank, world_size=2)
    assert not ddl.is_initialized()  # as before


def test_other_numbers_than_those_of_ddlrun(tmp_path) -> None:
    ranks.run(2, contradiction, str(tmp_path / "store"), initialise=False)
