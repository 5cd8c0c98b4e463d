"""``all_reduce`` of sparse tensors on the backend "ddl", and DDP with an embedding whose gradients are sparse."""

from __future__ import annotations

import pytest
import ranks
from process_groups import begin, drawn, same

torch = pytest.importorskip("torch")

KINDS = ["float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8"]


def sparse_of(kind, rank):
    """Rows 1, rank and rank again of a table, of which the first is of all ranks."""
    rows = torch.tensor([[1, 2 + rank, 2 + rank]])
    return torch.sparse_coo_tensor(rows, drawn(kind, 3, 2, of=rank), (8, 2), check_invariants=True)


def sparse(path):
    dist, r, n = begin(path)
    everybody = [dist.ReduceOp.SUM, dist.ReduceOp.AVG]
    import ddl

    with pytest.raises((ddl.InvalidArgument, NotImplementedError), match="a view of a sparse one, or|view_as_real"):
        dist.all_reduce(sparse_of("complex64", r))  # which older versions of torch refuse
    for kind in KINDS:
        total = sum(sparse_of(kind, rank).to_dense() for rank in range(n))
        for op in everybody if "int" not in kind else everybody[:1]:
            wanted = total if op == dist.ReduceOp.SUM else total / n
            tensor = sparse_of(kind, r)
            dist.all_reduce(tensor, op)
            assert tensor.coalesce()._nnz() == 1 + n, (kind, op, tensor)
            same(tensor.to_dense(), wanted)
            tensor = sparse_of(kind, r).coalesce()
            work = dist.all_reduce(tensor, op, async_op=True)
            work.wait()
            same(tensor.to_dense(), wanted)
            same(work.get_future().wait()[0].to_dense(), wanted)
    nothing = torch.zeros(4, 2).to_sparse(1) if r else torch.eye(4, 2).to_sparse(1)
    dist.all_reduce(nothing)  # one rank has no entries
    same(nothing.to_dense(), torch.eye(4, 2))
    torch.manual_seed(1)
    embedding = torch.nn.Embedding(8, 3, sparse=True)
    model = torch.nn.parallel.DistributedDataParallel(embedding)
    for _ in range(2):
        embedding.weight.grad = None
        model(torch.tensor([0, 3 + r])).sum().backward()
    wanted = torch.zeros(8, 3)
    wanted[0], wanted[3], wanted[4] = 1, 0.5, 0.5
    assert embedding.weight.grad.is_sparse
    same(embedding.weight.grad.to_dense(), wanted)
    dist.destroy_process_group()


def test_sparse_tensors(tmp_path) -> None:
    ranks.run(2, sparse, str(tmp_path / "store"), initialise=False)
