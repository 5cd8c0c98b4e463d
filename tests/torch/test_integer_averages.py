"""Averages of integer tensors are those of the numbers, also where their sum is more than the type holds."""

from __future__ import annotations

import pytest
import ranks
from process_groups import begin

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.processes

KINDS = ("uint8", "int8", "int16", "int32")


def averages():
    """Rank 0 has the type's greatest number, rank 1 the one before it, and both their least ones."""
    import ddl_torch as ddl

    rank = ddl.rank()
    for kind in KINDS:
        dtype = getattr(torch, kind)
        info = torch.iinfo(dtype)
        own = torch.tensor([[info.max - 2 * rank, info.min]] * 2, dtype=dtype)
        wanted = torch.tensor([[info.max - 1, info.min]] * 2, dtype=dtype)
        step = ddl.prepare_allreduce(prepared := own.clone())
        results = [
            ddl.allreduce(own),
            ddl.allreduce_(own.clone()),
            ddl.synchronize(ddl.allreduce_async(own, name="mean")),
            ddl.synchronize(ddl.allreduce_async_(own.clone())),
            *ddl.grouped_allreduce([own, own.clone()]),
            torch.cat([ddl.reducescatter(own)] * 2),
            step(),
        ]
        assert results[-1] is prepared
        root = ddl.reduce(own, 1)
        results += [root] if rank == 1 else []
        for result in results:
            assert result.dtype == dtype and torch.equal(result, wanted), (kind, result)
        sparse = ddl.sparse_allreduce_async(own.to_sparse(), "rows", ddl.Average)().to_dense()
        assert torch.equal(sparse, wanted.float()), (kind, sparse)
    return True


def test_no_average_wraps():
    assert ranks.run(2, averages) == [True] * 2


def averages_of_a_group(path):
    dist, r, n = begin(path)
    own = torch.tensor([200 + r, 100], dtype=torch.uint8)
    dist.all_reduce(own, op=dist.ReduceOp.AVG)
    part = torch.zeros(1, dtype=torch.uint8)
    dist.reduce_scatter_tensor(part, torch.full((n,), 200, dtype=torch.uint8), op=dist.ReduceOp.AVG)
    return [*own.tolist(), *part.tolist()]


def test_no_average_of_a_process_group_wraps(tmp_path):
    assert ranks.run(2, averages_of_a_group, str(tmp_path / "store"), initialise=False) == [[200, 100, 200]] * 2
