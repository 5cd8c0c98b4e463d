"""Every collective on every transport and number of ranks, at the sizes where plans change."""

from __future__ import annotations

import itertools
import threading
from typing import List

import numpy as np
import pytest
import ranks
from core.everything import every_root, on_world
from core.jobs import TRANSPORTS, connected
from core.values import check_equal, numbers

import ddl

pytestmark = pytest.mark.processes


def counts(size: int) -> List[int]:
    """Elements of 4 bytes: none, fewer than ranks, primes, both sides of 8, 16 and 64 KiB, and several pieces."""
    few = [0, 1, size - 1, size, size + 1, 3 * size + 1, 101]
    return [*few, 2047, 2049, 4096, 4099, 16_383, 16_411, 600_011]


@pytest.mark.few(2)
@pytest.mark.parametrize(("size", "transport"), [(1, "shared"), *itertools.product([2, 3, 4], TRANSPORTS)])
def test_every_collective(size: int, transport: str) -> None:
    assert ranks.run(size, on_world, counts(size), **connected(transport)) == [14] * size


@pytest.mark.few(2)
@pytest.mark.parametrize("transport", ["hybrid", "uneven", "interleaved", "shared"])
@pytest.mark.parametrize("size", [5, 6, 8])
def test_more_ranks_and_odd_layouts(size: int, transport: str) -> None:
    counts = [0, 1, size - 1, size + 1, 103, 4099, 40_009]
    assert ranks.run(size, on_world, counts, **connected(transport)) == [7] * size


@pytest.mark.few(3)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_root(transport: str) -> None:
    for count in (7, 30_011):
        assert ranks.run(4, every_root, count, **connected(transport)) == [4] * 4


def shapes() -> int:
    """Shapes are kept, views are read in their own order, and dimensions of size 0 are no special case."""
    rank, size = ddl.rank(), ddl.size()
    tried = 0
    for shape in [(), (1,), (2, 3, 4), (3, 0, 2), (0,), (1, 1, 1, 1), (5, 700, 3)]:
        x = numbers(rank, int(np.prod(shape))).reshape(shape)
        total = np.sum([numbers(r, x.size).reshape(shape) for r in range(size)], axis=0, dtype=np.int32)
        check_equal(ddl.allreduce(x, op=ddl.Sum), total.reshape(shape), f"allreduce of {shape}")
        check_equal(ddl.broadcast(x, root=size - 1), numbers(size - 1, x.size).reshape(shape), f"broadcast of {shape}")
        y = x.copy()
        assert ddl.allreduce_(y, op=ddl.Sum) is y
        check_equal(y, total.reshape(shape), f"allreduce_ of {shape}")
        if shape:
            want = np.concatenate([numbers(r, x.size).reshape(shape) for r in range(size)])
            check_equal(ddl.allgather(x), want, f"allgather of {shape}")
        tried += 1
    return tried


def views() -> int:
    """Inputs that are not contiguous: strided, reversed, transposed, Fortran order, broadcast, read-only."""
    rank, size = ddl.rank(), ddl.size()

    def all_of(r: int) -> List[np.ndarray]:
        base = numbers(r, 60 * 50).reshape(60, 50)
        return [
            base[::2, ::3],
            base[::-1],
            base.T,
            np.asfortranarray(base),
            np.broadcast_to(base[0], (4, 50)),
            base[5:50],
        ]

    everybody = [all_of(r) for r in range(size)]
    for number, x in enumerate(everybody[rank]):
        x.flags.writeable = False
        same = [views[number] for views in everybody]
        total = np.ascontiguousarray(np.sum(same, axis=0, dtype=np.int32))
        check_equal(ddl.allreduce(x, op=ddl.Sum), total, f"view {number}")
        check_equal(ddl.broadcast(x, root=1), np.ascontiguousarray(same[1]), f"view {number}")
        check_equal(ddl.allgather(x), np.concatenate(same), f"view {number}")
        check_equal(
            ddl.alltoall(x, [len(x), *[0] * (size - 1)])[0],
            np.concatenate(same) if rank == 0 else x[:0].copy(),
            f"view {number}",
        )
        scattered = ddl.scatter(x if rank == 0 else None)
        assert scattered.base is None or scattered.flags.c_contiguous
        share = np.array_split(same[0], size)[rank]
        check_equal(scattered, np.ascontiguousarray(share), f"view {number}")
        reduced = ddl.reduce(x, op=ddl.Sum, root=size - 1)
        if rank == size - 1:
            check_equal(reduced, total, f"view {number}")
    return number + 1


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_shapes_and_views(transport: str) -> None:
    assert ranks.run(3, shapes, **connected(transport)) == [7] * 3
    assert ranks.run(3, views, **connected(transport)) == [6] * 3


def scalars() -> List[float]:
    """Python numbers and numpy scalars are arrays without dimensions."""
    rank = ddl.rank()
    from_float = ddl.allreduce(rank + 0.5)
    two = ddl.allreduce(np.float32(rank), op=ddl.Max)
    three = ddl.broadcast(rank * 10, root=1)
    four = ddl.allreduce(rank == 0, op=ddl.Max)
    assert from_float.shape == two.shape == three.shape == four.shape == ()
    assert from_float.dtype == np.float64 and two.dtype == np.float32 and four.dtype == np.bool_
    return [float(from_float), float(two), float(three), float(four)]


def test_scalars() -> None:
    assert ranks.run(2, scalars) == [[1.0, 1.0, 10.0, 1.0]] * 2


def same_bits_in_a_steady_loop(rounds: int) -> int:
    """Results of small operations back to back; a stale slot or flag would show as the round before."""
    rank, size = ddl.rank(), ddl.size()
    x, big = ddl.empty(2, np.int64), ddl.empty(9001, np.int64)
    for number in range(rounds):
        x[:] = number * size + rank
        ddl.allreduce_(x, op=ddl.Sum)
        assert x.tolist() == [number * size * size + size * (size - 1) // 2] * 2, (number, x)
        if number % 16 == 0:
            big[:] = x[0] + rank
            ddl.allreduce_(big, op=ddl.Max)
            assert (big == x[0] + size - 1).all(), number
        if number % 7 == 0:
            root = number % size
            x[:] = number + rank
            ddl.broadcast_(x, root=root)
            assert x.tolist() == [number + root] * 2, (number, x)
    return rounds


@pytest.mark.few(2)
@pytest.mark.parametrize(("transport", "size"), [("shared", 2), ("shared", 4), ("tcp", 2), ("hybrid", 4)])
def test_steady_loop(transport: str, size: int) -> None:
    rounds = 20_000 if (transport, size) == ("shared", 2) else 3000
    assert ranks.run(size, same_bits_in_a_steady_loop, rounds, **connected(transport)) == [rounds] * size


def from_another_thread() -> List[float]:
    """One thread submits at a time, but it need not be the first one."""
    answers: List[float] = []

    def work() -> None:
        for number in range(50):
            answers.append(float(ddl.allreduce(np.full(3000, float(number + ddl.rank())))[0]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    answers.append(float(ddl.allreduce(1.0, op=ddl.Sum)))
    return answers


def test_another_thread_may_call() -> None:
    assert ranks.run(2, from_another_thread) == [[*(n + 0.5 for n in range(50)), 2.0]] * 2
