"""The verbs on torch tensors, for every element type and layout; exact values."""

from __future__ import annotations

import threading
import time

import pytest
import ranks

torch = pytest.importorskip("torch")

KINDS = ["float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool", "complex64"]
SUMMED = [kind for kind in KINDS if kind != "bool"]
MOVED = [*KINDS, "complex128", "float8_e5m2", "uint16"]


def tensor(kind, *shape, add=0):
    count = torch.Size(shape).numel()
    return (torch.arange(count).reshape(shape) + add).to(getattr(torch, kind))


def same(result, expected):
    assert result.dtype == expected.dtype and result.shape == expected.shape
    if result.dtype.itemsize == 1:  # some of these cannot be compared
        result, expected = result.view(torch.uint8), expected.view(torch.uint8)
    assert torch.equal(result, expected), (result, expected)


def summing():
    import ddl_torch as ddl

    rank, size = ddl.rank(), ddl.size()
    for kind in SUMMED:
        x, total = tensor(kind, 3, 5, add=rank), tensor(kind, 3, 5) * size + sum(range(size))
        total = total.to(x.dtype)
        kept = x.clone()
        same(ddl.allreduce(x, op=ddl.Sum), total)
        same(ddl.allreduce_async(x.t(), op=ddl.Sum, name="x").wait(), total.t().contiguous())
        same(x, kept)
        if not x.is_complex():
            same(ddl.allreduce(x, op=ddl.Max), tensor(kind, 3, 5, add=size - 1))
        reduced = ddl.reduce(x, op=ddl.Sum, root_rank=size - 1)
        assert (reduced is None) == (rank != size - 1)
        same(total if reduced is None else reduced, total)
        rows = [3 // size + (r < 3 % size) for r in range(size)]
        start = sum(rows[:rank])
        same(ddl.reducescatter(x, op=ddl.Sum), total[start : start + rows[rank]])
        same(ddl.reducescatter_async(x, op=ddl.Sum).wait(), total[start : start + rows[rank]])
        work = ddl.reduce_async(x, op=ddl.Sum)
        same(work.wait() if rank == 0 else total, total)
        parameter = torch.nn.Parameter(x.clone(), requires_grad=x.is_floating_point())
        assert ddl.allreduce_(parameter, op=ddl.Sum) is parameter
        same(parameter.detach(), total)
        work = ddl.allreduce_async_(x, op=ddl.Sum)
        assert work.wait() is x and work.wait() is x and work.done()
        same(x, total)
    same(ddl.allreduce(torch.tensor(float(rank))), torch.tensor((size - 1) / 2))
    same(ddl.allreduce(torch.tensor([rank > 0, True, False]), op=ddl.Max), torch.tensor([True, True, False]))


def moving():
    import ddl_torch as ddl

    rank, size = ddl.rank(), ddl.size()
    for kind in MOVED:
        x = tensor(kind, 2, 4, add=rank)
        first = tensor(kind, 2, 4)
        same(ddl.broadcast(x), first)
        same(ddl.broadcast_async(x.t()).wait(), first.t().contiguous())
        other = x.clone()
        assert ddl.broadcast_(other, root_rank=size - 1) is other
        same(other, tensor(kind, 2, 4, add=size - 1))
        other = x.clone()
        assert ddl.broadcast_async_(other).wait() is other
        same(other, first)

        part = tensor(kind, rank, 4)
        everything = torch.cat([tensor("int64", r, 4) for r in range(size)]).to(x.dtype)
        same(ddl.allgather(part), everything)
        same(ddl.allgather_async(part).wait(), everything)
        gathered = ddl.gather(part, root_rank=1)
        assert (gathered is None) == (rank != 1)
        same(everything if gathered is None else gathered, everything)
        assert (ddl.gather_async(part).wait() is None) == (rank != 0)

        deal = tensor(kind, size, 3, add=10 * rank)
        dealt = torch.stack([tensor("int64", size, 3, add=10 * r)[rank] for r in range(size)]).to(x.dtype)
        same(ddl.alltoall(deal), dealt)
        same(ddl.alltoall_async(deal).wait(), dealt)
        rows, counts = ddl.alltoall(deal, splits=torch.tensor([size] + [0] * (size - 1)))
        assert counts.tolist() == [size if rank == 0 else 0] * size and len(rows) == size * size * (rank == 0)
        same(ddl.scatter(first.view(1, -1).t() if rank == 0 else None), share(first, rank, size))

        if rank == 0:
            ddl.send(x, 1)
            ddl.send_async(x.t(), 1).wait()
        if rank == 1:
            y, z = torch.empty_like(x), torch.empty(4, 2, dtype=x.dtype)
            assert ddl.recv(y, 0) is y
            ddl.recv_async(z, 0).wait()
            same(y, first)
            same(z, first.t().contiguous())
    ddl.barrier()
    assert ddl.barrier_async().wait() is None


def share(first, rank, size):
    """What ``rank`` gets of the eight elements of ``first`` when they are scattered one to a row."""
    rows = [8 // size + (r < 8 % size) for r in range(size)]
    start = sum(rows[:rank])
    return first.reshape(-1, 1)[start : start + rows[rank]]


def uneven_alltoall():
    """Rank r deals r + 1 rows to each rank; the gradient of a row is told by where it came to."""
    import ddl_torch as ddl

    rank, size = ddl.rank(), ddl.size()
    before = sum(range(1, rank + 1))  # rows of lower ranks, which come first everywhere
    for where in ({}, {"communicator": ddl.world()}):
        x = torch.zeros(size * (rank + 1), 2, requires_grad=True)
        received = ddl.alltoall(x, **where)
        assert received.shape == (sum(range(1, size + 1)), 2)
        places = torch.arange(len(received)).reshape(-1, 1).expand(-1, 2) + 100 * rank
        (received * places).sum().backward()
        wanted = [100 * target + before + row for target in range(size) for row in range(rank + 1)]
        assert x.grad.tolist() == [[place, place] for place in wanted]
    if size > 1:
        with pytest.raises(ddl.InvalidArgument, match=f"{size + 1} rows do not divide among {size} ranks"):
            ddl.alltoall(torch.zeros(size + 1, requires_grad=True))


@pytest.mark.parametrize("size", [1, 3])
def test_the_gradient_of_alltoall_where_ranks_have_different_numbers_of_rows(size: int) -> None:
    ranks.run(size, uneven_alltoall)


def refusing():
    import ddl_torch as ddl

    wide = torch.zeros(4, 4)
    calls = [
        (lambda: ddl.allreduce_(wide.t()[:2]), "not contiguous"),
        (lambda: ddl.broadcast_(wide[:, :2]), r"strides \(4, 1\)"),
        (lambda: ddl.allreduce([1.0]), "a list is no torch tensor"),
        (lambda: ddl.allgather(torch.zeros(2, device="meta")), "is on meta"),
        (lambda: ddl.allreduce(torch.zeros(2, 2).to_sparse()), "to_dense"),
        (lambda: ddl.allreduce(torch.zeros(2, dtype=torch.complex64), op=ddl.Max), "complex"),
        (lambda: ddl.allreduce(torch.zeros(2).to(torch.float8_e5m2)), "float8_e5m2 can be moved, but"),
        *(
            (lambda verb=verb: verb(torch.zeros(4).to(torch.float8_e5m2), op=ddl.Sum), "float8_e5m2 can be moved, but")
            for verb in (ddl.reducescatter, ddl.reduce)
        ),
        (lambda: ddl.allreduce(torch.tensor([True])), "no average"),
        (lambda: ddl.broadcast(torch.zeros(2), root_rank=9), "rank 9 is not in"),
        (lambda: ddl.reducescatter([1.0, 2.0]), "a list is no torch tensor"),
        (lambda: ddl.reducescatter([1.0], compression=ddl.Compression.fp16), "a list is no torch tensor"),
        (lambda: ddl.allreduce([1.0], compression=ddl.Compression.fp16), "a list is no torch tensor"),
        (lambda: ddl.grouped_allreduce([[1.0]], compression=ddl.Compression.fp16), "a list is no torch tensor"),
        (lambda: ddl.alltoall(wide, splits=[9] * ddl.size()), "sum to the 4 rows"),
        (lambda: ddl.gather(wide, root_rank=9), "root=9 is no rank"),
        (lambda: ddl.allreduce(wide, compression=ddl.Compression.int8), "is not for single tensors"),
        (lambda: ddl.allreduce(wide, compression="fp17"), "'fp17' is not for single tensors.*did you mean.*fp16"),
        (lambda: ddl.poll(3), "3 is no handle"),
        (lambda: ddl.synchronize(3), "3 is no handle"),
        (lambda: ddl.process_set_by_id(7), "no process set 7"),
    ]
    for call, message in calls:
        with pytest.raises(ddl.InvalidArgument, match=message) as caught:
            call()
        assert str(caught.value).startswith(f"[rank {ddl.rank()}/{ddl.size()}"), caught.value
    for compression in (None, "none", "fp16", "bf16", ddl.Compression.bf16):
        assert ddl.allreduce(wide, compression=compression).dtype == wide.dtype
        (several,) = ddl.grouped_allreduce([torch.ones(3)], compression=compression)
        assert several.tolist() == [1.0] * 3 and several.dtype == torch.float32
    if ddl.rank() == 0:
        with pytest.raises(ddl.InvalidArgument, match="must pass a tensor"):
            ddl.scatter()
    # Autograd notices that a value it had kept was overwritten.
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    ddl.allreduce_(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def unsigned():
    """Not as the signed numbers of the same bits."""
    import ddl_torch as ddl

    rank, size = ddl.rank(), ddl.size()
    for kind in ("uint16", "uint32", "uint64"):
        dtype = getattr(torch, kind)
        most = torch.iinfo(dtype).max if kind != "uint64" else 2**62
        x = torch.tensor([most if rank == 0 else 1] * size, dtype=dtype)
        for got in (ddl.allreduce(x, op=ddl.Max), ddl.reducescatter(x, op=ddl.Max)):
            assert got.dtype == dtype and got[0].item() == most, (kind, got)
        reduced = ddl.reduce(x, op=ddl.Max)
        assert reduced is None or reduced[0].item() == most
        assert ddl.allgather(x[:1]).tolist() == [most] + [1] * (size - 1)


def complex_factors():
    import ddl_torch as ddl

    size = ddl.size()
    x = torch.full((size,), 1 + 2j, dtype=torch.complex64)
    for factors in ({"prescale_factor": 2.0}, {"postscale_factor": 2.0}):
        assert ddl.allreduce(x, op=ddl.Sum, **factors).tolist() == [size * (2 + 4j)] * size
        assert ddl.reducescatter(x, op=ddl.Sum, **factors).tolist() == [size * (2 + 4j)]


def run_verbs():
    import ddl_torch as ddl

    summing()
    moving()
    refusing()
    complex_factors()
    unsigned()
    half = ddl.split(ddl.rank() % 2)
    assert ddl.allreduce(torch.tensor(1), op=ddl.Sum, communicator=half).item() == half.size
    assert ddl.allgather_object({"rank": ddl.rank()}) == [{"rank": r} for r in range(ddl.size())]
    assert ddl.broadcast_object(ddl.rank(), root_rank=1) == 1
    return (ddl.rank(), ddl.local_rank(), ddl.local_size(), ddl.cross_rank(), ddl.cross_size())


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3])
def test_verbs(size):
    answers = ranks.run(size, run_verbs, env={"OMP_NUM_THREADS": "1"})
    assert answers == [(rank, rank, size, 0, 1) for rank in range(size)]


def test_any_number_of_threads_may_wait():
    """Its result is finished once: in place, a second time would scale it once more."""
    from ddl.negotiation.pending import CompletedOperation
    from ddl_torch._tensors import Work

    finished = []

    def finish(_):
        time.sleep(0.05)  # so that all threads come meanwhile
        finished.append(None)
        return len(finished)

    work, results = Work(CompletedOperation(), finish), []
    threads = [threading.Thread(target=lambda: results.append(work.wait())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(finished) == 1 and results == [1] * 4


def test_every_verb_of_ddl_is_here():
    import ddl
    import ddl_torch

    missing = set(ddl.__all__) - set(ddl_torch.__all__)
    assert missing <= {
        *("JobStore", "PreparedOperation", "Rendezvous", "empty", "is_shared"),
        *(name for name in ddl.__all__ if hasattr(ddl.errors, name)),
    }
    assert len(ddl_torch.__all__) == len(set(ddl_torch.__all__))
    assert all(hasattr(ddl_torch, name) for name in ddl_torch.__all__)
