"""Streams that wait for results (DDL_GPU_WAIT=stream): the host goes on, what comes later is right."""

from __future__ import annotations

import ctypes
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List

import numpy as np
import pytest
import ranks
from core.jobs import connected
from device.fake_checks import OLDER
from device.fake_cuda import DeviceArray, Fake, library
from device.jobs import Interface, array_of, gpu, total

import ddl

pytestmark = pytest.mark.processes
N = 300_000


def by_streams(**options: Any) -> Dict[str, str]:
    return {**Fake.environment(**options), "DDL_GPU_WAIT": "stream"}


def reader(fake: Fake, array: DeviceArray, stream: int) -> Any:
    """Queue a copy of the array to the host on the stream; return a function that waits for it and returns it."""
    memory = fake.host(array.nbytes)
    fake.copy_down(memory.address, array.pointer, array.nbytes, stream)

    def read() -> np.ndarray:
        fake.finish(stream)
        fake.access(memory.address, array.nbytes, writes=False)
        return memory.view(array.dtype).copy()

    return read


def read_behind_the_result() -> None:
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        for count in (0, 1, 1009, N, 3_000_001):
            stream, other = fake.stream(), fake.stream()
            x = array_of(fake, np.full(count, rank + 1, np.float32), stream=stream)
            y = array_of(fake, np.full(2 * count, rank, np.int32), stream=stream)
            out = array_of(fake, np.zeros(2 * count * size, np.int32), stream=other)
            out.interface_stream, y.interface_stream = other, stream
            first = ddl.allreduce_async_(x, op="sum")
            if count == 0:
                assert not first.wait_on(stream)
                first.wait()
                continue
            assert first.wait_on(stream) and first.wait_on(other)
            reads = [reader(fake, x, each) for each in (stream, other)]
            assert all((read() == total(size)).all() for read in reads)
            second = ddl.broadcast_async_(y, 1)
            assert second.wait_on(other)
            assert (reader(fake, y, other)() == 1).all()
            assert ddl.allgather(Interface(y), out=Interface(out)).array is out
            assert (out.numpy() == 1).all()


def test_a_gpu_that_knows_memory_of_the_host_by_other_addresses() -> None:
    for wait in ("stream", "host"):
        env = by_streams(options={"shifted_addresses": 1})
        assert ranks.run(2, only_the_host, env={**env, "DDL_GPU_WAIT": wait}) == [wait == "stream"] * 2


@pytest.mark.few(1)
@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.parametrize("queues", [0, 8])
def test_what_comes_behind_the_wait_sees_the_result(transport: str, queues: int) -> None:
    ranks.run(2, read_behind_the_result, **connected(transport, **by_streams(queues=queues)))


def many_in_the_same_order() -> None:
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        rng = np.random.default_rng(7)
        stream = fake.stream()
        for _ in range(3):
            counts = [int(n) for n in rng.choice([1, 997, 65_537, 1_200_001], 12)]
            arrays = [array_of(fake, np.full(n, rank + i, np.float32), stream=stream) for i, n in enumerate(counts)]
            works = [ddl.allreduce_async_(x, op="sum") for x in arrays]
            assert all(work.wait_on(stream) for work in works)
            reads = [reader(fake, x, stream) for x in arrays]
            for i, read in enumerate(reads):
                assert (read() == size * i + size * (size - 1) // 2).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("queues", [1, 2, 8])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_deadlock_with_few_queues_of_the_hardware(queues: int, seed: int) -> None:
    ranks.run(2, many_in_the_same_order, env=by_streams(queues=queues, seed=seed))


def in_another_order() -> str:
    """The test of the test: with one queue, what ranks call in another order waits for itself; that is no hang."""
    fake = Fake(reset=False)
    other = ddl.world().split(0)
    arrays = [array_of(fake, np.ones(N, np.float32), stream=fake.stream()) for _ in range(2)]
    for communicator, x in zip((ddl.world(), other), arrays):
        communicator.allreduce_(x)
    ranks.meet()
    for communicator in (ddl.world(), other):
        communicator.set_timeout(1.0)
    calls = [(ddl.world(), arrays[0]), (other, arrays[1])]
    works = [each.allreduce_async_(x) for each, x in (calls if ddl.rank() == 0 else reversed(calls))]
    with pytest.raises(ddl.Error) as caught:
        for work in works:
            work.wait()
    ddl.shutdown()
    return type(caught.value).__name__


@pytest.mark.slow
def test_another_order_is_noticed_at_the_deadline() -> None:
    assert set(ranks.run(2, in_another_order, env=by_streams(queues=1))) <= {"CollectiveTimeout", "PeerLost", "Aborted"}


def before_anything_has_run() -> bool:
    """The GPU stands still until both calls have returned: if one waited for the result, it would do so for good."""
    with gpu() as fake:
        stream = fake.stream()
        fake.pause()
        x = array_of(fake, np.full(N, ddl.rank() + 1.0, np.float32), stream=stream)
        work = ddl.allreduce_async_(x, op="sum")
        assert work.wait_on(stream)
        read = reader(fake, x, stream)
        pending = not work.done()
        fake.pause(False)
        assert (read() == 3).all()
        return pending


def test_the_host_does_not_wait_for_the_result() -> None:
    assert ranks.run(2, before_anything_has_run, env=by_streams()) == [True, True]


def messages_meanwhile() -> None:
    """A message arrives while an earlier all-reduce waits for the other rank, which needs that message first."""
    with gpu() as fake:
        x, y, z = (array_of(fake, np.full(N, ddl.rank() + 1, np.float32), stream=fake.stream()) for _ in range(3))
        if ddl.rank() == 0:
            work = ddl.allreduce_async_(x, op="sum")
            ddl.world().recv(y, 1)
            ddl.world().send(y, 1)
            work.wait()
        else:
            ddl.world().send(y, 0)
            ddl.world().recv(z, 0)
            ddl.allreduce_(x, op="sum")
            assert (z.numpy() == 2).all()
        assert (x.numpy() == 3).all()


def test_messages_do_not_wait_for_collectives() -> None:
    ranks.run(2, messages_meanwhile, env=by_streams(queues=0))


def in_memory_that_is_not_registered() -> None:
    """The first slab is registered, and with it the words; the second one is refused."""
    fake = Fake(reset=False)
    ddl.allreduce_(array_of(fake, np.ones(10, np.float32)))
    x = array_of(fake, np.full(17_000_001, ddl.rank() + 1, np.float32))  # 68 MB: another slab
    fake.refuse("cuMemHostRegister_v2", 2)
    with pytest.warns(RuntimeWarning, match="slower way"):
        work = ddl.allreduce_async_(x, op="sum")
    assert not work.can_wait_on()
    work.wait()
    assert (x.numpy() == 3).all()
    ddl.shutdown()


def test_without_registered_staging_the_host_waits() -> None:
    ranks.run(2, in_memory_that_is_not_registered, env=by_streams(strict=False))


def without_the_wait() -> List[str]:
    fake = Fake(reset=False)
    stream = fake.stream()
    x = array_of(fake, np.ones(N, np.float32), stream=stream)
    work = ddl.allreduce_async_(x, op="sum")
    reader(fake, x, fake.stream())()  # the test of the test: nobody has said that this stream is to wait
    work.wait()
    return list(fake.violations)


def test_the_ledger_objects_if_a_stream_does_not_wait() -> None:
    assert all(ranks.run(2, without_the_wait, env=by_streams()))


def words_not_waited_for() -> List[str]:
    fake = Fake(reset=False)
    stream = fake.stream()
    x = array_of(fake, np.ones(N, np.float32), stream=stream)
    ddl.allreduce_(x)
    assert fake.violations == []
    fake.refuse("cuStreamWaitValue32_v2", 0)  # it says that it has worked, and does nothing
    x.set(1.0)
    try:
        ddl.allreduce_async_(x).wait()
    except ddl.Error as error:  # what comes of it is luck
        print(error)
    return list(fake.violations)


def test_the_ledger_objects_if_copies_up_do_not_wait_for_the_word() -> None:
    assert all(ranks.run(2, words_not_waited_for, env=by_streams()))


def while_a_thread_frees() -> List[bool]:
    """Freeing memory waits for the GPU under the driver's lock; results come all the same, as no lane calls it."""
    with gpu() as fake:
        stream = fake.stream()
        x = array_of(fake, np.full(N, ddl.rank() + 1, np.float32), stream=stream)
        ddl.allreduce_(x, op="max")
        work = ddl.allreduce_async_(x, op="sum")
        assert work.wait_on(stream)
        memory, context = fake.alloc(64), fake.context()
        fake.option("free_waits")

        def free() -> bool:
            fake.set_context(context)
            fake.free(memory)
            return True

        with ThreadPoolExecutor(1) as pool:
            freed = pool.submit(free).result(100)
        assert (reader(fake, x, stream)() == ddl.size() * 2).all()
        return [freed]


def test_a_thread_that_frees_memory_and_the_results_wait_for_nothing_of_each_other() -> None:
    assert ranks.run(2, while_a_thread_frees, env=by_streams(queues=1)) == [[True]] * 2


def loses_a_rank() -> str:
    fake = Fake(reset=False)
    stream = fake.stream()
    arrays = [array_of(fake, np.ones(N, np.float32), stream=stream) for _ in range(3)]
    for x in arrays:
        ddl.allreduce_(x)
    ranks.meet()
    if ddl.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    reads = []
    with pytest.raises(ddl.PeerLost):
        for x in arrays:
            work = ddl.allreduce_async_(x)
            assert work.wait_on(stream)
            reads.append(reader(fake, x, stream))
        work.wait()
    for read in reads:
        read()  # no stream waits for ever
    with pytest.raises(ddl.PeerLost, match="lost rank 1"):
        ddl.allreduce_(arrays[0])
    ddl.shutdown()
    assert fake.violations == []
    assert all(x.released == len(x.requested) for x in arrays)
    return "ended"


@pytest.mark.faults
def test_a_lost_rank_leaves_no_stream_waiting() -> None:
    first, died, third = ranks.run(3, loses_a_rank, env=by_streams(), may_die=[1])
    assert first == third == "ended" and died == -signal.SIGKILL


def abandoned_before_its_data_came() -> List[str]:
    """The operation ends with an error while its producer stands still: nothing is written before that has ended."""
    fake = Fake(reset=False)
    stream = fake.stream()
    x = array_of(fake, np.ones(N, np.float32), stream=stream)
    ddl.allreduce_(x)
    address = fake.host(4).address
    fake.wait_value(stream, address, 1)
    x.set(2.0)  # on its way until the host says so
    ranks.meet()
    if ddl.rank() == 0:
        with pytest.raises(ddl.Error):
            ddl.allreduce_async_(x).wait()
    else:
        ddl.world().abort("on purpose")
    ctypes.c_uint32.from_address(address).value = 1
    fake.finish(stream)
    ddl.shutdown()
    return list(fake.violations)


def test_an_abandoned_operation_writes_nothing_before_its_producer_has_ended() -> None:
    assert ranks.run(2, abandoned_before_its_data_came, env=by_streams(queues=0)) == [[], []]


def refused_in_the_middle(entry: str) -> List[bool]:
    """Nothing is lost: what no stream could be made to copy up, the GPU's thread does."""
    with gpu() as fake:
        x = array_of(fake, np.full(3_000_001, ddl.rank() + 1, np.float32))
        ddl.allreduce_(x, op="max")
        fake.refuse(entry, 1, 1)
        works = [ddl.allreduce_async_(x, op="sum")]
        works[0].wait()
        works.append(ddl.allreduce_async_(x, op="max"))
        works[1].wait()
        assert (x.numpy() == 4).all()
        return [work.can_wait_on() for work in works]


@pytest.mark.parametrize("entry", ["cuStreamWaitValue32_v2", "cuMemcpyHtoDAsync_v2"])
def test_a_refused_call_leaves_no_stream_waiting(entry: str) -> None:
    assert ranks.run(2, refused_in_the_middle, entry, env=by_streams()) == [[False, True]] * 2


def refused_before_anything_was_submitted() -> None:
    with gpu() as fake:
        x = array_of(fake, np.full(3_000_001, ddl.rank() + 1, np.float32))
        ddl.allreduce_(x, op="max")
        if ddl.rank() == 1:
            fake.refuse("cuMemcpyDtoHAsync_v2", 1, 1)
            with pytest.raises(ddl.ResourceError, match="cuMemcpyDtoHAsync_v2"):
                ddl.allreduce_async_(x, op="sum")
        assert (ddl.allreduce_(x, op="sum").numpy() == 4).all()


def test_a_refused_copy_down_is_an_error_of_this_rank_alone() -> None:
    ranks.run(2, refused_before_anything_was_submitted, env=by_streams())


def only_the_host() -> bool:
    with gpu() as fake:
        x = array_of(fake, np.full(N, ddl.rank() + 1, np.float32))
        work = ddl.allreduce_async_(x, op="sum")
        possible = work.wait_on(fake.stream())
        work.wait()
        assert (x.numpy() == 3).all()
        return possible


def test_where_no_stream_can_wait_the_host_does() -> None:
    older = {**by_streams(), "DDL_CUDA_LIBRARY": str(library(*OLDER))}
    for env in (Fake.environment(), older, by_streams(refuse={"cuStreamWriteValue32_v2": 801})):
        assert ranks.run(2, only_the_host, env=env) == [False, False]
    assert ranks.run(2, only_the_host, env=by_streams()) == [True, True]
