"""The fake NCCL objects to what NCCL forbids, and ends what waits: orders, starts, ends, aborts and wrong calls.

No test here is about DDL. What the fake computes is in test_fake_nccl.py.
"""

from __future__ import annotations

import threading
import time
from typing import Any, List, Tuple

import numpy as np
import pytest
import ranks
from device.fake_cuda import DriverError
from device.fake_cuda.scenes import in_thread
from device.fake_nccl import NcclError, library
from device.fake_nccl.jobs import communicator_of_all, each_its_gpu, rank_and_size, shared_id
from device.fake_nccl.nccl import TYPES
from device.fake_nccl_checks import GARBAGE, add_up, fails, opened, run, started, value_at

pytestmark = pytest.mark.processes
SHORT = 0.1  #: seconds of patience with a rank that does not come


@pytest.fixture(scope="module", autouse=True)
def compiled_nccl() -> None:
    """Compile it outside of the tests, which are to be quick."""
    library()


# --- the order of operations ---


def different(what: str) -> List[str]:
    fake, nccl, communicator, stream, pointer = started()
    rank, _ = rank_and_size()
    fake.pause()  # nobody notices before all is launched
    if what == "order" and rank == 1:
        nccl.all_gather(communicator, pointer, fake.alloc(8), 1, "int32", stream)
    count, dtype, op = 2, "int32", "sum"
    if rank == 1:
        count, dtype, op = {"count": (1, dtype, op), "type": (1, "int64", op), "op": (2, dtype, "max")}.get(
            what, (count, dtype, op)
        )
    nccl.all_reduce(communicator, pointer, pointer, count, dtype, op, stream)
    fake.pause(False)
    fake.finish(stream)
    assert fake.peek(pointer, 4) == bytes([GARBAGE] * 4)
    assert nccl.asynchronous_error(communicator) != 0
    fails(5, "can only be aborted", add_up, nccl, communicator, pointer, stream)
    nccl.abort(communicator)
    return fake.violations


@pytest.mark.parametrize(
    ("what", "words"),
    [("order", "all-gather of 1"), ("count", "of 1 elements"), ("type", "type 4"), ("op", "operator 2")],
)
def test_ranks_that_do_not_do_the_same(what: str, words: str) -> None:
    for violations in run(2, different, what):
        assert any(words in text and "all-reduce of 2 elements of type 2" in text for text in violations), violations


def never_launched() -> List[str]:
    fake, nccl, communicator, stream, pointer = started()
    add_up(nccl, communicator, pointer, stream)
    fake.finish(stream)
    ranks.meet()
    if rank_and_size()[0] == 0:
        nccl.patience(SHORT)  # not before what ranks do together
        nccl.reduce_scatter(communicator, pointer, fake.alloc(4), 1, "int32", "sum", stream)
    fake.finish(stream)
    ranks.meet()
    return fake.violations


def test_a_rank_that_never_launches() -> None:
    first, second = run(2, never_launched)
    assert len(first) == 1 and "rank 1 never launched reduce-scatter 2 of communicator " in first[0]
    assert second == []


def never_reached() -> List[str]:
    fake, nccl, communicator, stream, pointer = started()
    word = fake.host(4)
    if rank_and_size()[0] == 1:
        fake.wait_value(stream, word.address, 1)
        add_up(nccl, communicator, pointer, stream)
    ranks.meet()  # rank 1 has launched it
    if rank_and_size()[0] == 0:
        nccl.patience(SHORT)
        add_up(nccl, communicator, pointer, stream)
        fake.finish(stream)
    ranks.meet()
    word.array[:] = 1
    fake.finish(stream)
    return fake.violations


def test_a_stream_that_never_comes_to_it() -> None:
    first, second = run(2, never_reached)
    assert len(first) == 1 and "but its stream never came to it" in first[0] and second == []


def two_communicators(same: bool) -> List[str]:
    fake, nccl, rank, _ = opened()
    communicators = [communicator_of_all(nccl) for _ in range(2)]
    streams, pointers = [fake.stream(), fake.stream()], [fake.alloc(8), fake.alloc(8)]
    for pointer in pointers:
        fake.poke(pointer, np.array([rank + 1, 7], np.int32).tobytes())
    for i in (0, 1) if same or rank == 0 else (1, 0):
        add_up(nccl, communicators[i], pointers[i], streams[i])
    for i in (0, 1):
        fake.finish(streams[i])
        assert value_at(fake, pointers[i]) == 3
        nccl.destroy(communicators[i])
    return fake.violations


def test_communicators_of_a_device_have_the_same_order_on_all_ranks() -> None:
    assert run(2, two_communicators, True) == [[], []]
    violations = [text for texts in run(2, two_communicators, False) for text in texts]
    assert violations and all("launched operation 1 of communicator" in text for text in violations)


def two_threads(how: str) -> List[str]:
    fake, nccl, rank, _ = opened()
    context, communicators = fake.context(), [communicator_of_all(nccl) for _ in range(2)]
    streams, pointers = [fake.stream(), fake.stream()], [fake.alloc(8), fake.alloc(8)]
    both = threading.Barrier(2)

    def launch(i: int) -> None:
        fake.set_context(context)
        if how == "at once":
            both.wait()
        if how == "ordered" and i == 1:
            fake.acquire(12345)
        add_up(nccl, communicators[i], pointers[i], streams[i])
        if how == "ordered" and i == 0:
            fake.release(12345)

    if how == "at once":
        threads = [threading.Thread(target=launch, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for i in range(2):
            in_thread(lambda i=i: launch(i))  # type: ignore[misc]
    for stream in streams:
        fake.finish(stream)
    return [text for text in fake.violations if "before" not in text]


def test_two_threads_at_once() -> None:
    assert all("two threads launch" in texts[0] for texts in run(2, two_threads, "at once", launch=100))
    assert run(2, two_threads, "one by one") == [[], []]


def test_two_threads_whose_order_is_luck() -> None:
    for texts in run(2, two_threads, "one by one", ordered_threads=True):
        assert len(texts) == 1 and "nothing orders these: a launch of communicator" in texts[0]
    assert run(2, two_threads, "ordered", ordered_threads=True) == [[], []]


# --- starting and ending ---


def joining() -> Tuple[int, List[str]]:
    fake, nccl, rank, size = opened()
    config = nccl.config(blocking=0)
    if rank == 0:
        communicator = nccl.init(shared_id(nccl), size, rank, config)
        assert nccl.asynchronous_error(communicator) == 7
        fails(4, "before ncclCommGetAsyncError", add_up, nccl, communicator, fake.alloc(8), 0)
        ranks.meet()
    else:
        unique = shared_id(nccl)
        ranks.meet()
        communicator = nccl.init(unique, size, rank, config)
    assert nccl.settle(communicator) == 0
    pointer, stream = fake.alloc(8), fake.stream()
    fake.poke(pointer, np.array([rank + 1, 7], np.int32).tobytes())
    fake.pause()
    code = nccl.code("ncclAllReduce", pointer, pointer, 2, TYPES["int32"], 0, communicator, stream)
    assert fake.pending() == (0 if code == 7 else 2)
    assert nccl.settle(communicator) == 0 and fake.pending() == 2
    fake.pause(False)
    fake.finish(stream)
    assert value_at(fake, pointer) == 3
    assert nccl.code("ncclAllReduce", pointer, pointer, 2, TYPES["int32"], 0, communicator, stream) == 0
    assert nccl.code("ncclCommFinalize", communicator) == 7
    assert nccl.settle(communicator) == 0 and fake.stream_done(stream)
    fails(4, "finalized", add_up, nccl, communicator, pointer, stream)
    nccl.destroy(communicator)
    fails(4, "destroyed", nccl.asynchronous_error, communicator)
    return code, fake.violations


def test_a_communicator_that_does_not_block() -> None:
    for eager in (False, True):
        (code, violations), (_, others) = run(2, joining, eager=eager)
        assert code == (0 if eager else 7)
        assert len(violations) == 3 and len(others) == 2, (violations, others)


def aborted(notices: bool) -> Tuple[bool, List[str]]:
    fake, nccl, communicator, stream, pointer = started()
    other = fake.alloc(4)
    if rank_and_size()[0] == 0:
        add_up(nccl, communicator, pointer, stream)
        fake.copy_up(other, fake.host(4).address, 4, stream)
        time.sleep(0.05)
        assert not fake.stream_done(stream)
        ranks.meet()
        nccl.abort(communicator)
        fake.finish(stream)
        assert fake.peek(pointer, 8) == bytes([GARBAGE] * 8)
        assert fake.peek(other, 4) == bytes(4)
        assert fake.violations == []
        fails(4, "was aborted", add_up, nccl, communicator, pointer, stream)
        fails(4, "was aborted", nccl.abort, communicator)
        ranks.meet()
        return True, fake.violations
    ranks.meet()
    ranks.meet()
    assert nccl.asynchronous_error(communicator) == 0  # nothing is under way
    add_up(nccl, communicator, pointer, stream)
    error = nccl.asynchronous_error(communicator)
    time.sleep(0.05)
    waits = not fake.stream_done(stream)
    nccl.abort(communicator)
    fake.finish(stream)
    assert error == (6 if notices else 0)
    return waits, fake.violations


def test_an_abort_ends_what_waits() -> None:
    for notices in (True, False):
        first, second = run(2, aborted, notices, notices=notices)
        assert first[0] and len(first[1]) == 2
        assert second == (True, [])


def on_gpus(hosts: bool) -> List[str]:
    fake, nccl, rank, size = opened()
    unique = shared_id(nccl)
    if hosts:
        nccl.destroy(nccl.init(unique, size, rank))
    else:
        fails(5, "Duplicate GPU: rank 0 and rank 1", nccl.init, unique, size, rank)
    return fake.violations


def test_two_ranks_on_a_gpu() -> None:
    def env(host: str) -> Any:
        return each_its_gpu({}, host=host)(0)

    texts = ranks.run(2, on_gpus, False, initialise=False, env=env("a"))
    assert all(len(each) == 1 and "both on device 0" in each[0] for each in texts)
    options: Any = {"initialise": False, "env_of": lambda rank: env(f"host{rank}")}
    assert ranks.run(2, on_gpus, True, **options) == [[], []]
    options["env_of"] = lambda rank: {**env("a"), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    assert ranks.run(2, on_gpus, True, **options) == [[], []]


def alone() -> List[str]:
    fake, nccl, rank, size = opened()
    unique = shared_id(nccl)
    if rank == 0:
        fails(2, "rank 1 never joined", nccl.init, unique, size, rank)
    ranks.meet()
    return fake.violations


def test_a_rank_that_never_joins() -> None:
    first, second = run(2, alone, patience=SHORT)
    assert len(first) == 1 and second == []


# --- wrong calls ---


def wrong_calls() -> None:
    fake, nccl, _, _ = opened()
    unique = nccl.unique_id()
    assert nccl.version() == 22907 and len(unique) == 128 and unique != nccl.unique_id()
    for config in (nccl.config(magic=1), nccl.config(size=8), nccl.config(version=21400), nccl.config(blocking=2)):
        fails(4, "config|blocking", nccl.init, unique, 1, 0, config)
    fails(4, "rank 1 of 1", nccl.init, unique, 1, 1)
    fails(4, "no id", nccl.init, bytes(128), 1, 0)
    fails(4, "null pointer", nccl.check, "ncclGetVersion", None)
    assert len(fake.violations) == 7
    communicator, pointer, stream = nccl.init(unique, 1, 0), fake.alloc(64), fake.stream()
    fails(5, "two ranks 0", nccl.init, unique, 1, 0)
    fails(4, "null pointer", add_up, nccl, communicator, 0, stream)
    fails(4, "null pointer", add_up, nccl, 0, pointer, stream)
    fails(4, "no such communicator", add_up, nccl, 5, pointer, stream)
    fails(4, "overlap", nccl.all_reduce, communicator, pointer, pointer + 4, 2, "int32", "sum", stream)
    fails(4, "multiple", nccl.all_reduce, communicator, pointer + 1, pointer + 33, 2, "int32", "sum", stream)
    fails(4, "no type 10", nccl.check, "ncclAllReduce", pointer, pointer, 1, 10, 0, communicator, stream)
    fails(4, "no operator 5", nccl.check, "ncclAllReduce", pointer, pointer, 1, 0, 5, communicator, stream)
    assert len(fake.violations) == 15
    add_up(nccl, communicator, pointer, stream)
    nccl.all_reduce(communicator, 0, 0, 0, "int32", "sum", stream)  # nothing
    numbers = [nccl._number(entry, communicator) for entry in ("ncclCommCount", "ncclCommUserRank")]
    assert numbers == [1, 0]
    assert nccl.library.ncclGetErrorString(5).startswith(b"invalid usage")
    fake.finish(stream)
    assert len(fake.violations) == 15
    nccl.destroy(communicator)
    fails(4, "destroyed", nccl.destroy, communicator)


def test_wrong_calls() -> None:
    run(1, wrong_calls, version=22907)


def refused_by_the_driver() -> None:
    """Each time the communicator is of no more use."""
    fake, nccl, _, _ = opened()
    stream, pointer = fake.stream(), fake.alloc(8)

    def objection(memory: int, on: int) -> str:
        communicator = communicator_of_all(nccl)
        before = len(fake.violations)
        fails(1, "refused by the driver", add_up, nccl, communicator, memory, on)
        nccl.abort(communicator)
        return fake.violations[before]

    assert "was freed" not in objection(pointer + 4, stream)  # beyond its end
    assert "host memory" in objection(fake.host(8, register=False).address, stream)
    assert "there is no stream" in objection(pointer, 999)
    fake.capture_begin(stream)
    assert "a graph is being captured" in objection(pointer, stream)
    assert fake.capture_end(stream) == 0
    fake.fail(719)
    with pytest.raises(NcclError):
        communicator_of_all(nccl)
    with pytest.raises(DriverError):
        fake.stream()


def test_what_the_driver_refuses() -> None:
    run(1, refused_by_the_driver)


def injected() -> List[str]:
    fake, nccl, communicator, stream, pointer = started()
    nccl.refuse("ncclAllReduce", 3)
    fails(3, "", add_up, nccl, communicator, pointer, stream)
    assert nccl.calls("ncclAllReduce") == 1 and nccl.asynchronous_error(communicator) == 3
    nccl.abort(communicator)
    communicator = communicator_of_all(nccl)
    nccl.refuse("asynchronous", 6)
    assert nccl.asynchronous_error(communicator) == 6
    fails(2, "", nccl.check, "ncclCommDestroy", communicator)
    return fake.violations


def test_injected_errors() -> None:
    assert run(1, injected, refuse={"ncclCommDestroy": 2}) == [[]]
