"""ddl.empty: arrays in shared memory, how long they live, and operations beyond 2 GiB on them."""

from __future__ import annotations

import gc
import os
import random
import resource
from typing import Any, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected

import ddl
from ddl import _core


@pytest.mark.parametrize("dtype", ["float32", np.int8, np.dtype("uint64"), bool, "complex128", float, "float16"])
@pytest.mark.parametrize("shape", [0, 1, 7, (), (3,), (0, 5), (2, 3, 4), [2, 2], np.int64(5), (np.int32(2), 3)])
def test_shapes_and_types(shape: Any, dtype: Any) -> None:
    x, usual = ddl.empty(shape, dtype), np.empty(shape, dtype)
    assert (x.shape, x.dtype) == (usual.shape, usual.dtype)
    assert x.strides == usual.strides or x.size == 0
    assert x.flags.writeable and x.flags.c_contiguous and x.flags.aligned
    assert x.ctypes.data % 64 == 0
    x[...] = 1
    assert (x == 1).all()


def test_default_type_and_alignment_of_large_arrays() -> None:
    x = ddl.empty(1 << 19)
    assert x.dtype == np.float32 and x.ctypes.data % 4096 == 0


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (-1, "f4"),
        ((2, -3), "f4"),
        ("ab", "f4"),
        (None, "f4"),
        (2.5, "f4"),
        ((2.5,), "f4"),
        (3, "nonsense"),
        (3, object),
    ],
)
def test_nonsense_is_refused(shape: Any, dtype: Any) -> None:
    before = _core.arena_used()
    with pytest.raises(ddl.InvalidArgument, match="empty"):
        ddl.empty(shape, dtype)
    assert _core.arena_used() == before


@pytest.mark.parametrize("shape", [2**62, (2**40, 2**40), 2**64, (2**32, 2**32)])
def test_too_much_is_refused(shape: Any) -> None:
    before = _core.arena_used()
    with pytest.raises((ddl.ResourceError, ddl.InvalidArgument)) as caught:
        ddl.empty(shape, np.float64)
    assert "DDL_SHM_SIZE" in str(caught.value) or "empty(" in str(caught.value)
    assert _core.arena_used() == before


def test_memory_lives_as_long_as_its_last_view() -> None:
    gc.collect()
    before = _core.arena_used()
    x = ddl.empty((1000, 1000), np.float64)
    assert _core.arena_used() == before + 8_003_584  # whole pages
    x[:] = 3
    view = x[17:19, ::2].T.reshape(-1)[3:]
    flat = x.ravel()
    line = flat[5:9]
    del x, flat
    gc.collect()
    assert _core.arena_used() > before
    assert (line == 3).all() and (view == 3).all()
    del line, view
    gc.collect()
    assert _core.arena_used() == before


def test_blocks_do_not_overlap() -> None:
    """Allocate and free at random; every array keeps what was written to it."""
    gc.collect()
    before, dice = _core.arena_used(), random.Random(5)
    alive: List[Tuple[np.ndarray, int]] = []
    x = np.empty(0)
    for number in range(3000):
        if alive and dice.random() < 0.48:
            x, tag = alive.pop(dice.randrange(len(alive)))
            assert (x == tag).all()
        else:
            x = ddl.empty(dice.choice([0, 1, 15, 16, 17, 100, 5000, 270_000]), np.int32)
            x[:] = number
            alive.append((x, number))
    assert all((x == tag).all() for x, tag in alive)
    alive.clear()
    del x
    gc.collect()
    assert _core.arena_used() == before


def test_freed_memory_goes_back_to_the_system() -> None:
    gc.collect()

    def blocks() -> int:
        return os.fstat(_core.arena_fd()).st_blocks

    x = ddl.empty(64 << 20, np.uint8)
    x[:] = 1
    full = blocks()
    assert full >= (64 << 20) // 512
    del x
    gc.collect()
    assert blocks() <= full - (64 << 20) // 512


def test_is_shared() -> None:
    x = ddl.empty((40, 50))
    assert ddl.is_shared(x) and ddl.is_shared(x[3:7]) and ddl.is_shared(ddl.empty(0)) and ddl.is_shared(x.view("i4"))
    assert not ddl.is_shared(np.empty(3)) and not ddl.is_shared(x.copy()) and not ddl.is_shared(x + 1)
    assert ddl.is_shared(x.T) and ddl.is_shared(x[:, ::2]) and ddl.is_shared(x[::-1])


def arena_use(count: int) -> Tuple[int, int, int]:
    """Bytes in use: after the first operations, after many more, after the end."""
    x, y = np.ones(count), ddl.empty(count)

    def operations() -> None:
        for array in (x, y):
            ddl.allreduce(array)
            ddl.allgather(array)
            ddl.broadcast(array)
            ddl.alltoall(array, [count, *[0] * (ddl.size() - 1)])
            [work.wait() for work in [ddl.allreduce_async(array) for _ in range(9)]]

    for _ in range(8):
        operations()
    ddl.barrier()
    first = _core.arena_used()
    for _ in range(10):
        operations()
    gc.collect()
    return first, _core.arena_used(), count


@pytest.mark.few(1)
@pytest.mark.processes
@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_operations_do_not_hoard_memory(transport: str) -> None:
    for count in (100, 200_000):
        for first, later, _ in ranks.run(2, arena_use, count, **connected(transport)):
            # Some buffer may still grow to its final size; ten rounds leak more than that.
            assert later <= first + 4096, "operations keep more and more shared memory"


def small_arena() -> Tuple[str, float]:
    """The arena is full: said with what to do; the job goes on."""
    kept: List[np.ndarray] = []
    try:
        while True:
            kept.append(ddl.empty(1 << 20, np.uint8))
    except ddl.ResourceError as error:
        text = str(error)
    assert len(kept) > 10
    kept.clear()
    gc.collect()
    return text, float(ddl.allreduce(np.full(200_000, float(ddl.rank())))[0])


@pytest.mark.processes
def test_a_full_arena() -> None:
    for text, value in ranks.run(2, small_arena, env={"DDL_SHM_SIZE": "32M"}):
        assert "DDL_SHM_SIZE" in text and value == 0.5


def default_arena(limited: bool) -> int:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if limited:
        resource.setrlimit(resource.RLIMIT_AS, (64 * physical, resource.RLIM_INFINITY))
    ddl.init()
    x = ddl.empty(physical // 2, np.uint8)  # nothing of it is touched
    with pytest.raises(ddl.ResourceError, match=f"of {physical} in use; set DDL_SHM_SIZE to more"):
        ddl.empty(physical // 2, np.uint8)
    del x
    return int(_core.arena_bytes() / max(physical, 0 if limited else 256 << 30))


@pytest.mark.processes
@pytest.mark.parametrize("limited", [False, True])
def test_by_default_the_arena_has_room_for_memory_that_comes_later(limited: bool) -> None:
    """Blocks take no more together than there is; where address space is limited, the arena is as large as that."""
    assert ranks.run(2, default_arena, limited, initialise=False) == [1, 1]


def more_than_two_gib() -> List[int]:
    count = 2**31 + 17
    x = ddl.empty(count, np.int8)
    x[:] = ddl.rank() + 1
    places = [0, 1, 2**30, 2**31 - 1, 2**31, count - 1]
    for place in places:
        x[place] = 10 * (ddl.rank() + 1)
    ddl.allreduce_(x, op=ddl.Sum)
    wrong = count - sum(int(np.count_nonzero(x[i : i + 2**26] == 3)) for i in range(0, count, 2**26))
    return [wrong, *x[places].tolist()]


def message_beyond_two_gib() -> List[int]:
    count, places = 2**31 + 17, [0, 5, 2**31 - 1, 2**31, 2**31 + 16]
    x = np.zeros(count, np.int8)
    if ddl.rank() == 0:
        x[places] = [1, 2, 3, 4, 5]
        ddl.send(x, 1)
    else:
        ddl.recv(x, 0)
    return [int(np.count_nonzero(x)), *x[places].tolist()]


needs_memory = pytest.mark.skipif(
    os.sysconf("SC_PHYS_PAGES") * resource.getpagesize() < 12 << 30, reason="needs 12 GiB of memory"
)


@pytest.mark.processes
@pytest.mark.slow
@needs_memory
def test_allreduce_beyond_two_gib() -> None:
    assert ranks.run(2, more_than_two_gib) == [[6] + [30] * 6] * 2


@pytest.mark.processes
@pytest.mark.slow
@needs_memory
def test_a_message_beyond_two_gib_over_tcp() -> None:
    assert ranks.run(2, message_beyond_two_gib, **connected("tcp")) == [[5, 1, 2, 3, 4, 5]] * 2
