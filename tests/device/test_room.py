"""A stream takes some 1,000 commands behind a wait, and then blocks whoever calls: DDL never queues so many.

The fake's queues are as deep as an H200's (``kQueueDepth`` in scheduler.cc).
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from device.fake_cuda import DeviceArray, Fake
from device.jobs import array_of, gpu, total

import ddl
from ddl._comm import group

pytestmark = [pytest.mark.processes, pytest.mark.fake_driver("it counts calls that meet a full queue")]
PIECES = 700  #: more than a stream takes, with a wait and a copy for each
SMALL = 2_000  #: operations under way
MANY = 300  #: operations whose copies down are more commands than a stream has room for
WAITS = ["host", "stream"]


def waiting(wait: str, **options: Any) -> Dict[str, str]:
    return {**Fake.environment(**options), "DDL_GPU_WAIT": wait}


def in_small_pieces(count: int) -> None:
    """Let large operations on ``count`` numbers of four bytes run in PIECES pieces or more."""
    choose = group.select

    def smaller(*arguments: Any) -> Any:
        most = 4 * count // PIECES // 64 * 64
        return tuple(dataclasses.replace(line, piece_bytes=most, small=False) for line in choose(*arguments))

    group.select = smaller  # before anything was planned


def large_before_others_call() -> int:
    count = 1_100_003
    in_small_pieces(count)
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        ramp = np.arange(count, dtype=np.int32)
        x, y = (array_of(fake, ramp + rank) for _ in range(2))
        if rank > 0:
            ranks.meet()  # rank 0's calls have returned
        works = [ddl.allreduce_async_(x, op="sum"), ddl.broadcast_async_(y, 1)]
        if rank == 0:
            ranks.meet()
        for work in works:
            work.wait()
        assert (x.numpy() == size * ramp + total(size) - size).all()
        assert (y.numpy() == ramp + 1).all()
        return fake.live("full queues")


@pytest.mark.parametrize("wait", WAITS)
def test_a_large_operation_fills_no_queue_before_the_others_have_called(wait: str) -> None:
    assert ranks.run(2, large_before_others_call, env=waiting(wait)) == [0, 0]


def many_before_others_call() -> List[int]:
    with gpu() as fake:
        arrays = [array_of(fake, np.full(1, ddl.rank() + i, np.int32)) for i in range(SMALL)]
        if ddl.rank() > 0:
            ranks.meet()  # rank 0's calls have returned
        works = [ddl.allreduce_async_(x, op="sum") for x in arrays]
        behind = sum(work.can_wait_on() for work in works)
        if ddl.rank() == 0:
            ranks.meet()
        for work in works:
            work.wait()
        assert [int(x.numpy()[0]) for x in arrays] == [2 * i + 1 for i in range(SMALL)]
        return [behind, fake.live("full queues")]


@pytest.mark.parametrize("wait", WAITS)
def test_many_small_operations_fill_no_queue_before_the_others_have_called(wait: str) -> None:
    (behind, full), (_, full_there) = ranks.run(2, many_before_others_call, env=waiting(wait))
    assert full == full_there == 0
    assert behind == 0 if wait == "host" else 0 < behind < SMALL  # the others are left to the GPU's thread


def more_than_a_stream_has_room_for(fake: Fake) -> Tuple[List[DeviceArray], List[ddl.Work]]:
    """Call MANY all-reduces while the GPU stands still; return their arrays and works. It stands still afterwards."""
    arrays = [array_of(fake, np.full(1, ddl.rank() + i, np.int32)) for i in range(MANY)]
    fake.until(lambda: fake.pending() == 0)
    fake.pause()
    return arrays, [ddl.allreduce_async_(x, op="sum") for x in arrays]


def while_the_gpu_stands_still() -> int:
    """Copies down, too, are left to the GPU's thread where a stream has no room for them."""
    with gpu() as fake:
        arrays, works = more_than_a_stream_has_room_for(fake)
        queued = fake.calls("cuMemcpyDtoHAsync_v2")
        fake.pause(False)
        for work in works:
            work.wait()
        assert [int(x.numpy()[0]) for x in arrays] == [2 * i + 1 for i in range(MANY)]
        assert fake.live("full queues") == 0
        return queued


@pytest.mark.parametrize("wait", WAITS)
def test_no_call_waits_for_a_gpu_that_stands_still(wait: str) -> None:
    assert all(0 < queued < MANY for queued in ranks.run(2, while_the_gpu_stands_still, env=waiting(wait, queues=0)))


def abandoned_while_deferred() -> int:
    """Operations that fail before their copies down are queued let go of everything, too."""
    fake = Fake(reset=False)
    arrays, works = more_than_a_stream_has_room_for(fake)
    ranks.meet()
    if ddl.rank() == 0:
        ddl.world().abort("on purpose")
    with pytest.raises(ddl.Error):
        works[-1].wait()
    fake.pause(False)
    ddl.shutdown()
    assert fake.violations == []
    return sum(x.released < len(x.requested) for x in arrays)


@pytest.mark.parametrize("wait", WAITS)
def test_what_is_abandoned_before_it_was_queued_is_let_go(wait: str) -> None:
    assert ranks.run(2, abandoned_while_deferred, env=waiting(wait, queues=0)) == [0, 0]


def refused_while_deferred() -> str:
    fake = Fake(reset=False)
    _, works = more_than_a_stream_has_room_for(fake)
    ranks.meet()
    if ddl.rank() == 1:
        fake.refuse("cuMemcpyDtoHAsync_v2", 2, 1)
    fake.pause(False)
    with pytest.raises(ddl.ResourceError) as caught:
        for work in works:
            work.wait()
    ranks.meet()
    return str(caught.value)


def test_a_copy_that_is_refused_when_it_was_deferred_is_an_error_of_all_ranks() -> None:
    for text in ranks.run(2, refused_while_deferred, env=waiting("host", queues=0)):
        assert "GPU 0: cuMemcpyDtoHAsync_v2: " in text and "(2)" in text


def held_up_in_the_driver() -> str:
    """The driver takes fewer commands than DDL believes: the call hangs in it, and the deadline ends that, too."""
    count = 1_100_003
    in_small_pieces(count)
    fake = Fake(reset=False)
    x = array_of(fake, np.ones(count, np.float32))
    ddl.allreduce_(x)
    ddl.world().set_timeout(1.0)
    if ddl.rank() == 0:
        fake.option("queue_depth", 8)
        begun = time.monotonic()
        with pytest.raises(ddl.CollectiveTimeout) as caught:
            ddl.allreduce_async_(x).wait()  # the other rank never calls it
        assert time.monotonic() - begun >= 1.0
        assert fake.live("full queues") > 0 and fake.violations == []
        text = str(caught.value)
    else:
        text = "rank 1 has not called it"
    ranks.meet()
    return text


def test_a_deadline_ends_a_call_that_the_driver_holds_up() -> None:
    for text in ranks.run(2, held_up_in_the_driver, env=waiting("stream")):
        assert "rank 1 has not called it" in text


def behind_one_that_the_host_awaits() -> bool:
    """The copies up of the first are left to the GPU's thread. Those of the second must not come before them."""
    with gpu() as fake:
        x, y = (array_of(fake, np.full(1000, ddl.rank() + 1, np.float32)) for _ in range(2))
        if ddl.rank() == 0:
            fake.refuse("cuStreamWaitValue32_v2", 1, 1)
            works = [ddl.allreduce_async_(array, op="sum") for array in (x, y)]
            waitable = [work.can_wait_on() for work in works]
            works[0].wait()
            ranks.meet()  # only then does the other rank call the second one
            works[1].wait()
        else:
            waitable = [False, False]
            ddl.allreduce_(x, op="sum")
            ranks.meet()
            ddl.allreduce_(y, op="sum")
        assert (x.numpy() == 3).all() and (y.numpy() == 3).all()
        return any(waitable)


def test_no_result_comes_behind_a_later_operation() -> None:
    assert ranks.run(2, behind_one_that_the_host_awaits, env=waiting("stream")) == [False, False]


def where_calls_wait_for_their_end() -> bool:
    """As with CUDA_LAUNCH_BLOCKING=1, or under some tools."""
    with gpu() as fake:
        x = array_of(fake, np.full(1000, ddl.rank() + 1, np.float32))
        fake.option("serialises")
        with pytest.warns(RuntimeWarning, match="DDL_GPU_WAIT=stream has no effect on GPU 0.*CUDA_LAUNCH_BLOCKING"):
            work = ddl.allreduce_async_(x, op="sum")
        waitable = work.can_wait_on()
        work.wait()
        assert (x.numpy() == 3).all()
        return waitable


def test_where_calls_wait_for_their_end_the_host_waits_for_results() -> None:
    assert ranks.run(2, where_calls_wait_for_their_end, env=waiting("stream")) == [False, False]


def nothing_is_kept() -> List[int]:
    """Asynchronous calls alone let go of what is over."""
    with gpu() as fake:
        arrays = []
        for i in range(50):
            x = array_of(fake, np.full(10, i, np.int32))
            work = ddl.allreduce_async_(x, op="max")
            fake.until(work.done)
            arrays.append(x)
        ddl.allreduce_async_(array_of(fake, np.zeros(1, np.int32)), op="max").wait_on(0)
        return [i for i, x in enumerate(arrays) if x.released < len(x.requested)]


@pytest.mark.parametrize("wait", WAITS)
def test_asynchronous_calls_let_go_of_earlier_arrays(wait: str) -> None:
    assert ranks.run(2, nothing_is_kept, env=waiting(wait)) == [[], []]
