"""Arrays on a GPU in the calls of ``ddl``: right values, of each verb, size and type, on the fake driver."""

from __future__ import annotations

import gc
from typing import Any, List

import numpy as np
import pytest
import ranks
from core.jobs import connected
from device.fake_checks import OLDER
from device.fake_cuda import DeviceArray, Fake, library
from device.fake_cuda.array import ImportedArray
from device.jobs import WAITS, Interface, array_of, driver, environment, gpu, total

import ddl

pytestmark = pytest.mark.processes
#: Elements: none, one, around a cache line, and as many as make several pieces of a large operation.
SIZES = [0, 1, 15, 16, 17, 1009, 300_007, 3_000_001]
TYPES = ["float16", "float32", "float64", "int8", "int32", "uint64"]


def averages_and_sums() -> None:
    """Each size and type, in place, by both protocols; blocking and not."""
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        for number, count in enumerate(SIZES):
            dtype = TYPES[number % len(TYPES)]
            values = (np.arange(count) % 5 + rank + 1).astype(dtype)
            expected = ((np.arange(count) % 5) * size + total(size)).astype(dtype)
            stream = fake.stream()
            x = array_of(fake, values, stream=stream)
            assert ddl.allreduce_(x, op="sum") is x
            assert np.array_equal(x.numpy(), expected), (count, dtype)
            y = array_of(fake, values, stream=stream)
            y.interface_stream = stream
            work = ddl.allreduce_async_(Interface(y), op="sum", name="of y")
            assert isinstance(work.wait(), Interface)
            assert np.array_equal(y.numpy(), expected), (count, dtype)
        assert not [stream for stream in x.requested if stream in (None, 0)]  # DDL names its own stream


@pytest.mark.few(1)
@WAITS
@pytest.mark.parametrize("transport", ["shared", "tcp", "hybrid"])
def test_sums_have_the_right_values(transport: str, wait: str) -> None:
    env = {**environment(), "DDL_GPU_WAIT": wait}
    ranks.run(4 if transport == "hybrid" else 2, averages_and_sums, **connected(transport, **env))


def how_arrivals_are_told() -> List[int]:
    averages_and_sums()
    fake = Fake(reset=False)
    return [fake.calls("cuStreamWriteValue32_v2"), fake.calls("cuEventRecord")]


@pytest.mark.slow
@pytest.mark.fake_driver("it counts calls, and there is an older driver")
def test_arrivals_are_words_that_streams_write_or_events_with_an_older_driver() -> None:
    newer = ranks.run(2, how_arrivals_are_told, env=environment())
    older = ranks.run(2, how_arrivals_are_told, env={**environment(), "DDL_CUDA_LIBRARY": str(library(*OLDER))})
    refusing = ranks.run(2, how_arrivals_are_told, env=environment(refuse={"cuStreamWriteValue32_v2": 801}))
    assert newer[0][0] > 20 and older[0][0] == 0 and 1 <= refusing[0][0] <= 3  # asked when the GPU is opened
    assert newer[0][1] < older[0][1]  # a piece needs no event


@pytest.mark.slow
@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_sums_with_few_queues_of_the_hardware(queues: int, seed: int) -> None:
    ranks.run(2, averages_and_sums, env=environment(queues=queues, seed=seed))


def other_calls() -> None:
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        x = array_of(fake, np.full(100_003, rank, np.float32))
        ddl.broadcast_(x, root=1)
        assert (x.numpy() == 1).all()
        x.set(rank)
        ddl.broadcast_async_(x, root=0).wait()
        assert (x.numpy() == 0).all()

        rows = array_of(fake, np.full((3, 5), rank, np.int32))
        gathered = array_of(fake, np.zeros((3 * size, 5), np.int32))
        assert ddl.allgather(rows, out=gathered) is gathered
        assert (gathered.numpy() == np.repeat(np.arange(size), 3)[:, None]).all()
        on_cpu = np.empty((3 * size, 5), np.int32)
        assert (ddl.allgather(rows, out=on_cpu) == gathered.numpy()).all()

        whole = array_of(fake, np.full((4 * size, 7), rank + 1, np.float64))
        own = array_of(fake, np.zeros((4, 7)))
        ddl.reducescatter(whole, out=own, op="sum")
        assert (own.numpy() == total(size)).all()

        blocks = array_of(fake, np.repeat(np.arange(size, dtype=np.int64) + 10 * rank, 2))
        received = array_of(fake, np.zeros(2 * size, np.int64))
        ddl.alltoall(blocks, out=received)
        assert received.numpy().tolist() == [rank + 10 * peer for peer in range(size) for _ in range(2)]

        message = array_of(fake, np.full(70_001, 7.0 + rank, np.float32))
        right, left = (rank + 1) % size, (rank - 1) % size
        target = array_of(fake, np.zeros(70_001, np.float32))
        works = [ddl.send_async(message, right), ddl.recv_async(target, left)]
        for work in works:
            work.wait()
        assert (target.numpy() == 7.0 + left).all()

        step = ddl.world().prepare_allreduce(array_of(fake, np.full(2048, rank, np.float32)))
        for _ in range(3):
            assert (step().numpy() == (size - 1) / 2).all()
        assert "made anew each time" in repr(step)


@pytest.mark.few(3)
@WAITS
@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_other_calls_have_the_right_values(transport: str, wait: str) -> None:
    ranks.run(3, other_calls, **connected(transport, **environment(), DDL_GPU_WAIT=wait))


def new_arrays() -> None:
    """Verbs that return a new array return one on the GPU, of any size by rank."""
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        x = array_of(fake, np.full((2, 3), rank + 1, np.float32))
        assert (ddl.allreduce(x, op="sum").numpy() == total(size)).all()
        assert (ddl.world().allreduce_async(x, op="max").wait().numpy() == size).all()
        assert (ddl.broadcast(x, 1).numpy() == 2).all() and (x.numpy() == rank + 1).all()
        rows = array_of(fake, np.full((rank + 1, 2), rank, np.int64))
        everybody = np.repeat(np.arange(size), np.arange(size) + 1)[:, None] * np.ones((1, 2), int)
        assert np.array_equal(ddl.allgather(rows).numpy(), everybody)
        gathered = ddl.gather(rows, 1)
        assert np.array_equal(gathered.numpy(), everybody) if rank == 1 else gathered is None
        values = np.arange(size * 2 + 1, dtype=np.float64)[:, None] * np.ones((1, 5))
        whole = array_of(fake, values)
        lengths = [2 + (each == 0) for each in range(size)]
        start = sum(lengths[:rank])
        share = values[start : start + lengths[rank]]
        assert np.array_equal(ddl.reducescatter(whole, op="sum").numpy(), share * size)
        assert np.array_equal(ddl.scatter(whole, 0).numpy(), share)
        reduced = ddl.reduce(x, 0, op="sum")
        assert (reduced.numpy() == total(size)).all() if rank == 0 else reduced is None
        sent = array_of(fake, np.full(size * (size + 1) // 2, rank, np.float32))
        received, counts = ddl.alltoall(sent, [peer + 1 for peer in range(size)])
        assert counts.tolist() == [rank + 1] * size
        assert received.numpy().tolist() == [peer for peer in range(size) for _ in range(rank + 1)]
        empty = array_of(fake, np.zeros((0, 4), np.float32))
        assert ddl.allgather(empty).shape == (0, 4)
        with pytest.raises(ddl.InvalidArgument, match="cannot make an array for the result"):
            ddl.allreduce(Interface(x))
        assert ddl.scatter(whole if rank == 0 else None, 0).shape == (lengths[rank], 5)


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_verbs_return_new_arrays_on_the_gpu(transport: str) -> None:
    ranks.run(3, new_arrays, **connected(transport, **environment()))


class Immutable:
    """An array as JAX's: nobody may write it, and results come in by DLPack when they are complete."""

    __module__ = "jaxlib.fake"

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self.shape, self.dtype, self.device = array.shape, array.dtype, array.device

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __array_namespace__(self) -> Immutable:
        return self

    def from_dlpack(self, producer: Any) -> ImportedArray:
        return ImportedArray(self.array.fake, producer)


def in_immutable_arrays() -> None:
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        x = Immutable(array_of(fake, np.full((3, 5), rank + 1, np.float32)))
        total_of_x = ddl.allreduce(x, op="sum")
        assert total_of_x.shape == (3, 5) and (total_of_x.numpy() == total(size)).all()
        rows = Immutable(array_of(fake, np.full((rank + 1, 2), rank, np.int16)))
        everybody = np.repeat(np.arange(size), np.arange(size) + 1)[:, None] * np.ones((1, 2), int)
        assert np.array_equal(ddl.allgather(rows).numpy(), everybody)
        work = ddl.world().broadcast_async(x, 1)
        assert (work.wait().numpy() == 2).all() and work.wait() is work.wait() and work.done()
        pairs = Immutable(array_of(fake, np.full(4, rank + 1j, np.complex64)))
        total_of_pairs = ddl.allreduce(pairs, op="sum")
        assert total_of_pairs.dtype == np.complex64
        assert (total_of_pairs.numpy() == sum(range(size)) + size * 1j).all()
        with pytest.raises(ddl.InvalidArgument, match="op=ddl.Max is not defined for them"):
            ddl.allreduce(pairs, op="max")
        received, counts = ddl.alltoall(Immutable(array_of(fake, np.ones(2 * size, np.bool_))), [2] * size)
        assert counts.tolist() == [2] * size and received.dtype == np.bool_
        with pytest.raises(ddl.InvalidArgument, match="cannot be written"):
            ddl.allreduce_(x)
        streams = fake.calls("cuStreamCreateWithPriority")
        for _ in range(5):
            ddl.allreduce(x, op="sum")
        assert fake.calls("cuStreamCreateWithPriority") == streams  # a result needs none of its own
        before = fake.live("allocations")
        del total_of_x, total_of_pairs, received, work
        gc.collect()
        assert fake.live("allocations") < before  # memory of DDL's own goes with the last array of it


@pytest.mark.fake_driver("its arrays stand for those of JAX")
def test_results_for_frameworks_whose_arrays_nobody_may_write() -> None:
    ranks.run(2, in_immutable_arrays, env=environment())


def mixed() -> None:
    """Rank 0 has its array on a GPU, the others have theirs on the CPU."""
    for count in (1, 40_000, 3_000_001):
        values = np.full(count, ddl.rank() + 1, np.float32)
        if ddl.rank() > 0:
            assert (ddl.allreduce_(values, op="sum") == total(ddl.size())).all()
            continue
        fake = driver()
        x = array_of(fake, values)
        ddl.allreduce_(x, op="sum")
        assert (x.numpy() == total(ddl.size())).all() and fake.violations == []
    ddl.shutdown()


def test_ranks_may_differ_in_where_their_arrays_are() -> None:
    ranks.run(3, mixed, env=environment())


def empty_ones() -> None:
    with gpu() as fake:
        x = array_of(fake, np.ones(1, np.float32))
        ddl.allreduce_(x)
        before = fake.live("streams")
        for _ in range(20):
            ddl.allreduce_(array_of(fake, np.zeros(0, np.float32)))
        assert fake.live("streams") == before
        ddl.allreduce_(x)


@pytest.mark.fake_driver("it counts streams")
def test_empty_arrays_leave_no_streams() -> None:
    ranks.run(2, empty_ones, env=environment())
