"""Named verbs, as Horovod's users know them: in any order, refused without harm, with joined ranks, on process sets."""

from __future__ import annotations

import threading
import time

import pytest
import ranks

from ddl.negotiation import Request, Signature

torch = pytest.importorskip("torch")


def orders():
    """Ranks submit the same names in different orders, and wait for them in others."""
    import ddl_torch as hvd

    rank, size = hvd.rank(), hvd.size()
    names = [f"layer.{i}" for i in range(12)]
    for step in range(4):
        generator = torch.Generator().manual_seed(100 * step + rank)
        order = torch.randperm(len(names), generator=generator).tolist()
        tensors = [torch.full((i + 1,), float(i + step + rank)) for i in range(len(names))]
        handles = {i: hvd.allreduce_async_(tensors[i], name=names[i], op=hvd.Sum) for i in order}
        mean = hvd.allreduce(torch.tensor([float(rank)]), name="metric")  # in between, blocking
        assert mean.item() == (size - 1) / 2
        for i in reversed(order):
            assert hvd.synchronize(handles[i]) is tensors[i]
            assert hvd.poll(handles[i])
            assert torch.equal(tensors[i], torch.full((i + 1,), float(size * (i + step) + sum(range(size)))))
    # Different kinds of operations may share a name.
    handle = hvd.allgather_async(torch.full((rank, 2), rank), name="x")
    two = hvd.broadcast_async(torch.tensor(rank), root_rank=size - 1, name="x")
    three = hvd.alltoall_async(torch.arange(size) + 10 * rank, name="x")
    assert hvd.synchronize(three).tolist() == [rank + 10 * r for r in range(size)]
    assert hvd.synchronize(two).item() == size - 1
    assert hvd.synchronize(handle).tolist() == [[r, r] for r in range(size) for _ in range(r)]


def unready():
    """``poll`` is false until the others come; a name that is under way cannot be used again."""
    import ddl
    import ddl_torch as hvd

    if hvd.rank() > 0:
        hvd.broadcast(torch.zeros(1), name="rank 0 has looked")
    handle = hvd.allreduce_async(torch.ones(3), name="late")
    if hvd.rank() == 0:
        time.sleep(0.05)
        assert not hvd.poll(handle)
        with pytest.raises(ddl.WaitTimeout, match="'allreduce.late'"):
            handle.wait(timeout=0.01)
        with pytest.raises(ValueError, match=r"\[rank 0/\d host .*\] 'allreduce.late'.*of this name is under way"):
            hvd.allreduce_async(torch.ones(3), name="late")
        hvd.broadcast(torch.zeros(1), name="rank 0 has looked")
    assert torch.equal(hvd.synchronize(handle), torch.ones(3))
    assert hvd.poll(handle)


def different():
    """Shape, type, operator, root: an error on all ranks that shows both sides, and nothing is broken."""
    import ddl_torch as hvd

    rank = hvd.rank()
    odd = rank == 1
    calls = {
        "shape": lambda name: hvd.allreduce(torch.zeros(3 + odd), name=name),
        "dimensions": lambda name: hvd.allreduce(torch.zeros((2, 2) if odd else (4,)), name=name),
        "type": lambda name: hvd.allreduce(torch.zeros(3, dtype=torch.int32 if odd else torch.float32), name=name),
        "operator": lambda name: hvd.allreduce(torch.zeros(3), op=hvd.Sum if odd else hvd.Average, name=name),
        "scale": lambda name: hvd.allreduce(torch.zeros(3), prescale_factor=1.0 + odd, name=name),
        "root": lambda name: hvd.broadcast(torch.zeros(3), root_rank=int(odd), name=name),
        "columns": lambda name: hvd.allgather(torch.zeros(2, 2 + odd), name=name),
        "group": lambda name: hvd.grouped_allreduce([torch.zeros(3)] * (1 + odd), name=name),
        "rows": lambda name: hvd.reducescatter(torch.zeros(4 + odd, 2), name=name),
    }
    for what, call in calls.items():
        for name in (what, None):
            with pytest.raises(hvd.HorovodInternalError) as caught:
                call(name)
            text = str(caught.value)
            assert f"[rank {rank}/{hvd.size()} host " in text, text
            assert "rank 0 submitted" in text and "but rank 1" in text and "submit it alike on every rank" in text, text
    first, second = ("a", "b") if odd else ("b", "a")
    handle = hvd.allreduce_async(torch.ones(2), name=first)  # still possible
    two = hvd.allreduce_async(torch.ones(2), name=second)
    assert handle.wait().tolist() == two.wait().tolist() == [1.0, 1.0]


def scales():
    import ddl_torch as hvd

    size = hvd.size()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.tensor([1.0, 3.0], dtype=dtype)
        got = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        assert torch.equal(got, 2 * size * x) and x.tolist() == [1.0, 3.0]
        got = hvd.reducescatter(x.repeat(size), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
        assert torch.equal(got, size * x)
    for dtype in (torch.int32, torch.int64):
        x = torch.tensor([7, -7], dtype=dtype)
        got = hvd.allreduce_(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=1.5)
        assert got is x and x.tolist() == [int(3 * size * 1.5), -int(3 * size * 1.5)]
    with pytest.warns(DeprecationWarning, match="use op=") as caught:
        assert hvd.allreduce(torch.ones(1), average=False).item() == size
    assert caught[0].filename == __file__  # the line to be changed
    with pytest.raises(ValueError, match="cannot both be given"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)


def groups():
    import ddl_torch as hvd

    rank, size = hvd.rank(), hvd.size()
    tensors = [torch.full((n,), float(n + rank)) for n in (1, 2, 3)]
    kept = [x.clone() for x in tensors]
    sums = [torch.full((n,), float(size * n + sum(range(size)))) for n in (1, 2, 3)]
    for got in (
        hvd.grouped_allreduce(tensors, op=hvd.Sum, name="g"),
        hvd.grouped_allreduce_async(tensors, op=hvd.Sum).wait(),
    ):
        assert all(map(torch.equal, got, sums)) and all(map(torch.equal, tensors, kept))
    handle = hvd.grouped_allreduce_async_(tensors, op=hvd.Sum, name="in place")
    assert all(result is other for result, other in zip(hvd.synchronize(handle), tensors)) and all(
        map(torch.equal, tensors, sums)
    )
    rows = [torch.full((rank + k, 2), rank) for k in (0, 1)]
    for got in (hvd.grouped_allgather(rows), hvd.synchronize(hvd.grouped_allgather_async(rows, name="rows"))):
        assert [result[:, 0].tolist() for result in got] == [
            [r for r in range(size) for _ in range(r + k)] for k in (0, 1)
        ]
    wide = [torch.arange(size + k) for k in (0, 1)]
    for got in (hvd.grouped_reducescatter(wide, op=hvd.Sum), hvd.grouped_reducescatter_async(wide, op=hvd.Sum).wait()):
        assert got[0].tolist() == [rank * size]
        assert got[1].tolist() == ([0, size] if rank == 0 else [(rank + 1) * size])


def gradients():
    """What backward gives, by hand; the same as Horovod's."""
    import ddl_torch as hvd

    rank, size = hvd.rank(), hvd.size()
    ranks_sum = sum(range(size))

    def back(verb, x, upstream):
        x.requires_grad_()
        verb(x).backward(upstream)
        return x.grad.tolist()

    own = torch.full((2,), float(rank))
    assert back(lambda x: hvd.allreduce(x, op=hvd.Sum), torch.ones(2), own) == [ranks_sum] * 2
    assert back(lambda x: hvd.allreduce(x), torch.ones(2), own) == [ranks_sum / size] * 2
    got = back(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=3.0), torch.ones(2), own)
    assert got == [3.0 * ranks_sum] * 2
    got = back(lambda x: hvd.broadcast(x, root_rank=1), torch.ones(2), own)
    assert got == [ranks_sum / size if rank == 1 else 0.0] * 2
    upstream = torch.cat([torch.full((r + 1,), float(r)) for r in range(size)])
    assert back(hvd.allgather, torch.ones(rank + 1), upstream) == [float(rank)] * (rank + 1)
    assert back(hvd.alltoall, torch.ones(size), torch.full((size,), float(rank))) == [float(r) for r in range(size)]
    splits = [2] + [1] * (size - 1)
    rows = 2 * size if rank == 0 else size
    got = back(lambda x: hvd.alltoall(x, splits)[0], torch.ones(size + 1), torch.full((rows,), float(rank)))
    assert got == [0.0, *[float(r) for r in range(size)]]
    got = back(lambda x: hvd.reducescatter(x, op=hvd.Sum), torch.ones(size), torch.full((1,), float(rank)))
    assert got == [float(size * r) for r in range(size)]
    assert back(hvd.reducescatter, torch.ones(size), torch.full((1,), float(rank))) == [float(r) for r in range(size)]
    pair = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    torch.cat(hvd.grouped_allreduce(pair, op=hvd.Sum)).backward(torch.arange(5.0))
    assert [x.grad.tolist() for x in pair] == [[0.0, size], [2.0 * size, 3.0 * size, 4.0 * size]]
    pair = [torch.ones(rank + k, requires_grad=True) for k in (0, 1)]
    sum(x.sum() for x in hvd.grouped_allgather(pair)).backward()
    assert [x.grad.tolist() for x in pair] == [[1.0] * (rank + k) for k in (0, 1)]
    pair = [torch.ones(size, requires_grad=True), torch.ones(2 * size, requires_grad=True)]
    torch.cat(hvd.grouped_reducescatter(pair)).sum().backward()
    assert [x.grad.tolist() for x in pair] == [[1.0] * size, [1.0] * 2 * size]
    assert not hvd.allreduce(torch.ones(1)).requires_grad


def objects():
    import ddl_torch as hvd

    rank, size = hvd.rank(), hvd.size()
    assert hvd.broadcast_object({"epoch": rank}, root_rank=size - 1, name="state") == {"epoch": size - 1}
    assert hvd.allgather_object([rank] * rank) == [[r] * r for r in range(size)]
    # What one rank cannot send is the same error on all, at once.
    own = pytest if rank == 1 else rank
    for group in (None, hvd.world()):
        for call, who, why in (
            (lambda group: hvd.broadcast_object(own, 1, communicator=group), "broadcast_object", "allow_pickle"),
            (lambda group: hvd.allgather_object(own, communicator=group), "allgather_object", "allow_pickle"),
            (
                lambda group: hvd.broadcast_object(threading.Lock(), 1, allow_pickle=True, communicator=group),
                *("broadcast_object", "cannot pickle the object"),
            ),
        ):
            with pytest.raises(hvd.InvalidArgument, match=rf"^\[rank {rank}/{size} host \S+\] {who}: rank 1: .*{why}"):
                call(group)
    assert hvd.broadcast_object(2**70, 1) == 2**70
    hvd.barrier()


def run_all():
    import ddl_torch as hvd

    hvd.init()
    for check in (orders, unready, different, scales, groups, gradients, objects):
        check()
    # Several threads of a rank submit at once.
    results = {}

    def submit(number):
        results[number] = [hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum, name=f"t{number}").item() for _ in range(20)]

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [float(hvd.size())] * 20 for number in range(3)}


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3])
def test_named_verbs(size):
    ranks.run(size, run_all, env={"OMP_NUM_THREADS": "1"})


def run_sets():
    import ddl_torch as hvd

    rank = hvd.rank()
    even, odd = hvd.ProcessSet([2, 0]), hvd.ProcessSet([1])
    hvd.init(process_sets=[even, odd])
    assert hvd.global_process_set.process_set_id == 0 and hvd.global_process_set.size() == 3
    assert (even.process_set_id, odd.process_set_id, even.ranks, even.size()) == (1, 2, [0, 2], 2)
    own = even if rank % 2 == 0 else odd
    assert even.included() == (rank != 1) and own.rank() == rank // 2
    for _ in range(3):
        assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, process_set=own).item() == (2 if rank != 1 else 1)
    if even.included():
        assert hvd.broadcast(torch.tensor([rank]), root_rank=2, process_set=even).item() == 2
        rows, counts = hvd.alltoall(torch.arange(3) + 10 * rank, splits=[1, 2], process_set=even)
        assert counts.tolist() == ([1, 1] if rank == 0 else [2, 2])
        assert rows.tolist() == ([0, 20] if rank == 0 else [1, 2, 21, 22])
        with pytest.raises(ValueError, match="rank 1 is not in ProcessSet"):
            hvd.broadcast(torch.tensor([rank]), root_rank=1, process_set=even)
    else:
        with pytest.raises(ValueError, match=r"\[rank 1/3 host .*\] rank 1 is not in ProcessSet"):
            hvd.allreduce(torch.ones(1), process_set=even)
        with pytest.raises(ValueError, match="rank 1 is not in"):
            even.rank()
    with pytest.raises(ValueError, match=r"ranks \[0, 2\] is in use already"):
        hvd.add_process_set([0, 2])
    with pytest.raises(ValueError, match="needs ranks of 0 to 2, each once"):
        hvd.add_process_set([0, 3])
    tail = hvd.add_process_set([1, 2])
    assert hvd.process_set_by_id(tail.process_set_id) is tail
    if rank > 0:  # ranks are those of the job
        with pytest.raises(
            RuntimeError, match=rf"rank {rank}/3 .*process set 3 of ranks \[1, 2\]:.*rank 1 subm.*but rank 2"
        ):
            hvd.allreduce(torch.ones(rank), name="x", process_set=tail)
    if rank == 0:  # a set waits for none of the others
        hvd.broadcast(torch.zeros(1), root_rank=0, name="done")
    else:
        handle = hvd.broadcast_async(torch.zeros(1), root_rank=0, name="done")
        assert hvd.allgather_object(rank, process_set=tail) == [1, 2]
        assert tail.communicator.allgather(torch.tensor([rank])).tolist() == [1, 2]
        handle.wait()
    assert hvd.global_process_set.communicator is hvd.world()
    negotiator = tail.negotiator if rank > 0 else None
    assert hvd.remove_process_set(tail) and not hvd.remove_process_set(tail)
    if negotiator is not None:
        with pytest.raises(RuntimeError, match=r"ranks=\[1, 2\]\) has been removed"):
            negotiator.submit(Request(Signature("barrier"), lambda group: group.barrier_async()))
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(RuntimeError, match="is not in use"):
        tail.size()
    again = hvd.add_process_set([1, 2])
    assert again.process_set_id == 4
    for _ in range(5):  # removed ones are let go when their ranks make the next
        assert hvd.remove_process_set(again)
        hvd.add_process_set(again)
    assert len(hvd.world()._group._children) <= 5
    hvd.shutdown()
    assert even.process_set_id is None
    hvd.init(process_sets="dynamic")
    assert hvd.add_process_set([0, 1]).process_set_id == 1
    # What is refused leaves a job that was there as it is, and none that was not.
    with pytest.raises(ValueError, match=rf"\[rank {rank}/3 host \S+\] init: comm=\[0\] is not all of the 3 ranks"):
        hvd.init(comm=[0])
    assert hvd.is_initialized()
    for options in ({"comm": [0]}, {"comm": ["0"]}, {"process_sets": "all"}, {"process_sets": [hvd.ProcessSet([7])]}):
        hvd.barrier()
        hvd.shutdown()
        with pytest.raises(ValueError, match=rf"\[rank {rank}/3"):
            hvd.init(**options)
        assert not hvd.is_initialized()
        hvd.init()


@pytest.mark.processes
def test_process_sets():
    ranks.run(3, run_sets)


def run_missing():
    import ddl_torch as hvd

    hvd.init()
    if hvd.rank() == 0:
        hvd.allreduce(torch.ones(1), name="warm")
        with pytest.raises(hvd.Error) as caught:
            hvd.allreduce(torch.ones(1), name="lonely")
        with pytest.raises(hvd.Error):
            hvd.allreduce(torch.ones(1))
        return f"{type(caught.value).__name__}: {caught.value}"
    hvd.allreduce(torch.ones(1), name="warm")
    with pytest.raises(hvd.Error) as caught:
        hvd.allreduce(torch.ones(1), name="other")
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.slow  # ranks have to come within the deadline, too; a quick one is in test_negotiation_faults.py
@pytest.mark.processes
def test_an_operation_that_others_do_not_submit_ends_at_its_deadline_on_all_ranks():
    answers = ranks.run(2, run_missing, env={"DDL_TIMEOUT": "5"})
    timeouts = [answer for answer in answers if answer.startswith("CollectiveTimeout")]
    why = "which not all ranks had submitted: nothing after 5 s (DDL_TIMEOUT): rank(s)"
    told = "\n".join(answers)
    assert timeouts and all(why in answer for answer in timeouts), told
    assert any("'allreduce.lonely': allreduce(float32 of shape 1, op=Average)" in answer for answer in answers), told


def run_dying():
    import os

    import ddl_torch as hvd

    hvd.init()
    hvd.allreduce(torch.ones(1), name="warm")
    ranks.meet()
    if hvd.rank() == 1:
        os._exit(7)
    handle = hvd.allreduce_async(torch.ones(1), name="x")
    with pytest.raises(hvd.Error) as caught:
        handle.wait()
    with pytest.raises(type(caught.value)):
        hvd.allreduce(torch.ones(1), name="y")
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.processes
def test_who_dies_is_named():
    first, died, third = ranks.run(3, run_dying, may_die=[1])
    assert died == 7
    assert all("PeerLost" in answer and "lost rank 1" in answer for answer in (first, third)), (first, third)


def run_leaving():
    """A rank that shuts down fails what it had pending, and what others wait for."""
    import ddl_torch as hvd

    hvd.init()
    hvd.allreduce(torch.ones(1), name="warm")
    ranks.meet()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(torch.ones(1), name="mine")
        hvd.shutdown()
        with pytest.raises(RuntimeError, match="DDL has been shut down"):
            handle.wait()
        return ""
    with pytest.raises(hvd.Error) as caught:
        hvd.allreduce(torch.ones(1), name="x")
    return str(caught.value)


@pytest.mark.processes
def test_a_rank_that_leaves_is_named():
    answers = ranks.run(2, run_leaving)
    assert "rank 1" in answers[0], answers
