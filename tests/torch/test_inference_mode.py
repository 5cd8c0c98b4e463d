"""Verbs on tensors of inference mode, which end when that mode is over, or on another thread."""

from __future__ import annotations

import pytest
import ranks
from process_groups import begin

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.processes


def verbs(dist, rank, size):
    """Return, by name, what begins a verb: its outputs, its work, and what the outputs will be on rank 0."""
    own = torch.full((2,), rank + 1.0)
    each = [torch.full((2,), float(10 * rank + to)) for to in range(size)]
    rows = [torch.zeros(2) for _ in range(size)]
    mask = torch.full((2,), rank + 1)
    gathered = rows if rank == 0 else None
    return {
        "all_reduce": lambda: ([own], dist.all_reduce(own, async_op=True), [[3.0, 3.0]]),
        "all_gather": lambda: (rows, dist.all_gather(rows, own, async_op=True), [[1.0, 1.0], [2.0, 2.0]]),
        "all_to_all": lambda: (rows, dist.all_to_all(rows, each, async_op=True), [[0.0, 0.0], [10.0, 10.0]]),
        "bitwise or": lambda: ([mask], dist.all_reduce(mask, op=dist.ReduceOp.BOR, async_op=True), [[3, 3]]),
        "gather": lambda: (rows, dist.gather(own, gathered, async_op=True), [[1.0, 1.0], [2.0, 2.0]]),
        "scatter": lambda: (rows[:1], dist.scatter(rows[0], each if rank == 0 else None, async_op=True), [[0.0, 0.0]]),
    }


def poll(work):
    while not work.is_completed():
        pass


WAYS = {"wait": lambda work: work.wait(), "is_completed": poll, "future": lambda work: work.get_future().wait()}


def group(path):
    dist, rank, size = begin(path)
    for way, wait in WAYS.items():
        for name in verbs(dist, rank, size):
            with torch.inference_mode():
                outputs, work, wanted = verbs(dist, rank, size)[name]()
            wait(work)
            assert work.exception() is None, (name, way, work.exception())
            if rank == 0:
                assert [output.tolist() for output in outputs] == wanted, (name, way)


def test_verbs_of_a_process_group(tmp_path):
    ranks.run(2, group, str(tmp_path / "store"), initialise=False)


def own_verbs():
    import ddl_torch as ddl

    for dtype in (torch.float32, torch.int32):
        with torch.inference_mode():
            x = torch.full((3,), 2 * (ddl.rank() + 1), dtype=dtype)
            factors = {"op": ddl.Sum, "prescale_factor": 0.5, "postscale_factor": 2.0}
            handle = ddl.allreduce_async_(x, name="in place", **factors)
            other = ddl.allreduce_async(x.clone(), name="new", **factors)
        assert ddl.synchronize(handle) is x and x.tolist() == [6] * 3
        assert ddl.synchronize(other).tolist() == [6] * 3


def test_own_verbs():
    ranks.run(2, own_verbs)
