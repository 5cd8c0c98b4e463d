"""``torch.distributed`` with the backend "ddl" for tensors on a GPU: futures under the right stream, DDP, FSDP."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any, Callable, Iterator, List

import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
from core.jobs import connected
from process_groups import begin
from torch_gpu import environment, fake_gpu, on_gpu

import ddl
import ddl_torch

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # the fake device of torch is compiled first
#: What waits for results: the host, or a stream.
WAITERS = pytest.mark.parametrize("waiter", ["host", "stream"])


def in_a_group(job: Callable[..., Any], *arguments: Any, objects: bool = False) -> Any:
    """Run the job on a rank whose default group takes tensors on the fake GPU."""
    from ddl_torch import _streams
    from ddl_torch.c10d.backend import register

    with fake_gpu(objects=objects):
        assert "fake" in _streams.GPU_TYPES
        register()
        begin(os.path.join(os.environ["RANKS_FOLDER"], "store"), "cpu:ddl,fake:ddl")
        try:
            return job(*arguments)
        finally:
            dist.destroy_process_group()


def streams() -> Iterator[Any]:
    yield torch.fake.current_stream()
    yield torch.fake.Stream(priority=-1)


def futures_under_any_stream(wait: str) -> None:
    """The reproducer of pytorch's issue 170812: the last element is read at once, under another stream."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for stream in streams():
        tensors = [on_gpu(100_000, value=rank) for _ in range(6)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        futures = [work.get_future() for work in works]
        answers: List[float] = []

        def read(future: Any, stream: Any = stream, answers: Any = answers) -> None:
            with torch.fake.stream(stream):
                if wait == "then":
                    answers.append(future.then(lambda done: float((done.value()[0] + 0)[-1])).wait())
                else:
                    tensor = future.wait()[0]
                    tensor.record_stream(stream)
                    answers.append(float((tensor + 0)[-1]))

        for future in futures:
            if wait == "thread":
                thread = threading.Thread(target=read, args=(future,))
                thread.start()
                thread.join()
            else:
                read(future)
        assert answers == [size * (size - 1) / 2] * len(works)
        stream.synchronize()


@WAITERS
@pytest.mark.parametrize("wait", ["wait", "thread", "then"])
@pytest.mark.parametrize("seed", [1, 2])
def test_futures_under_any_stream(wait: str, seed: int, waiter: str) -> None:
    ranks.run(2, in_a_group_futures, wait, env={**environment(seed=seed), "DDL_GPU_WAIT": waiter})


def in_a_group_futures(wait: str) -> None:
    in_a_group(futures_under_any_stream, wait)


def written_by_a_copy(wait: str) -> None:
    """Verbs whose results are copied to their place when the core is done: on the stream of the call."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for stream in streams():
        targets = [on_gpu(300, 100, value=0.0).t() for _ in range(size)]  # not contiguous
        work = dist.all_gather(targets, on_gpu(100, 300, value=rank), async_op=True)
        with torch.fake.stream(stream):
            if wait == "future":
                work.get_future().wait()
            else:
                work.wait()
            assert [float((target + 0)[-1, -1]) for target in targets] == list(range(size))
        stream.synchronize()


def in_a_group_copies(wait: str, joined: bool) -> None:
    from ddl_torch import _streams

    if not joined:  # the test of the test
        _streams.FinishOnStream.join = lambda self: None  # type: ignore[method-assign]
    in_a_group(written_by_a_copy, wait, objects=not joined)


@WAITERS
@pytest.mark.parametrize("wait", ["wait", "future"])
def test_results_that_are_copied_to_their_place(wait: str, waiter: str) -> None:
    ranks.run(2, in_a_group_copies, wait, True, env={**environment(), "DDL_GPU_WAIT": waiter})


def test_without_the_join_it_is_noticed() -> None:
    ranks.run(2, in_a_group_copies, "wait", False, env=environment())


def every_verb() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    x = on_gpu(10, value=rank + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 10
    x = on_gpu(4, value=rank + 1.0)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    assert x.tolist() == [2.0] * 4
    bits = on_gpu(4, value=1 << rank, dtype=torch.int32)
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    assert bits.tolist() == [3] * 4
    dist.broadcast(x.fill_(rank), src=1)
    assert x.tolist() == [1.0] * 4
    dist.reduce(x, dst=0)
    assert rank or x.tolist() == [2.0] * 4
    rows = [on_gpu(3, value=-1.0) for _ in range(size)]
    dist.all_gather(rows, on_gpu(3, value=rank))
    assert [row.tolist() for row in rows] == [[0.0] * 3, [1.0] * 3]
    whole = on_gpu(6)
    dist.all_gather_into_tensor(whole, on_gpu(3, value=rank))
    assert whole.tolist() == [0.0] * 3 + [1.0] * 3
    part = on_gpu(3)
    dist.reduce_scatter_tensor(part, torch.arange(6.0).to("fake"), op=dist.ReduceOp.AVG)
    assert part.tolist() == [3.0 * rank + i for i in range(3)]
    dist.reduce_scatter(part, [on_gpu(3, value=i + 1.0) for i in range(size)])
    assert part.tolist() == [2.0 * (rank + 1)] * 3
    received = on_gpu(4)
    dist.all_to_all_single(received, on_gpu(4, value=rank))
    assert received.tolist() == [0.0, 0.0, 1.0, 1.0]
    uneven = on_gpu(2 * (rank + 1))
    dist.all_to_all_single(uneven, on_gpu(3, value=rank), [rank + 1] * 2, [1, 2])
    assert uneven.tolist() == [0.0] * (rank + 1) + [1.0] * (rank + 1)
    targets = [on_gpu(2), on_gpu(2)]
    dist.all_to_all(targets, [on_gpu(2, value=10 * rank + i) for i in range(size)])
    assert [target.tolist() for target in targets] == [[rank, rank], [10.0 + rank] * 2]
    collected = [on_gpu(2) for _ in range(size)] if rank == 0 else None
    dist.gather(on_gpu(2, value=rank), collected, dst=0)
    assert collected is None or [each.tolist() for each in collected] == [[0.0] * 2, [1.0] * 2]
    dist.scatter(part, [on_gpu(3, value=i) for i in range(size)] if rank == 0 else None, src=0)
    assert part.tolist() == [float(rank)] * 3
    objects: List[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    dist.barrier()


def messages() -> None:
    """In order, with tags, from any source, and not contiguous."""
    if dist.get_rank() == 0:
        dist.send(on_gpu(5, value=1.0), 1)
        works = [dist.isend(on_gpu(5, value=number - 5.0), 1, tag=number) for number in (7, 8)]
        dist.send(on_gpu(6, value=4.0).view(2, 3), 1)
        for work in works:
            work.wait()
        return
    x = on_gpu(5)
    dist.recv(x, 0)
    assert x.tolist() == [1.0] * 5
    side = torch.fake.Stream()
    with torch.fake.stream(side):
        y = on_gpu(5)
        work = dist.irecv(y, 0, tag=8)  # the message before it is kept
        work.wait()
        assert (y + 0).tolist() == [3.0] * 5
    dist.recv(x, 0, tag=7)
    assert x.tolist() == [2.0] * 5
    z = on_gpu(3, 2).t()
    assert dist.recv(z) == 0 and z.tolist() == [[4.0] * 3] * 2


def verbs_and_messages() -> None:
    in_a_group(lambda: (every_verb(), messages()))


@WAITERS
@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_every_verb(transport: str, waiter: str) -> None:
    ranks.run(2, verbs_and_messages, **connected(transport, **environment(), DDL_GPU_WAIT=waiter))


def network() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 32), torch.nn.Tanh()
    )


def train(model: Any, device: str, optimizer: Any, side: bool) -> None:
    stream = torch.fake.Stream() if side else torch.fake.current_stream()
    stream.wait_stream(torch.fake.current_stream())
    with torch.fake.stream(stream):
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
            x = torch.randn(4, 1, 8, 8, generator=generator).to(device)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    torch.fake.current_stream().wait_stream(stream)


def with_ddp(side: bool, as_view: bool, hook: bool = False) -> None:
    weights = []
    for device in ("cpu", "fake"):
        model = network().to(device)
        wrapped = torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=as_view, bucket_cap_mb=0.005, broadcast_buffers=True
        )
        if hook:
            wrapped.register_comm_hook(None, ddl_torch.ddp_hook)
        train(wrapped, device, torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9), side)
        weights.append([p.detach().cpu() for p in model.parameters()])
        torch.fake.synchronize()
    for left, right in zip(*weights):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    for tensor in weights[1]:
        everybody = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, tensor)
        assert torch.equal(everybody[0], everybody[1])


def ddp(side: bool, as_view: bool, hook: bool = False) -> None:
    in_a_group(with_ddp, side, as_view, hook)


def test_hook_of_ddp() -> None:
    ranks.run(2, ddp, True, True, True, env=environment())


@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
@pytest.mark.parametrize("as_view", [False, True], ids=["copied", "views"])
@WAITERS
def test_ddp(side: bool, as_view: bool, waiter: str) -> None:
    ranks.run(2, ddp, side, as_view, env={**environment(), "DDL_GPU_WAIT": waiter})


def with_fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    weights = []
    for device in ("cpu", "fake"):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8)).to(device)
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
            optimizer.zero_grad()
            model(torch.randn(4, 16, generator=generator).to(device)).square().mean().backward()
            optimizer.step()
        weights.append([p.full_tensor().detach().cpu() for p in model.parameters()])
        torch.fake.synchronize()
    for left, right in zip(*weights):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def fsdp() -> None:
    in_a_group(with_fsdp)


@WAITERS
def test_fsdp(waiter: str) -> None:
    ranks.run(2, fsdp, env={**environment(), "DDL_GPU_WAIT": waiter})


def all_reduced(y: torch.Tensor, wait: bool) -> torch.Tensor:
    work = dist.all_reduce(y, async_op=wait)
    if wait:
        assert work is not None
        work.wait()
    return y


def gathered(y: torch.Tensor, wait: bool) -> torch.Tensor:
    """As FSDP2 does."""
    rows = torch.empty(dist.get_world_size() * y.numel(), device=y.device)
    work = dist.all_gather_into_tensor(rows, y, async_op=wait)
    if wait:
        assert work is not None
        work.wait()
    return rows


VERBS = {"all_reduce": (all_reduced, [3.0]), "all_gather": (gathered, [1.0, 2.0])}


def host_goes_on(verb: str, wait: bool) -> bool:
    """While the GPU stands still, ``wait`` returns, and what is queued behind it is right when it goes on.

    So does a call whose caller waits at once (``wait`` is false: no work is asked for).
    """

    def job() -> bool:
        from device.fake_cuda import Fake

        x = on_gpu(1000, value=dist.get_rank() + 1.0)
        dist.all_reduce(x)  # the GPU is opened
        fake = Fake(reset=False)
        call, values = VERBS[verb]
        y = on_gpu(1000, value=dist.get_rank() + 1.0)
        fake.pause()
        try:
            result = call(y, wait)
            z = torch.empty(result.numel(), pin_memory=True)
            z.copy_(result, non_blocking=True)
            ahead = fake.pending() > 0
        finally:
            fake.pause(False)
        torch.fake.current_stream().synchronize()
        return ahead and z.tolist() == np.repeat(values, 1000).tolist()

    return bool(in_a_group(job))


@pytest.mark.parametrize("wait", [True, False], ids=["wait", "at once"])
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_host_goes_on_where_a_stream_waits(verb: str, wait: bool) -> None:
    assert ranks.run(2, host_goes_on, verb, wait, env={**environment(), "DDL_GPU_WAIT": "stream"}) == [True, True]


def with_an_error() -> str:
    """A rank that does not come: its peer's future has the error, at the deadline."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    if dist.get_rank() == 1:
        return "left"
    future = dist.all_reduce(on_gpu(100), group=group, async_op=True).get_future()
    with pytest.raises(RuntimeError, match="CollectiveTimeout|lost rank 1"):
        future.wait()
    return "raised"


def error() -> str:
    try:
        answer: str = in_a_group(with_an_error)
        return answer
    except ddl.Error as failed:
        return type(failed).__name__


@pytest.mark.slow
def test_a_future_has_the_error() -> None:
    first, second = ranks.run(2, error, env=environment())
    assert first == "raised" and second == "left"
