"""Threads that help with large reductions and copies: the same bits, and nothing left when they are not wanted."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Iterator, List, Set

import numpy as np
import pytest
from launch.launcher import eventually
from test_reduce import DTYPES, OPS, storage

from ddl import _core

WORTH = _core.WORTH_SHARING
FASTEST = _core.reduce_kernels()[-1]
#: Bytes: what nobody helps with, the least that they help with, and lengths that parts do not divide.
LENGTHS = [WORTH - 8, WORTH, WORTH + 8, 3 * WORTH + 4096 + 24, 8 * WORTH - 16]


def with_helpers(count: int) -> _core.Communicator:
    communicator = alone()
    communicator.set_helpers(count)
    return communicator


def alone() -> _core.Communicator:
    return _core.Communicator(rank=0, size=1, timeout=60, spin_us=0, yield_us=0)


@pytest.fixture
def three() -> Iterator[None]:
    communicator = with_helpers(3)
    assert _core.helpers()[0] == 3
    yield
    communicator.shutdown()


def threads() -> Set[str]:
    """Return the threads of this process; one that has ended may be there a moment longer."""
    return set(os.listdir("/proc/self/task"))


def of_random_bytes(count: int, length: int, seed: int) -> List[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, length, np.uint8) for _ in range(count)]


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_are_those_of_one_thread(dtype: str, op: str) -> None:
    for number, length in enumerate(LENGTHS):
        sources = of_random_bytes(2 + number, length, number)
        for divisor in (1, 3):
            alone, helped = ([np.empty(length, np.uint8) for _ in range(1 + number % 3)] for _ in range(2))
            _core.reduce_arrays(dtype, op, alone, sources, divisor, FASTEST)  # a kernel by its name asks nobody
            _core.reduce_arrays(dtype, op, helped, sources, divisor)
            for wanted, got in zip(alone, helped):
                assert got.tobytes() == wanted.tobytes(), f"{length} bytes / {divisor}"


@pytest.mark.usefixtures("three")
def test_in_place_and_in_more_arrays_than_helpers_take() -> None:
    length = WORTH + 4096
    sources = of_random_bytes(70, length, 1)
    want = np.add.reduce([source.view("int32") for source in sources], dtype="int32")
    out = np.empty(length, np.uint8)
    _core.reduce_arrays("int32", "sum", [out], sources)
    np.testing.assert_array_equal(out.view("int32"), want)
    own = sources[3].copy()
    _core.reduce_arrays("int32", "sum", [own], [sources[0], own])
    np.testing.assert_array_equal(own.view("int32"), sources[0].view("int32") + sources[3].view("int32"))


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("streaming", [False, True])
def test_copies_have_each_byte(streaming: bool) -> None:
    for length in [*LENGTHS, WORTH + 1, 5 * WORTH + 4095]:
        (source,) = of_random_bytes(1, length, length)
        around = np.zeros(length + 2, np.uint8)
        _core.copy_bytes(around[1:-1], source, streaming)
        assert around[1:-1].tobytes() == source.tobytes()
        assert around[0] == around[-1] == 0


@pytest.mark.usefixtures("three")
def test_they_take_parts() -> None:
    source, target = np.ones(64 * WORTH, np.uint8), np.zeros(64 * WORTH, np.uint8)
    deadline = time.monotonic() + 60
    while _core.helpers()[1] == 0:  # where no core is free at all, the caller may be faster for long
        _core.copy_bytes(target, source)
        assert time.monotonic() < deadline, "in a minute no helper has taken a part"


@pytest.mark.usefixtures("three")
def test_threads_that_ask_at_once_all_get_their_results() -> None:
    """One of them is helped, and the others do their work alone."""
    wrong = []

    def work(seed: int) -> None:
        sources = of_random_bytes(3, 4 * WORTH, seed)
        want = sum(source.view("uint32") for source in sources)
        for _ in range(30):
            out = np.empty(4 * WORTH, np.uint8)
            _core.reduce_arrays("uint32", "sum", [out], sources)
            if not np.array_equal(out.view("uint32"), want):
                wrong.append(seed)

    at_work = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in at_work:
        thread.start()
    for thread in at_work:
        thread.join()
    assert not wrong


def test_they_live_as_long_as_a_communicator_that_wants_them() -> None:
    gc.collect()  # communicators of tests before
    assert _core.helpers()[0] == 0
    before = threads()
    first, second = with_helpers(2), with_helpers(2)
    assert _core.helpers()[0] == 2
    assert len(threads() - before) == 2
    first.shutdown()
    first.shutdown()
    assert _core.helpers()[0] == 2
    second.set_helpers(5)
    assert (_core.helpers()[0], len(threads() - before)) == (5, 5)
    second.set_helpers(0)
    assert _core.helpers()[0] == 0 and eventually(lambda: threads() <= before)
    second.set_helpers(1)
    second.shutdown()
    assert _core.helpers()[0] == 0 and eventually(lambda: threads() <= before)


@pytest.mark.usefixtures("three")
def test_a_forked_child_does_without(tmp_path: Path) -> None:
    """The threads are its parent's."""
    source, target = np.ones(4 * WORTH, np.uint8), np.zeros(4 * WORTH, np.uint8)
    _core.copy_bytes(target, source)
    child = os.fork()
    if child == 0:
        try:
            target[:] = 0
            _core.copy_bytes(target, source)
            (tmp_path / "said").write_text(f"{_core.helpers()} {int(target.sum()) == target.size}")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "said").read_text() == "(0, 0) True"
    assert _core.helpers()[0] == 3


@pytest.mark.parametrize("helpers", [-1, 64])
def test_what_is_no_number_of_helpers(helpers: int) -> None:
    communicator = alone()
    with pytest.raises(ValueError, match=f"set_helpers: {helpers} helpers"):
        communicator.set_helpers(helpers)
    communicator.shutdown()


def test_storage_has_a_view_of_each_type() -> None:
    """The lengths above are whole elements of every type."""
    assert all(length % storage(dtype).itemsize == 0 for dtype in DTYPES for length in LENGTHS)
