"""Ranks that die, fail or stop while operations are negotiated, and many at once: nobody waits longer than needed."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import time

import numpy as np
import pytest
import ranks
from negotiation.deadlines import expire, set_deadline

torch = pytest.importorskip("torch")


def negotiate(start):
    """Submit an all-reduce of three numbers under the name "x", whose own part on this rank is ``start``."""
    import ddl_torch as hvd
    from ddl.negotiation import Request, Signature

    signature = Signature("allreduce", (("float32", (3,)),), "op=Sum")
    return hvd.global_process_set.negotiator.run(Request(signature, start, "allreduce.x", start))


def submit(start):
    """As ``negotiate``, but return at once; ``start`` does, too."""
    import ddl_torch as hvd
    from ddl.negotiation import Request, Signature

    return hvd.global_process_set.negotiator.submit(Request(Signature("barrier"), start, "barrier.x"))


def run_failing_within(how):
    """Rank 1 fails in the operation itself, which all ranks have agreed to run."""
    import ddl_torch as hvd

    def fail(_):
        if how == "dies":
            os._exit(7)
        raise MemoryError("no room")

    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        with pytest.raises(MemoryError):
            negotiate(fail)
        ranks.meet()  # it has left nothing that others could notice but what it told them
        return ""
    with pytest.raises(hvd.HorovodInternalError) as caught:
        if hvd.rank() == 0:
            hvd.allreduce(torch.ones(3), op=hvd.Sum, name="x")
        else:
            hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="x").wait()
    with pytest.raises(type(caught.value), match="'allreduce.later'"):
        hvd.allreduce(torch.ones(3), name="later")
    if how == "raises":
        ranks.meet()
    return str(caught.value)


@pytest.mark.processes
@pytest.mark.faults
@pytest.mark.parametrize(("how", "why"), [("dies", "lost rank 1"), ("raises", "MemoryError('no room')")])
def test_a_failure_within_an_operation_ends_it_at_once_on_all_ranks(how: str, why: str):
    answers = ranks.run(3, run_failing_within, how, may_die=[1] if how == "dies" else [])
    for rank in (0, 2):
        start = rf"\[rank {rank}/3 host .*\] 'allreduce.x': allreduce\(float32 of shape 3, op=Sum\)"
        assert re.match(start, answers[rank]) and why in answers[rank], answers


def run_stopped():
    import ddl_torch as hvd

    hvd.init()
    hvd.barrier()
    ranks.meet()
    set_deadline(hvd.global_process_set.negotiator, 1)
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    with pytest.raises(hvd.Error) as caught:
        hvd.allreduce(torch.ones(3), name="x")
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.processes
@pytest.mark.faults
def test_a_rank_that_stops_is_named_at_the_deadline():
    first, _ = ranks.run(2, run_stopped, stopped=[1])
    assert re.match(r"CollectiveTimeout: \[rank 0/2 host .*\] 'allreduce.x'", first) and "rank 1" in first, first


def run_polling():
    """Each rank submits another name and only looks whether it has ended."""
    import ddl_torch as hvd

    hvd.init()
    handle = hvd.allreduce_async(torch.ones(3), name="ab"[hvd.rank()])
    assert not hvd.poll(handle)
    expire(hvd.global_process_set.negotiator)
    deadline = time.monotonic() + 60
    while not hvd.poll(handle):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.synchronize(handle)
    return str(caught.value)


@pytest.mark.processes
@pytest.mark.faults
def test_polling_ends_at_the_deadline():
    answers = ranks.run(2, run_polling)
    assert all("which not all ranks had submitted" in answer and "more time" in answer for answer in answers), answers


def run_slow():
    """The time to wait for all ranks is over while what they have agreed on begins, on rank 1 after rank 0."""
    import ddl
    import ddl_torch as hvd

    hvd.init()
    hvd.barrier()
    submitted = threading.Event()

    def start(group):
        submitted.wait()
        pending._deadline = time.monotonic()
        if hvd.rank() == 1:
            ranks.meet()  # rank 0 waits for the operation itself
            time.sleep(0.1)
        return group.allreduce_async(np.ones(3), op=ddl.Sum)

    pending = submit(start)
    submitted.set()
    if hvd.rank() == 0:
        assert pending.settled(60)
        ranks.meet()
    return pending.wait().tolist()


@pytest.mark.processes
@pytest.mark.faults
def test_waiting_for_ranks_and_running_have_a_deadline_each():
    assert ranks.run(2, run_slow) == [[2.0] * 3] * 2


def run_refusing(error):
    """Rank 0 alone refuses what all ranks have agreed to run."""
    import ddl
    import ddl_torch as hvd

    hvd.init()
    with pytest.raises(ValueError, match="a name must be Unicode text"):
        hvd.allreduce(torch.ones(3), name="\ud800")  # on any rank, and nothing has happened
    hvd.barrier()

    def refuse(_):
        raise getattr(ddl, error)("only here")

    with pytest.raises(hvd.Error, match="only here"):
        submit(refuse if hvd.rank() == 0 else lambda group: group.barrier_async()).wait()
    with pytest.raises(hvd.Error, match="only here"):
        hvd.barrier()


@pytest.mark.processes
@pytest.mark.faults
@pytest.mark.parametrize("error", ["InvalidArgument", "InternalError"])
def test_who_refuses_alone_tells_the_others(error):
    ranks.run(2, run_refusing, error)


def run_interrupted(known):
    """Ctrl-C comes where rank 0 has just submitted an operation, before it goes from round to round itself."""
    import ddl_torch as hvd
    from ddl.negotiation import Negotiator

    hvd.init()
    if known:
        hvd.allreduce(torch.ones(3), name="x")
    if hvd.rank() == 0:

        def interrupt(frame, event, _):
            if frame.f_code is Negotiator._drive.__code__:
                sys.settrace(None)
                raise KeyboardInterrupt

        sys.settrace(interrupt)
        with pytest.raises(KeyboardInterrupt):
            hvd.allreduce(torch.ones(3), name="x")
    else:
        assert hvd.allreduce(torch.ones(3), name="x").tolist() == [1.0] * 3
    return hvd.allreduce(torch.ones(1), op=hvd.Sum, name="y").item()


@pytest.mark.processes
@pytest.mark.parametrize("known", [False, True])
def test_an_interrupt_before_the_first_round_leaves_everything_whole(known):
    assert ranks.run(2, run_interrupted, known) == [2.0, 2.0]


def run_many():
    """Two hundred operations of all kinds at once, in another order on each rank; then many names, each once."""
    import ddl_torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    total = float(sum(range(size)))
    own = torch.full((2, 3), float(rank)).t()  # not contiguous
    kinds = [
        (hvd.allreduce_async, {"op": hvd.Sum}, lambda got: got.shape == (3, 2) and got.eq(total).all()),
        (hvd.broadcast_async, {"root_rank": size - 1}, lambda got: got.eq(size - 1).all()),
        (hvd.allgather_async, {}, lambda got: got[:, 0].tolist() == [r for r in range(size) for _ in range(3)]),
        (hvd.reducescatter_async, {"op": hvd.Sum}, lambda got: len(got) == (rank < 3) and got.eq(total).all()),
    ]
    order = list(range(200))
    random.Random(rank).shuffle(order)
    handles = {i: kinds[i % 4][0](own, name=str(i), **kinds[i % 4][1]) for i in order}
    random.Random(-rank).shuffle(order)
    assert all(kinds[i % 4][2](hvd.synchronize(handles[i])) for i in order)
    for step in range(2):
        names = random.Random(rank).sample(range(500 * step, 500 * step + 500), 500)
        handles = {i: hvd.allreduce_async_(torch.tensor(i), op=hvd.Max, name=f"step {i}") for i in names}
        assert all(hvd.synchronize(handle).item() == i for i, handle in handles.items())
    for dtype in (torch.bool, torch.complex64, torch.float32):
        for shape in ((), (0, 3), (1,)):
            tensor = torch.ones(shape, dtype=dtype)
            assert torch.equal(
                hvd.allreduce(tensor, op=hvd.Sum, name="shape").bool(), tensor.bool()
            )  # a name used again


@pytest.mark.slow
@pytest.mark.processes
def test_many_operations_at_once():
    ranks.run(4, run_many, env={"OMP_NUM_THREADS": "1"})


def run_arguments():
    import ddl_torch as hvd

    hvd.init()
    tensor = torch.ones(2)
    for compression in (hvd.Compression.int8, hvd.Compression.powersgd, "powersgd", 3):
        for verb, data in ((hvd.allreduce, tensor), (hvd.reducescatter, tensor), (hvd.grouped_allreduce, [tensor])):
            with pytest.raises(ValueError, match=r"is not for single tensors.*Compression\.fp16"):
                verb(data, compression=compression)
    with pytest.raises(ValueError, match="op=1 is no operator"):  # Horovod's number of Sum
        hvd.allreduce(tensor, op=1)
    with pytest.raises(ValueError, match="3 is no handle"):
        hvd.poll(3)
    assert hvd.alltoall(tensor, splits=[2])[1].dtype == torch.int32
    assert hvd.alltoall(tensor, splits=torch.tensor([2]))[1].dtype == torch.int64


@pytest.mark.processes
def test_arguments_of_horovod_that_are_refused_or_converted():
    ranks.run(1, run_arguments)
