"""Every verb of ``torch.distributed`` on the backend "ddl": exact values, all kinds of tensors, groups, objects."""

from __future__ import annotations

import datetime
import inspect
import warnings

import pytest
import ranks
from process_groups import begin, drawn, same

torch = pytest.importorskip("torch")

KINDS = ["float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "complex64"]
MOVED = [*KINDS, "bool", "complex128", "float8_e5m2"]


def newer_verbs(path):
    """What newer versions of torch have."""
    dist, r, n = begin(path)
    import ddl

    whole, empty = torch.zeros(2, 2 * n), torch.zeros(0)
    options = dist.GatherOptions()
    for root in range(n):
        options.rootRank = root
        target = whole.t() if r == root else empty  # not contiguous
        dist.group.WORLD.gather_single(target, torch.full((2, 2), r + 1.0), options).wait()
        if r == root:
            assert target.reshape(n, 4).tolist() == [[rank + 1.0] * 4 for rank in range(n)]
    if r == root:
        with pytest.raises(ddl.InvalidArgument, match="an output of 3 elements cannot hold 4 elements of each of 2"):
            dist.group.WORLD.gather_single(torch.zeros(3), torch.zeros(4), options)
    if hasattr(dist, "gather_single"):
        whole = torch.zeros(4) if r == 0 else None
        dist.gather_single(torch.full((2,), r + 1.0), whole, dst=0)
        assert r or whole.tolist() == [1, 1, 2, 2]
        assert dist.get_backend_impl() is dist.group.WORLD
    dist.barrier()
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=0.5))
    if r == 0:
        with pytest.raises(ddl.CollectiveTimeout, match="rank 1 has not called it"):
            dist.all_reduce(whole)
    ranks.meet()  # rank 1 is still there


def test_newer_verbs(tmp_path) -> None:
    ranks.run(2, newer_verbs, str(tmp_path / "store"), initialise=False)


def moving(path):
    dist, r, n = begin(path)
    for kind in MOVED:
        dtype = getattr(torch, kind)
        each = [drawn(kind, 5, 3, of=rank) for rank in range(n)]
        own = each[r].clone()
        for root in range(n):
            got = own.clone()
            dist.broadcast(got, root)
            same(got, each[root])
        outputs = [torch.empty(5, 3, dtype=dtype) for _ in range(n)]
        dist.all_gather(outputs, own)
        same(outputs, each)
        work = dist.all_gather(outputs[::-1], own, async_op=True)
        work.wait()
        same(outputs[::-1], each)
        whole = torch.empty(5 * n, 3, dtype=dtype)
        dist.all_gather_into_tensor(whole, own)
        same(whole, torch.cat(each))
        inplace = torch.zeros(n, 5, 3, dtype=torch.uint8).to(dtype)
        inplace[r] = own
        dist.all_gather_into_tensor(inplace, inplace[r])
        same(inplace, torch.stack(each))
        parts = [drawn(kind, 4, of=10 * r + rank) for rank in range(n)]
        coming = [drawn(kind, 4, of=10 * rank + r) for rank in range(n)]
        flat = torch.empty(4 * n, dtype=dtype)
        dist.all_to_all_single(flat, torch.cat(parts))
        same(flat, torch.cat(coming))
        outputs = [torch.empty(4, dtype=dtype) for _ in range(n)]
        dist.all_to_all(outputs, parts)
        same(outputs, coming)
        outputs = [torch.empty(rank, r + 1, dtype=dtype) for rank in range(n)]  # rank s sends r to s: s columns, r rows
        dist.all_to_all(outputs, [drawn(kind, r, rank + 1, of=rank) for rank in range(n)])
        same(outputs, [drawn(kind, rank, r + 1, of=r) for rank in range(n)])
        source, start = drawn(kind, n * (n + 1) // 2, 2, of=r), r * (r + 1) // 2
        target = torch.empty((r + 1) * n, 2, dtype=dtype)
        dist.all_to_all_single(target, source, [r + 1] * n, list(range(1, n + 1)))
        rows = [drawn(kind, n * (n + 1) // 2, 2, of=rank)[start : start + r + 1] for rank in range(n)]
        same(target, torch.cat(rows))
        outputs = [torch.empty(5, 3, dtype=dtype) for _ in range(n)] if r == 1 else None
        dist.gather(own, outputs, dst=1)
        assert r != 1 or same(outputs, each) is None
        out = torch.empty(4, dtype=dtype)
        dist.scatter(out, [drawn(kind, 4, of=rank) for rank in range(n)] if r == 0 else None, src=0)
        same(out, drawn(kind, 4, of=r))
        if r == 0:
            dist.send(own, 1)
            dist.isend(own.t(), 1).wait()
        elif r == 1:
            got, turned = torch.empty(5, 3, dtype=dtype), torch.empty(5, 3, dtype=dtype).t()
            assert dist.recv(got, 0) == 0
            dist.irecv(turned, 0).wait()
            same([got, turned.contiguous()], [each[0], each[0].t().contiguous()])
    dist.destroy_process_group()


def adding(path):
    dist, r, n = begin(path)
    op = dist.ReduceOp
    for kind in KINDS:
        dtype = getattr(torch, kind)
        each = [drawn(kind, 6, 2, of=rank) for rank in range(n)]
        total = torch.stack(each).sum(0).to(dtype)
        got = each[r].clone()
        dist.all_reduce(got)
        same(got, total)
        got = each[r].clone()
        work = dist.all_reduce(got, async_op=True)
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
        same(got, total)
        assert work.result()[0].data_ptr() == got.data_ptr()
        assert work.get_future().wait()[0] is not None
        turned = each[r].t().clone(memory_format=torch.contiguous_format).t()
        assert not turned.is_contiguous()
        dist.all_reduce(turned)
        same(turned.contiguous(), total)
        got = each[r].clone()
        dist.reduce(got, n - 1)
        same(got, total if r == n - 1 else each[r])
        parts = [drawn(kind, 4, of=10 * r + rank) for rank in range(n)]
        wanted = torch.stack([drawn(kind, 4, of=10 * rank + r) for rank in range(n)]).sum(0).to(dtype)
        out = torch.empty(4, dtype=dtype)
        dist.reduce_scatter(out, [part.clone() for part in parts])
        same(out, wanted)
        out = torch.empty(4, dtype=dtype)
        dist.reduce_scatter_tensor(out, torch.cat(parts))
        same(out, wanted)
    numbers = torch.stack([drawn("float32", 7, of=rank) for rank in range(n)])
    for known, wanted in (
        (op.MIN, numbers.amin(0)),
        (op.MAX, numbers.amax(0)),
        (op.PRODUCT, numbers.prod(0)),
        (dist._make_nccl_premul_sum(2.0), 2 * numbers.sum(0)),
    ):
        got = numbers[r].clone()
        dist.all_reduce(got, op=known)
        same(got, wanted)
    got = numbers[r].clone()
    dist.all_reduce(got, op=op.AVG)
    torch.testing.assert_close(got, numbers.mean(0))
    bits = [drawn("int32", n, of=rank) for rank in range(n)]
    for known, combine in ((op.BAND, torch.bitwise_and), (op.BOR, torch.bitwise_or), (op.BXOR, torch.bitwise_xor)):
        wanted = bits[0]
        for other in bits[1:]:
            wanted = combine(wanted, other)
        got, part = bits[r].clone(), torch.empty(1, dtype=torch.int32)
        dist.all_reduce(got, op=known)
        dist.reduce_scatter_tensor(part, bits[r], op=known)
        same([got, part], [wanted, wanted[r : r + 1]])
        got = bits[r].clone()
        dist.reduce(got, 0, op=known)
        same(got, wanted if r == 0 else bits[r])
    # Sizes that differ by rank.
    outputs = [torch.empty(rank + 1) for rank in range(n)]
    dist.all_gather(outputs, torch.full((r + 1,), float(r)))
    same(outputs, [torch.full((rank + 1,), float(rank)) for rank in range(n)])
    out = torch.empty(r + 1)
    dist.reduce_scatter(out, [torch.full((rank + 1,), 1.0 + r) for rank in range(n)])
    same(out, torch.full((r + 1,), float(n * (n + 1) // 2)))
    # Splits that are equal on one rank by chance: what others have decides.
    splits = [min(r, rank) + 1 for rank in range(n)]
    got = torch.empty(sum(splits))
    dist.all_to_all_single(got, torch.full((sum(splits),), float(r)), splits, splits)
    same(got, torch.cat([torch.full((count,), float(rank)) for rank, count in enumerate(splits)]))
    dist.destroy_process_group()


def with_history(path):
    """What autograd knows of the tensors stays theirs; and leaves that require gradients can be written."""
    dist, r, n = begin(path)
    source = torch.ones(r + 1, requires_grad=True) * (r + 1)
    outputs = [torch.zeros(rank + 1) for rank in range(n)]
    dist.all_gather(outputs, source)
    same(outputs, [torch.full((rank + 1,), rank + 1.0) for rank in range(n)])
    parts = [torch.ones(rank + 1, requires_grad=True) * 2 for rank in range(n)]
    out = torch.zeros(r + 1)
    dist.reduce_scatter(out, parts)
    assert out.tolist() == [2 * n] * (r + 1) and not any(x.requires_grad for x in (out, *outputs))
    leaves = [torch.zeros(2, requires_grad=True) for _ in range(n)]
    dist.all_gather(leaves, torch.full((2,), float(r)))
    same([leaf.detach() for leaf in leaves], [torch.full((2,), float(rank)) for rank in range(n)])
    dist.all_to_all(leaves, [torch.full((2,), r + 5.0)] * n)
    same([leaf.detach() for leaf in leaves], [torch.full((2,), rank + 5.0) for rank in range(n)])
    assert all(leaf.is_leaf and leaf.requires_grad for leaf in leaves)
    dist.destroy_process_group()


def test_autograd_history(tmp_path) -> None:
    ranks.run(2, with_history, str(tmp_path / "store"), initialise=False)


def together(path):
    """Objects, groups, batches, coalesced and functional collectives, meshes, barriers."""
    dist, r, n = begin(path)
    from torch.distributed import _functional_collectives as fc
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.distributed_c10d import _coalescing_manager

    assert dist.get_backend() == "ddl" and type(dist.group.WORLD).__name__ == "DDLProcessGroup"
    everybody = [None] * n
    dist.all_gather_object(everybody, {"rank": r, "text": "a" * r})
    assert everybody == [{"rank": rank, "text": "a" * rank} for rank in range(n)]
    everybody = [r, "x"]
    dist.broadcast_object_list(everybody, 1)
    assert everybody == [1, "x"]
    everybody = [None] * n if r == 0 else None
    dist.gather_object(("r", r), everybody)
    assert r != 0 or everybody == [("r", rank) for rank in range(n)]
    everybody = [None]
    dist.scatter_object_list(everybody, [f"s{rank}" for rank in range(n)] if r == 0 else None, src=0)
    assert everybody == [f"s{r}"]
    if r == 0:
        dist.send_object_list(["hi", 3], 1)
    elif r == 1:
        everybody = [None, None]
        dist.recv_object_list(everybody, 0)
        assert everybody == ["hi", 3]
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=10))

    first, backwards = dist.new_group([0, 1]), dist.new_group(list(range(n))[::-1])
    if r < 2:
        x = torch.ones(3)
        dist.all_reduce(x, group=first)
        assert x.tolist() == [2, 2, 2] and dist.get_process_group_ranks(first) == [0, 1]
    x = torch.full((2,), float(r))
    dist.broadcast(x, n - 1, group=backwards)
    assert x.tolist() == [n - 1] * 2
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:
        turned = dist.new_group(list(range(n))[::-1], sort_ranks=False)
        assert dist.get_rank(turned) == n - 1 - r
        x = torch.full((2,), float(r))
        dist.broadcast(x, group=turned, group_src=0)
        assert x.tolist() == [n - 1] * 2
    alone = [dist.new_group([rank]) for rank in range(n)][r]
    dist.all_reduce(x, group=alone)
    assert x.tolist() == [n - 1] * 2
    if r < 2:
        dist.destroy_process_group(first)
    dist.new_subgroups(group_size=1)
    inner, subgroups = dist.new_subgroups_by_enumeration([[rank] for rank in range(n)])
    assert len(subgroups) == n and dist.get_world_size(inner) == 1

    left, right = (r - 1) % n, (r + 1) % n
    got = torch.empty(4)
    batch = [dist.P2POp(dist.isend, torch.full((4,), float(r)), right), dist.P2POp(dist.irecv, got, left)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert got.tolist() == [left] * 4

    several = [torch.ones(length + 1) for length in range(3)]
    with _coalescing_manager():
        for x in several:
            dist.all_reduce(x)
    assert all(x[0] == n for x in several)
    with _coalescing_manager(async_ops=True) as under_way:
        whole = [torch.empty(n * 2) for _ in range(2)]
        for number, x in enumerate(whole):
            dist.all_gather_into_tensor(x, torch.full((2,), float(r + number)))
    under_way.wait()
    assert whole[1].tolist() == [float(i // 2 + 1) for i in range(2 * n)]
    with _coalescing_manager():
        parts = [torch.empty(2) for _ in range(2)]
        for number, x in enumerate(parts):
            dist.reduce_scatter_tensor(x, torch.full((2 * n,), float(number)))
    assert parts[1].tolist() == [n, n]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # old, and still there
        several = [torch.ones(2), torch.full((3,), float(r))]
        dist.all_reduce_coalesced(several)
        gathered = [[torch.empty(1), torch.empty(2)] for _ in range(n)]
        dist.all_gather_coalesced(gathered, [torch.full((1,), float(r)), torch.full((2,), r + 0.5)])
    assert [x[0].item() for x in several] == [n, n * (n - 1) / 2]
    assert [[x[0].item() for x in row] for row in gathered] == [[rank, rank + 0.5] for rank in range(n)]

    world, wait = dist.group.WORLD, fc.wait_tensor
    assert wait(fc.all_reduce(torch.ones(3) * (r + 1), "sum", world))[0] == n * (n + 1) / 2
    gathered = wait(fc.all_gather_single(torch.full((2,), float(r)), 0, world))
    assert gathered.tolist() == [float(i // 2) for i in range(2 * n)]
    assert wait(fc.reduce_scatter_single(torch.ones(2 * n), "sum", 0, world)).tolist() == [n, n]
    dealt = wait(fc.all_to_all_single(torch.full((n,), float(r)), None, None, world))
    assert dealt.tolist() == [float(i) for i in range(n)]
    assert wait(fc.broadcast(torch.full((2,), float(r)), 1, world))[0] == 1
    sums = fc.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", world)
    assert [wait(x)[0].item() for x in sums] == [n, n]

    if n == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        x = torch.full((1,), float(r))
        dist.all_reduce(x, group=mesh["b"].get_group())
        assert x.item() == (1 if r < 2 else 5)
    dist.destroy_process_group()
    assert not dist.is_initialized()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("part", [moving, adding], ids=["moving", "adding"])
def test_verbs(part, size: int, tmp_path) -> None:
    ranks.run(size, part, str(tmp_path / "store"), initialise=False)


@pytest.mark.parametrize("size", [2, 4])
def test_objects_groups_batches(size: int, tmp_path) -> None:
    ranks.run(size, together, str(tmp_path / "store"), initialise=False)


def again_and_again(path):
    import ddl_torch as ddl

    for number in range(3):
        dist, r, n = begin(f"{path}{number}")
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x[0] == n
        dist.destroy_process_group()
        assert not ddl.is_initialized()
    ddl.init()  # whose job it is, it stays
    dist, r, n = begin(f"{path}-own")
    dist.all_reduce(x)
    ddl.allreduce_(x)
    dist.destroy_process_group()
    assert ddl.allreduce(x)[0] == n * n
    ddl.shutdown()


def test_init_and_destroy(tmp_path) -> None:
    ranks.run(2, again_and_again, str(tmp_path / "store"), initialise=False)
