"""Sparse gradients: N ranks train as one process does, and p.grad is what it would be there, whoever had entries."""

from __future__ import annotations

import pytest
import ranks

from ddl import CollectiveMismatch

torch = pytest.importorskip("torch")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def coo(indices, values, rows, dtype):
    return torch.sparse_coo_tensor(torch.tensor([indices]), torch.tensor(values, dtype=dtype), (rows, 2))


def all_reduce():
    import ddl_torch as ddl

    rank = ddl.rank()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        own = [
            coo([4, 1, 4], [[1, 2], [3, 4], [5, 6]], 6, dtype),  # not coalesced
            coo([1], [[8, 10]], 6, dtype),
        ][rank]
        total = ddl.sparse_allreduce_async(own, "table", ddl.Sum)()
        assert total.is_coalesced() and total.dtype == dtype and total.shape == (6, 2)
        assert total.indices().tolist() == [[1, 4]] and total.values().real.tolist() == [[11, 14], [6, 8]]
        mean = ddl.sparse_allreduce_async(own, "table", ddl.Average, None)
        assert torch.equal(mean().to_dense(), (total / 2).to_dense())
        nothing = torch.sparse_coo_tensor(torch.empty((1, 0), dtype=torch.int64), torch.empty((0, 2)), (6, 2))
        one_sided = ddl.sparse_allreduce_async(own if rank else nothing.to(dtype), op=ddl.Sum)()
        assert one_sided.to_dense().real.tolist()[1] == [8, 10] and one_sided._nnz() == 1
    elements = ddl.sparse_allreduce_async(torch.ones(3, 3).triu(rank).to_sparse())()  # two sparse dimensions
    with pytest.raises(ddl.InvalidArgument, match="'table'.*use allreduce"):
        ddl.sparse_allreduce_async(torch.ones(2), "table")
    with pytest.raises(ddl.InvalidArgument, match="averaged and summed"):
        ddl.sparse_allreduce_async(elements, "table", ddl.Max)
    unequal = torch.eye(4 + rank, 3).to_sparse(1)
    with pytest.raises(CollectiveMismatch, match=r"op=Sum shape=\(4, 3\).*op=Sum shape=\(5, 3\)"):
        ddl.sparse_allreduce_async(unequal, "table", ddl.Sum)()
    group = ddl.split(0)
    with pytest.raises(ddl.InvalidArgument, match=r"rank 1 has a sparse tensor of shape \[5, 3\], 1 .*rank 0 has \S"):
        ddl.sparse_allreduce_async(unequal, op=ddl.Sum, communicator=group)
    group.close()


class Words(torch.nn.Module):
    """A table, which a batch may leave alone, and something dense behind it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.table = torch.nn.Embedding(1000, 5, sparse=True, dtype=torch.float64)
        self.head = torch.nn.Linear(5, 3, dtype=torch.float64)

    def forward(self, words):
        x = torch.ones(1, 5, dtype=torch.float64) if words is None else self.table(words)
        return self.head(x.tanh()).pow(2).sum()


#: The words of each rank by step; None: the table is not used, [] it is, with nothing to look up.
STEPS = [(None, [7, 3, 7]), ([1, 2, 3], [3, 4, 999]), ([5, 5], None), (None, None), ([], None), ([0, 3], [3])]


def batches(step):
    return [None if words is None else torch.tensor(words, dtype=torch.int64) for words in STEPS[step]]


def train(make, set_to_none=True, passes=1, **options):
    """Train on both ranks, and in one process on the batches of both; compare weights and gradients at every step."""
    import ddl_torch as ddl

    alone, model = Words(), Words()
    plain = make(alone)
    optimizer = ddl.DistributedOptimizer(
        make(model), model.named_parameters(), bucket_bytes=64, backward_passes_per_step=passes, **options
    )
    for step in range(0, len(STEPS), passes):
        plain.zero_grad(set_to_none)
        optimizer.zero_grad(set_to_none)
        for number in range(step, step + passes):
            (sum(alone(words) for words in batches(number)) / 2).backward()
            model(batches(number)[ddl.rank()]).backward()
        before = optimizer.statistics()["bytes"]
        plain.step()
        optimizer.step()
        for (name, p), q in zip(model.named_parameters(), alone.parameters()):
            what = f"{type(plain).__name__} {options} step {step}: {name}"
            assert torch.allclose(p, q, rtol=1e-12, atol=1e-14), what
            assert torch.equal(*ddl.allgather(p.detach().unsqueeze(0))), what
            assert (p.grad is None) == (q.grad is None), what
            if name == "table.weight" and q.grad is not None:
                assert p.grad.layout == torch.sparse_coo, what
                assert torch.allclose(p.grad.to_dense(), q.grad.to_dense(), rtol=1e-12), what
        if step > 0 and "sparse_as_dense" not in options:
            assert optimizer.statistics()["bytes"] - before < 1000 * 5, "the table still has room in a bucket"
    assert not torch.equal(model.table.weight, Words().table.weight)


def optimizers():
    for set_to_none in (True, False):
        train(lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), set_to_none)
    train(lambda model: torch.optim.SparseAdam(model.table.parameters(), lr=0.1))
    train(lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1))
    for options in ({"overlap": True}, {"check": 1}, {"groups": 1}, {"gradient_predivide_factor": 2.0}, {"passes": 2}):
        train(lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1), **options)
    train(lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sparse_as_dense=True)
    train(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), sparse_as_dense=True, passes=3)
    train(lambda model: torch.optim.SparseAdam(model.table.parameters(), lr=0.1), sparse_as_dense=True)


def run_sparse():
    all_reduce()
    optimizers()
    return True


@pytest.mark.processes
def test_sparse_gradients():
    assert ranks.run(2, run_sparse, env=ONE_THREAD) == [True, True]
