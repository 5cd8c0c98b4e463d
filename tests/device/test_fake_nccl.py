"""The fake NCCL computes what NCCL computes, in the order of the streams.

No test here is about DDL: they prove the tool with which others prove DDL's use of NCCL. What NCCL forbids is in
test_fake_nccl_rules.py.
"""

from __future__ import annotations

import time
from typing import Any, List

import numpy as np
import pytest
import ranks
from device.fake_nccl import library
from device.fake_nccl.jobs import communicator_of_all, rank_and_size
from device.fake_nccl.nccl import OPS, TYPES
from device.fake_nccl_checks import add_up, fails, opened, run, started, value_at

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", autouse=True)
def compiled_nccl() -> None:
    """Compile it outside of the tests, which are to be quick."""
    library()


# --- values ---


def packed(values: np.ndarray, dtype: str) -> bytes:
    """Return the bytes of small integers, as that type has them; integers wrap."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(dtype).tobytes()


def reduced(inputs: List[np.ndarray], op: str, dtype: str) -> np.ndarray:
    if op == "average":
        total = np.sum(inputs, axis=0)
        return total / len(inputs) if "float" in dtype else np.trunc(total / len(inputs))
    functions: Any = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
    return np.asarray(functions[op](inputs, axis=0))


def brought(rank: int, count: int, dtype: str) -> np.ndarray:
    values = (np.arange(count) * 7 + rank * 5) % 3 + 1
    return values if dtype.startswith("u") else values * np.where((np.arange(count) + rank) % 4 == 0, -1, 1)


def all_values(dtypes: List[str], count: int) -> int:
    """Each kind with each type and operator, in place and not; return how many operations were right."""
    fake, nccl, rank, size = opened()
    communicator = communicator_of_all(nccl)
    stream, checks = fake.stream(), []

    def buffer(values: np.ndarray, dtype: str) -> int:
        pointer = fake.alloc(len(packed(values, dtype)))
        fake.poke(pointer, packed(values, dtype))
        return pointer

    for dtype in dtypes:
        item = len(packed(np.zeros(1), dtype))
        shards = [brought(other, count, dtype) for other in range(size)]
        wholes = [brought(other, count * size, dtype) for other in range(size)]
        own = slice(rank * count, (rank + 1) * count)
        for in_place in (False, True):
            gathered = buffer(np.tile(shards[rank], size), dtype)
            source = gathered + rank * count * item if in_place else buffer(shards[rank], dtype)
            nccl.all_gather(communicator, source, gathered, count, dtype, stream)
            checks.append(("all-gather", gathered, packed(np.concatenate(shards), dtype)))
            for op in OPS:
                source = buffer(wholes[rank], dtype)
                target = source if in_place else buffer(np.zeros(count * size), dtype)
                nccl.all_reduce(communicator, source, target, count * size, dtype, op, stream)
                checks.append((op, target, packed(reduced(wholes, op, dtype), dtype)))
                source = buffer(wholes[rank], dtype)
                target = source + rank * count * item if in_place else buffer(np.zeros(count), dtype)
                nccl.reduce_scatter(communicator, source, target, count, dtype, op, stream)
                checks.append((op, target, packed(reduced(wholes, op, dtype)[own], dtype)))
    fake.finish(stream)
    wrong = [(what, i) for i, (what, at, expected) in enumerate(checks) if fake.peek(at, len(expected)) != expected]
    assert wrong == []
    assert fake.violations == []
    nccl.destroy(communicator)
    return len(checks)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_values(size: int) -> None:
    answers = run(size, all_values, list(TYPES), 13, fake={"queues": 1} if size == 2 else None)
    assert answers == [len(TYPES) * 2 * 11] * size


def test_values_where_the_test_runs_commands() -> None:
    assert run(2, all_values, ["int32", "float16"], 5, fake={"mode": "steps"}) == [44, 44]


def test_large_values() -> None:
    assert run(2, all_values, ["float32"], 300_001) == [22, 22]


def rounding() -> List[int]:
    """What 16-bit floats become: rounded once, to even; too large, too small, and no number."""
    fake, nccl, rank, _ = opened()
    communicator, stream = communicator_of_all(nccl), fake.stream()
    numbers = np.array([2048.0, 65504.0, 2**-24, 1.0, np.nan, 2**-15, 0.1, -65504.0], np.float16)
    others = np.array([1.0, 65504.0, 2**-24, 2**-11, 1.0, 2**-15, 0.2, 15.0], np.float16)
    pointer = fake.alloc(16)
    fake.poke(pointer, (others if rank else numbers).tobytes())
    nccl.all_reduce(communicator, pointer, pointer, 8, "float16", "sum", stream)
    fake.finish(stream)
    with np.errstate(over="ignore"):
        expected = (numbers.astype(np.float32) + others.astype(np.float32)).astype(np.float16)
    assert np.array_equal(np.frombuffer(fake.peek(pointer, 16), np.float16), expected, equal_nan=True)
    return fake.violations


def test_halves_are_rounded_once() -> None:
    assert run(2, rounding) == [[], []]


# --- streams ---


def late_while_paused() -> None:
    fake, nccl, communicator, stream, pointer = started()
    rank, _ = rank_and_size()
    if rank == 0:
        fake.pause()
    add_up(nccl, communicator, pointer, stream)
    ranks.meet()
    if rank == 1:
        other = fake.stream()
        fake.copy_down(fake.host(4).address, fake.alloc(4), 4, other)
        fake.finish(other)  # a stream of another queue goes on
        time.sleep(0.05)
    assert not fake.stream_done(stream) and fake.pending() > 0
    ranks.meet()
    fake.pause(False)
    fake.finish(stream)
    assert value_at(fake, pointer) == 3 and fake.violations == []
    nccl.destroy(communicator)


def test_an_operation_is_late_while_a_rank_stands_still() -> None:
    run(2, late_while_paused)


def stream_order(ordered: bool) -> List[str]:
    """A producer, the operation, and a reader, on three streams."""
    fake, nccl, communicator, stream, pointer = started()
    producer, reader = fake.stream(), fake.stream()
    fake.copy_up(pointer, fake.host(8).address, 8, producer)
    if ordered:
        fake.order(producer, stream)
    add_up(nccl, communicator, pointer, stream)
    if ordered:
        fake.order(stream, reader)
    fake.copy_down(fake.host(8).address, pointer, 8, reader)
    for each in (producer, stream, reader):
        fake.until(lambda each=each: fake.code("cuStreamQuery", each) == 0)  # type: ignore[misc]
    return fake.violations


def test_the_ledger_objects_to_a_missing_wait() -> None:
    assert run(2, stream_order, True) == [[], []]
    for violations in run(2, stream_order, False):
        assert any("cuMemcpyHtoDAsync_v2" in text and "ncclAllReduce" in text for text in violations)
        assert any("cuMemcpyDtoHAsync_v2" in text and "ncclAllReduce" in text for text in violations)


def freed_too_early() -> List[str]:
    fake, nccl, communicator, stream, pointer = started()
    fake.pause()
    add_up(nccl, communicator, pointer, stream)
    fake.free(pointer)
    fake.pause(False)
    fake.finish(stream)
    return fake.violations


def test_memory_that_is_freed_too_early() -> None:
    assert all(any("was freed" in text for text in violations) for violations in run(2, freed_too_early))


def on_two_streams() -> List[str]:
    """The second operation of a communicator waits for its first, though its own stream has nothing to wait for."""
    fake, nccl, communicator, stream, pointer = started()
    other_stream, other, word = fake.stream(), fake.alloc(8), fake.host(4)
    fake.wait_value(stream, word.address, 1)
    add_up(nccl, communicator, pointer, stream)
    add_up(nccl, communicator, other, other_stream)
    time.sleep(0.05)
    assert not fake.stream_done(other_stream)
    word.array[:] = 1
    fake.finish(other_stream)
    assert fake.stream_done(stream)
    nccl.destroy(communicator)
    return fake.violations


def test_a_communicator_keeps_its_order_on_all_streams() -> None:
    assert run(2, on_two_streams, fake={"queues": 0}) == [[], []]


def step_by_step() -> List[str]:
    """An operation is two commands; the second cannot be run before the other rank has run its first."""
    fake, nccl, communicator, stream, pointer = started()
    add_up(nccl, communicator, pointer, stream)
    if rank_and_size()[0] == 0:
        assert fake.run() == 1 and fake.pending() == 1
        ranks.meet()
        ranks.meet()
        assert fake.run() == 1 and fake.stream_done(stream)
    else:
        ranks.meet()
        assert fake.run() == 2 and fake.stream_done(stream)
        ranks.meet()
    assert value_at(fake, pointer) == 3
    nccl.destroy(communicator)
    return fake.violations


def test_a_step_needs_what_the_other_ranks_bring() -> None:
    assert run(2, step_by_step, fake={"mode": "steps"}) == [[], []]


# --- groups ---


def in_a_group() -> List[str]:
    fake, nccl, communicator, stream, pointer = started()
    rank, _ = rank_and_size()
    other, gathered = fake.alloc(8), fake.alloc(16)
    fake.poke(other, np.array([10 * rank, 5], np.int32).tobytes())
    nccl.check("ncclGroupStart")
    nccl.check("ncclGroupStart")
    add_up(nccl, communicator, pointer, stream)
    nccl.check("ncclGroupEnd")
    nccl.all_gather(communicator, other, gathered, 2, "int32", stream)
    assert fake.pending() == 0
    nccl.check("ncclGroupEnd")
    fake.finish(stream)
    assert value_at(fake, pointer) == 3
    assert np.frombuffer(fake.peek(gathered, 16), np.int32).tolist() == [0, 5, 10, 5]
    assert fake.violations == []
    fails(5, "without ncclGroupStart", nccl.check, "ncclGroupEnd")
    nccl.check("ncclGroupStart")
    fails(4, "null pointer", add_up, nccl, communicator, 0, stream)
    fails(4, "null pointer", nccl.check, "ncclGroupEnd")
    nccl.destroy(communicator)
    return fake.violations


def test_groups() -> None:
    assert [len(violations) for violations in run(2, in_a_group)] == [2, 2]


def two_devices() -> List[str]:
    """Both ranks are in this process, one for each device."""
    fake, nccl, _, _ = opened()
    unique, contexts = nccl.unique_id(), [fake.retain(0), fake.retain(1)]
    communicators, streams, pointers = [], [], []
    nccl.check("ncclGroupStart")
    for rank, context in enumerate(contexts):
        fake.set_context(context)
        communicators.append(nccl.init(unique, 2, rank))
        streams.append(fake.stream())
        pointers.append(fake.alloc(8))
        fake.poke(pointers[rank], np.array([rank + 1, 7], np.int32).tobytes())
    nccl.check("ncclGroupEnd")
    for rank in range(2):
        add_up(nccl, communicators[rank], pointers[rank], streams[rank])
    for rank in range(2):
        with fake.pushed(contexts[rank]):
            fake.finish(streams[rank])
        assert value_at(fake, pointers[rank]) == 3
    assert fake.violations == []
    fails(1, "refused by the driver: error 400", add_up, nccl, communicators[0], pointers[0], streams[1])
    for communicator in communicators:
        nccl.abort(communicator)
    return fake.violations


def test_two_devices_of_a_process() -> None:
    (violations,) = run(1, two_devices, fake={"devices": 2})
    assert len(violations) == 2 and "the stream is of another context" in violations[0]
