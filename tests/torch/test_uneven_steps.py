"""A rank has one batch less than another, and goes on to something else: both are told at once, with both calls."""

from __future__ import annotations

import os

import pytest
import ranks
from core.questions import asked_about

torch = pytest.importorskip("torch")
from torch_training import data, half, linear  # noqa: E402 (it needs torch, which may not be there)

pytestmark = pytest.mark.processes

#: What rank 1 calls while rank 0 still trains -> what is said of it.
AFTERWARDS = {
    "barrier": "barrier()",
    "allreduce": "allreduce(float32 of shape 3, op=Average)",
    "named": "'allreduce.accuracy': allreduce(float32 of shape 3, op=Average)",
    "started": "'allreduce.loss': allreduce(float32 of shape 3, op=Average)",
    "c10d": "allreduce #2 (3 x float32, sum) of communicator ",
    "group": "allreduce #1 (3 x float32, sum) of communicator ",
}


def uneven_steps(kind: str) -> str:
    import torch.distributed as dist

    import ddl as core
    import ddl_torch as ddl

    store = dist.FileStore(f"{os.environ['RANKS_FOLDER']}/store", 2)
    dist.init_process_group("ddl", store=store, rank=ddl.rank(), world_size=2)
    ones = torch.ones(3)
    group = ddl.world().split(0)
    dist.all_reduce(ones)
    ddl.allreduce(ones)  # what is named has a communicator of its own from now on
    model = linear(6, 10, 3)
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tune_allocator=False)
    calls = {
        "barrier": ddl.barrier,
        "allreduce": lambda: ddl.allreduce(ones),
        "named": lambda: ddl.allreduce(ones, name="accuracy"),
        "started": lambda: ddl.synchronize(ddl.allreduce_async(ones, name="loss")),
        "c10d": lambda: dist.all_reduce(ones),
        "group": lambda: group.allreduce(ones, op="sum"),
    }
    try:
        for step in range(2 if ddl.rank() == 0 else 1):
            model(half(data(step), ddl.rank())).pow(2).mean().backward()
            optimizer.step()
        calls[kind]()
    except core.CommunicatorError as error:
        return f"{type(error).__name__}: {error}"
    return "it worked"


def chained() -> float:
    """Rank 0 waits in the last group, and a callback of a future makes its call of the second one, when rank 2 comes.

    Until then rank 1 waits in the second group, and has not come to the last.
    """
    import torch.distributed as dist

    import ddl_torch as ddl

    store = dist.FileStore(f"{os.environ['RANKS_FOLDER']}/store", 3)
    dist.init_process_group("ddl", store=store, rank=ddl.rank(), world_size=3)
    groups = [dist.new_group() for _ in range(3)]
    total = torch.ones(2)
    if ddl.rank() == 2:
        asked_about(*(group.communicator for group in groups))
    first = dist.all_reduce(torch.ones(2), group=groups[0], async_op=True)
    if ddl.rank() == 0:
        second = first.get_future().then(lambda _: dist.all_reduce(total, group=groups[1]))
        dist.barrier(group=groups[2])
        second.wait()
    else:
        dist.all_reduce(total, group=groups[1])
        first.wait()
        dist.barrier(group=groups[2])
    return total[0].item()


def test_a_call_that_a_callback_will_make_is_waited_for() -> None:
    assert ranks.run(3, chained, env={"OMP_NUM_THREADS": "1"}) == [3.0] * 3


@pytest.mark.parametrize("kind", AFTERWARDS)
def test_uneven_steps(kind: str) -> None:
    """Nobody waits for the deadline, which is later than the end of this test."""
    answers = ranks.run(2, uneven_steps, kind, env={"DDL_TIMEOUT": "1000000", "OMP_NUM_THREADS": "1"})
    for answer in answers:
        assert answer.startswith("CollectiveMismatch: [rank "), answer
        assert "rank 0 waits in allreduce #" in answer and '"bucket.0" (' in answer, answer
        assert f"; rank 1 waits in {AFTERWARDS[kind]}" in answer, answer
        assert answer.count(f"{__file__.rpartition('/')[2]}:") == 2 and answer.count("[rank ") == 1, answer
