"""The verbs of ``ddl_torch`` on tensors on a GPU: right values, behind the right streams, in any thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List

import pytest
import ranks
import torch
from core.jobs import connected
from torch_gpu import environment, fake_gpu, on_gpu

import ddl
import ddl_torch

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # the fake device of torch is compiled first

TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16]
TYPES += [torch.int32, torch.int64, torch.complex64, torch.complex128]


def counted(count: int, dtype: Any, rank: int) -> torch.Tensor:
    return (torch.arange(count) % 5 + rank + 1).to(dtype)


def used_here(tensor: torch.Tensor) -> torch.Tensor:
    """Say to torch's allocator that the current stream uses the tensor, as who does that has to."""
    tensor.record_stream(torch.fake.current_stream())
    return tensor


def all_types() -> None:
    with fake_gpu():
        rank, size = ddl.rank(), ddl.size()
        for dtype in TYPES:
            expected = sum(counted(999, dtype, r) for r in range(size))
            x = counted(999, dtype, rank).to("fake")
            result = ddl_torch.allreduce(x, op=ddl.Sum)
            assert result.device == x.device and result.dtype == dtype
            assert torch.equal(result.cpu(), expected), dtype
            assert torch.equal(x.cpu(), counted(999, dtype, rank))
            assert ddl_torch.allreduce_(x, op=ddl.Sum) is x and torch.equal(x.cpu(), expected)
            rows = counted(6 * size, dtype, rank).view(2 * size, 3).to("fake")
            share = ddl_torch.reducescatter(rows, op=ddl.Sum).cpu()
            whole = sum(counted(6 * size, dtype, r) for r in range(size)).view(2 * size, 3)
            assert torch.equal(share, whole[2 * rank : 2 * rank + 2]), dtype
        for dtype in [*TYPES, torch.bool]:
            own = counted(2 + rank, dtype, rank).view(-1, 1).to("fake")
            everybody = torch.cat([counted(2 + r, dtype, r) for r in range(size)]).view(-1, 1)
            assert torch.equal(ddl_torch.allgather(own).cpu(), everybody), dtype
            assert torch.equal(ddl_torch.broadcast(own[:2].contiguous(), 1).cpu().view(-1), counted(2, dtype, 1)), dtype
            sent = counted(size, dtype, rank).to("fake")
            received = torch.stack([counted(size, dtype, r)[rank] for r in range(size)])
            assert torch.equal(ddl_torch.alltoall(sent).cpu(), received), dtype
        everything = torch.ones(3, dtype=torch.bool, device="fake")
        assert ddl_torch.allreduce(everything, op=ddl.Min).cpu().all()


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_all_types(transport: str) -> None:
    ranks.run(2, all_types, **connected(transport, **environment()))


def other_verbs() -> None:
    with fake_gpu():
        rank, size = ddl.rank(), ddl.size()
        x = on_gpu(7, value=rank + 1.0)
        total = size * (size + 1) / 2
        scaled = ddl_torch.allreduce(x, op=ddl.Sum, prescale_factor=2.0, postscale_factor=0.5)
        assert (scaled.cpu() == total).all()
        integers = ddl_torch.allreduce(on_gpu(7, value=5, dtype=torch.int32), op=ddl.Sum, postscale_factor=0.5)
        assert (integers.cpu() == 5 * size // 2).all()
        short = ddl_torch.allreduce(x, compression=ddl_torch.Compression.fp16, op=ddl.Sum)
        assert short.dtype == torch.float32 and (short.cpu() == total).all()
        transposed = torch.arange(6.0).view(2, 3).to("fake").t()
        assert torch.equal(ddl_torch.allreduce(transposed).cpu(), torch.arange(6.0).view(2, 3).t())
        with pytest.raises(ddl.InvalidArgument, match="not contiguous"):
            ddl_torch.allreduce_(transposed)
        rows, splits = ddl_torch.alltoall(on_gpu(3, 2, value=float(rank)), torch.tensor([1, 2]))
        assert splits.tolist() == [rank + 1] * 2 and rows[:, 0].tolist() == [0.0] * (rank + 1) + [1.0] * (rank + 1)
        group = ddl_torch.grouped_allreduce([on_gpu(3, value=rank), on_gpu(4, value=1.0)], op=ddl.Sum)
        assert [each.cpu()[0].item() for each in group] == [1.0, 2.0]
        gathered = ddl_torch.grouped_allgather([on_gpu(rank + 1, 2), on_gpu(2, value=rank)])
        assert gathered[0].shape == (3, 2) and gathered[1].tolist() == [0, 0, 1, 1]
        y = on_gpu(5, value=float(rank))
        assert ddl_torch.broadcast_(y, 1) is y and y.tolist() == [1.0] * 5
        if rank == 0:
            ddl_torch.send(on_gpu(4, value=3.0), 1)
        else:
            target = on_gpu(4, value=0.0)
            assert ddl_torch.recv(target, 0) is target and target.tolist() == [3.0] * 4
        collected = ddl_torch.gather(on_gpu(rank + 1, value=float(rank)), 0)
        assert collected is None if rank else collected.tolist() == [0.0, 1.0, 1.0]
        share = ddl_torch.scatter(torch.arange(4.0).to("fake") if rank == 0 else None, 0)
        assert share.tolist() == [2.0 * rank, 2.0 * rank + 1]
        both = ddl_torch.allreduce(on_gpu(8, value=rank + 1.0), op=ddl.Adasum)
        assert torch.allclose(both.cpu(), ddl_torch.allreduce(torch.full((8,), rank + 1.0), op=ddl.Adasum))
        w = on_gpu(3, value=2.0).requires_grad_()
        (ddl_torch.allreduce(w * (rank + 1), op=ddl.Sum) * torch.arange(3.0).to("fake")).sum().backward()
        assert w.grad.tolist() == [0.0, 2.0 * (rank + 1), 4.0 * (rank + 1)]
        with pytest.raises(ddl.InvalidArgument, match="is on meta"):
            ddl_torch.allreduce(torch.ones(3, device="meta"))


def test_other_verbs() -> None:
    ranks.run(2, other_verbs, env=environment())


def by_name_in_another_order() -> None:
    """A thread of the negotiator starts what ranks have agreed on: it does so behind the stream of the caller."""
    with fake_gpu():
        gpu = torch.fake
        for _ in range(3):
            works = {}
            numbers = range(6) if ddl.rank() else reversed(range(6))
            for number in numbers:
                with gpu.stream(gpu.Stream()):
                    x = on_gpu(20_000, value=number + ddl.rank())
                    works[number] = ddl_torch.allreduce_async(x, name=f"x{number}", op=ddl.Sum, prescale_factor=2.0)
            for number in range(6):
                with gpu.stream(gpu.Stream()):
                    assert (used_here(works[number].wait()) * 1 == 2 * (2 * number + 1)).all()


@pytest.mark.parametrize("seed", [1, 2])
def test_named_operations_in_another_order(seed: int) -> None:
    ranks.run(2, by_name_in_another_order, env=environment(seed=seed))


def waited_for_elsewhere() -> None:
    """Each of several threads waits under a stream of its own, and reads at once."""
    with fake_gpu():
        gpu = torch.fake

        def read(work: Any) -> float:
            with gpu.stream(gpu.Stream()):
                return float((used_here(work.wait()) + 0)[-1])

        with ThreadPoolExecutor(3) as pool:
            for _ in range(3):
                work = ddl_torch.allreduce_async_(on_gpu(50_000, value=ddl.rank()), op=ddl.Sum, postscale_factor=2.0)
                assert [each.result() for each in [pool.submit(read, work) for _ in range(3)]] == [2.0] * 3


def test_results_are_read_under_any_stream() -> None:
    ranks.run(2, waited_for_elsewhere, env=environment())


def without_the_streams(what: str) -> None:
    """The test of the test: work is done on whatever stream is current in the thread that does it."""
    from ddl_torch import _streams

    with fake_gpu(objects=True):
        if what == "call":
            _streams.StreamOfCall.bind = lambda self, function: function  # type: ignore[method-assign]
            by_name = ddl_torch.allreduce_async  # started by another thread
            gpu = torch.fake
            for number in range(4):
                with gpu.stream(gpu.Stream()):
                    x = on_gpu(50_000, value=1.0)
                    work = by_name(x, name=f"x{number}", op=ddl.Sum)
                if threading.current_thread() is threading.main_thread():
                    work.wait()
        else:
            _streams.FinishOnStream.join = lambda self: None  # type: ignore[method-assign]
            side = torch.fake.Stream()
            work = ddl_torch.allreduce_async_(on_gpu(50_000), op=ddl.Sum, postscale_factor=2.0)
            with torch.fake.stream(side):
                (work.wait() + 0).cpu()


@pytest.mark.parametrize("what", ["call", "join"])
def test_without_the_right_streams_it_is_noticed(what: str) -> None:
    ranks.run(2, without_the_streams, what, env=environment())


def dropped_at_once() -> None:
    """Tensors that the caller drops live until the GPU has copied them: their memory is not given to others before."""
    with fake_gpu():
        works: List[Any] = []
        for number in range(20):
            works.append(ddl_torch.allreduce_async(on_gpu(30_000, value=number), op=ddl.Sum))
            on_gpu(30_000, value=-1.0)  # the allocator gives free memory of this size to this
        for number, work in enumerate(works):
            assert (work.wait() == 2 * number).all()
        for number in range(10):
            ddl_torch.allreduce_async_(on_gpu(30_000, value=number), op=ddl.Sum)  # nobody waits
            on_gpu(30_000, value=-1.0)
        ddl_torch.barrier()


def test_tensors_live_until_the_gpu_has_copied_them() -> None:
    ranks.run(2, dropped_at_once, env=environment())


def not_kept() -> None:
    """The test of the test: DDL is not told whose memory it is, so nobody keeps the tensor."""
    from ddl import _core

    with fake_gpu(objects=True):
        for _ in range(5):
            x = on_gpu(3_000_000)
            stream = torch.fake.current_stream().cuda_stream
            work = ddl.allreduce_async_(_core.GpuMemory(x.data_ptr(), x.numel(), "float32", stream, None))
            del x
            y = on_gpu(3_000_000, value=-1.0)  # gets its memory
            work.wait()
            del y


def test_a_tensor_that_nobody_keeps_is_noticed() -> None:
    ranks.run(2, not_kept, env=environment())


def during_a_capture() -> None:
    with fake_gpu() as fake:
        stream = torch.fake.Stream()
        x = on_gpu(10)
        torch.fake.synchronize()
        with torch.fake.stream(stream):
            fake.capture_begin(stream.cuda_stream)
            for verb in (ddl_torch.allreduce, ddl_torch.allreduce_, ddl_torch.allgather, ddl_torch.allreduce_async):
                with pytest.raises(ddl.InvalidState, match="graph is being captured"):
                    verb(x)
            assert fake.capture_end(stream.cuda_stream) == 0  # it is still valid
            assert (ddl_torch.allreduce(x, op=ddl.Sum).cpu() == 2).all()


def test_a_capture_is_refused_and_stays_valid() -> None:
    ranks.run(2, during_a_capture, env=environment())


def mixed() -> None:
    """Rank 0 has its tensors on a GPU, rank 1 on the CPU."""
    with fake_gpu():
        device = "cpu" if ddl.rank() else "fake"
        x = torch.full((70_000,), ddl.rank() + 1.0, device=device)
        assert (ddl_torch.allreduce(x, op=ddl.Sum).cpu() == 3).all()
        assert ddl_torch.allgather(x[:2]).tolist() == [1.0, 1.0, 2.0, 2.0]
        assert ddl_torch.broadcast(x, 1)[0].item() == 2.0


def test_ranks_may_differ_in_where_their_tensors_are() -> None:
    ranks.run(2, mixed, env=environment())


def contexts_of_a_new_thread(heedful: bool) -> List[int]:
    """Return how many contexts there are before and after a thread has done what is left of a verb, on GPU 1."""
    from device.fake_cuda import Fake
    from device.fake_torch import install

    from ddl_torch import _streams

    gpu = install()
    _streams.GPU_TYPES.add("fake")
    fake = Fake(reset=False, start=False)  # nothing uses GPU 0
    gpu.set_device(1)
    x = torch.ones(10, device="fake:1")
    stream = _streams.StreamOfCall(x.device)
    before = fake.live("contexts")
    if not heedful:  # the test of the test: only the stream is made current there
        stream.bind = lambda function: lambda: _on_stream_alone(gpu, stream, function)  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stream.bind(lambda: x.add_(1))).result(100)
    assert x.cpu().eq(2).all()
    return [before, fake.live("contexts")]


def _on_stream_alone(gpu: Any, stream: Any, function: Any) -> Any:
    with gpu.stream(stream._stream):
        return function()


def test_a_new_thread_makes_no_context_on_another_gpu() -> None:
    assert ranks.run(1, contexts_of_a_new_thread, True, env=environment(devices=2)) == [[1, 1]]
    assert ranks.run(1, contexts_of_a_new_thread, False, env=environment(devices=2)) == [[1, 2]]
