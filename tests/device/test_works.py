"""Works on arrays of a GPU: who waits for whom, over streams, threads, GPUs and communicators, on the fake driver."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List

import numpy as np
import pytest
import ranks
from device.jobs import WAITS, Interface, array_of, driver, environment, gpu, total, wait_until_let_go

import ddl

pytestmark = pytest.mark.processes
N = 300_000


def many_under_way() -> None:
    """Operations of many sizes under way at once, on few parts of the staging; waits in another order."""
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        rng = np.random.default_rng(3)
        stream = fake.stream()
        for _ in range(4):
            counts = [int(n) for n in rng.choice([0, 1, 997, 65_536, 65_537, 1_200_001], 12)]
            arrays = [array_of(fake, np.full(n, rank + i, np.float32), stream=stream) for i, n in enumerate(counts)]
            works = [ddl.allreduce_async_(x, op="sum") for x in arrays]
            for i in rng.permutation(len(works)):
                works[i].wait()
                assert (arrays[i].numpy() == size * i + size * (size - 1) // 2).all()


@pytest.mark.few(2)
@WAITS
@pytest.mark.parametrize("seed", [1, 2])
def test_many_operations_under_way(seed: int, wait: str) -> None:
    ranks.run(2, many_under_way, env={**environment(seed=seed), "DDL_GPU_WAIT": wait})


def before_the_producer_has_ended() -> List[Any]:
    """The calls return while the GPU stands still; the results use what the producer writes later."""
    with gpu() as fake:
        stream = fake.stream()
        fake.pause()
        x = array_of(fake, np.full(1000, ddl.rank() + 1.0, np.float32), stream=stream)
        work = ddl.allreduce_async_(x, op="sum")  # returns though nothing moves
        pending = not work.done()
        with pytest.raises(ddl.WaitTimeout):
            work.wait(0.05)
        fake.pause(False)
        work.wait()
        return [pending, float(x.numpy()[0])]


@pytest.mark.fake_driver("it stands still when the test says so")
def test_the_host_does_not_wait_for_the_producer() -> None:
    assert ranks.run(2, before_the_producer_has_ended, env=environment()) == [[True, 3.0]] * 2


def dropped() -> None:
    """A work that nobody waits for: its array is kept until the GPU has ended, and is let go then."""
    with gpu() as fake:
        x = array_of(fake, np.ones(500_000, np.float32))
        ddl.allreduce_async_(x, op="sum")
        wait_until_let_go(x)
        assert x.released == len(x.requested) == 1
        ddl.allreduce_(x, op="sum")  # so that this thread may look at x
        assert (x.numpy() == 4).all()


def test_an_array_is_let_go_when_the_gpu_has_ended() -> None:
    ranks.run(2, dropped, env=environment())


def while_a_thread_holds_the_driver() -> List[bool]:
    """A thread frees memory, which waits for the GPU under the driver's lock: data that came down goes to others."""
    with gpu() as fake:
        x = array_of(fake, np.full(N, ddl.rank() + 1, np.float32))
        ddl.allreduce_(x, op="max")
        stream, address = fake.stream(), fake.host(4).address
        work = None
        with ThreadPoolExecutor(1) as pool:
            if ddl.rank() == 0:
                work = ddl.allreduce_async_(x, op="sum")
                fake.option("free_waits")
                fake.wait_value(stream, address, 1)  # the GPU has something to do until the host says so
                context, memory = fake.context(), fake.alloc(64)

                def free() -> None:
                    fake.set_context(context)
                    fake.free(memory)

                freed = pool.submit(free)
                while fake.calls("cuMemFree_v2") == 0:  # it holds the driver then
                    time.sleep(0.001)
            ranks.meet()
            if ddl.rank() == 1:
                y = np.full(N, 2, np.float32)
                assert (ddl.allreduce_(y, op="sum") == 4).all()  # while rank 0 cannot call the driver
            ranks.meet()
            if work is None:
                return [True]
            held = not freed.done()
            ctypes.c_uint32.from_address(address).value = 1
            freed.result(100)
            work.wait()
        assert (x.numpy() == 4).all()
        return [held]


@pytest.mark.fake_driver("its cuMemFree waits when the test says so")
def test_no_other_rank_waits_for_a_thread_that_holds_the_driver() -> None:
    assert ranks.run(2, while_a_thread_holds_the_driver, env=environment(queues=0)) == [[True], [True]]


def two_streams() -> None:
    """Input and target are produced on two streams, and both are obeyed."""
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        for _ in range(3):
            first, second = fake.stream(), fake.stream()
            x = array_of(fake, np.full((8 * size, 999), rank + 1.0), stream=first)
            y = array_of(fake, np.zeros((8, 999)), stream=second)
            x.interface_stream, y.interface_stream = first, second
            ddl.reducescatter(Interface(x), out=Interface(y), op="sum")
            assert (y.numpy() == total(size)).all()


def test_both_arrays_of_a_call_are_waited_for() -> None:
    ranks.run(2, two_streams, env=environment())


def two_gpus_and_two_communicators() -> None:
    """Streams, communicators and GPUs are independent of one another, and the caller's context stays current."""
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        other = ddl.world().split(0)
        contexts = [fake.context(), fake.retain(1)]
        arrays = []
        for number, context in enumerate(contexts):
            with fake.pushed(context):
                arrays.append(array_of(fake, np.full(N, rank + number, np.float32), stream=fake.stream()))
        works = [other.allreduce_async_(arrays[1], op="sum"), ddl.allreduce_async_(arrays[0], op="sum")]
        for work in works if rank else reversed(works):
            work.wait()
        assert fake.context() == contexts[0]
        for number, x in enumerate(arrays):
            assert (x.numpy() == size * number + size * (size - 1) // 2).all()
        fake.set_context(contexts[1])
        ddl.allreduce_(arrays[0], op="max")
        assert fake.context() == contexts[1]
        out = array_of(fake, np.zeros(2 * size, np.float32))
        with pytest.raises(ddl.InvalidArgument, match="on GPU 0, but the target is on GPU 1"):
            fake.set_context(contexts[0])
            ddl.allgather(array_of(fake, np.zeros(2, np.float32)), out=out)
        other.close()


@WAITS
@pytest.mark.fake_driver("it has two devices")
def test_two_gpus_and_two_communicators(wait: str) -> None:
    ranks.run(2, two_gpus_and_two_communicators, env={**environment(devices=2), "DDL_GPU_WAIT": wait})


def later_producer() -> None:
    """A work ends although the producer of a later one stands still.

    Nothing that may block stands between the wait for a word and that word: memory is made before.
    """
    with gpu() as fake:
        early, late = fake.stream(), fake.stream()
        address, seen = fake.host(4).address, fake.host(4 * N)
        x, y = (array_of(fake, np.ones(N, np.float32), stream=stream) for stream in (early, late))
        ddl.allreduce_(x, op="max")  # takes staging for both
        fake.wait_value(late, address, 1)  # what comes behind this on `late` waits for the host
        works = [ddl.allreduce_async_(each, op="sum") for each in (x, y)]
        works[0].wait(80)  # less than the deadline that the other one has
        fake.copy_down(seen.address, x.pointer, x.nbytes, early)
        fake.finish(early)
        assert (seen.view(np.float32) == ddl.size()).all() and not works[1].done()
        ctypes.c_uint32.from_address(address).value = 1
        works[1].wait()
        assert (y.numpy() == ddl.size()).all()


def test_a_work_does_not_wait_for_the_producer_of_a_later_one() -> None:
    ranks.run(2, later_producer, env=environment(queues=0))


def shut_down_meanwhile() -> List[str]:
    """One thread waits for works, another one shuts down: each work ends, well or with an error."""
    fake = driver()
    arrays = [array_of(fake, np.ones(N, np.float32)) for _ in range(20)]
    ends: List[str] = []

    def use() -> None:
        for x in arrays:
            try:
                ddl.allreduce_async_(x, op="sum").wait()
                ends.append("well")
            except ddl.Error as error:
                ends.append(type(error).__name__)

    with ThreadPoolExecutor(1) as pool:
        used = pool.submit(use)
        time.sleep(0.02)
        ddl.shutdown()
        used.result(60)
    return ends


@WAITS
def test_shutdown_while_a_thread_waits(wait: str) -> None:
    for ends in ranks.run(2, shut_down_meanwhile, env={**environment(), "DDL_GPU_WAIT": wait}):
        assert len(ends) == 20 and set(ends) <= {"well", "InvalidState", "PeerLost", "Aborted"}, ends
