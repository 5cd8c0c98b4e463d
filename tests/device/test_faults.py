"""What goes wrong with arrays on a GPU: no driver, a driver that refuses, a GPU that fails or stands still, lost ranks.

And the tests of the tests: a wait of DDL's is taken out, and the fake's ledger must object.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, List

import numpy as np
import pytest
import ranks
from device.fake_cuda import Fake
from device.jobs import Interface, array_of, driver, environment, gpu, wait_until_let_go

import ddl

pytestmark = pytest.mark.processes
N = 300_000


def without_a_gpu() -> List[str]:
    class Elsewhere:
        def __dlpack_device__(self) -> Any:
            return 2, 0

        def __dlpack__(self, **options: Any) -> Any:
            raise AssertionError("asked for the memory of an array on a GPU that cannot be used")

    texts = []
    for _ in range(2):
        with pytest.raises(ddl.ResourceError) as caught:
            ddl.allreduce_(Elsewhere())
        texts.append(str(caught.value))
    assert ddl.allreduce(1.0, op="sum") == ddl.size()  # arrays on the CPU work
    return texts


@pytest.mark.parametrize(
    ("library", "word"),
    [("libcuda-that-is-nowhere.so", "cannot be loaded"), ("libc.so.6", "it has no cuInit")],
    ids=["no library", "another library"],
)
def test_without_a_driver_arrays_on_the_cpu_work(library: str, word: str) -> None:
    for texts in ranks.run(2, without_a_gpu, env={"DDL_CUDA_LIBRARY": library}):
        assert all(word in text and library in text and "copy the array to the CPU" in text for text in texts), texts


@pytest.mark.fake_driver("it refuses to start")
@pytest.mark.parametrize(("code", "word"), [(34, "stub"), (100, "sees no GPU"), (3, "cuInit")])
def test_a_driver_that_does_not_start(code: int, word: str) -> None:
    def text_of(answers: List[Any]) -> List[str]:
        return [text for texts in answers for text in texts]

    answers = ranks.run(2, with_refusal, "cuInit", code, env=Fake.environment())
    assert all(word in text for text in text_of(answers)), answers


def with_refusal(entry: str, code: int) -> List[str]:
    fake = Fake(reset=False, start=False)
    fake.refuse(entry, code)
    return without_a_gpu()


def memory_that_cannot_be_registered() -> int:
    fake = Fake(reset=False)
    values = np.full(N, ddl.rank() + 1, np.float32)
    x, y = array_of(fake, values), array_of(fake, values)
    fake.refuse("cuMemHostRegister_v2", 800)
    with pytest.warns(RuntimeWarning, match="NOT_PERMITTED.*slower way") as caught:
        ddl.allreduce_(x, op="sum")
        ddl.allreduce_(y, op="sum")
    assert (x.numpy() == 3).all() and (y.numpy() == 3).all()
    return len(caught)


@pytest.mark.fake_driver("it refuses to register")
def test_memory_that_cannot_be_registered_is_a_warning() -> None:
    assert ranks.run(2, memory_that_cannot_be_registered, env=Fake.environment(strict=False)) == [1, 1]


def during_a_capture() -> None:
    with gpu() as fake:
        stream = fake.stream()
        x = array_of(fake, np.ones(100, np.float32), stream=stream)
        x.interface_stream = stream
        fake.finish(stream)
        fake.capture_begin(stream)
        with pytest.raises(ddl.InvalidState, match="CUDA graph is being captured"):
            ddl.allreduce_(Interface(x))
        assert fake.capture_end(stream) == 0  # it is still valid
        assert (ddl.allreduce_(Interface(x), op="sum").array.numpy() == ddl.size()).all()


def test_a_call_during_a_capture_is_refused_and_spoils_nothing() -> None:
    ranks.run(2, during_a_capture, env=environment())


def refused_in_passing(entry: str, code: int) -> None:
    """A call that is refused is this rank's own error, and the same call can be made again."""
    with gpu() as fake:
        x = array_of(fake, np.full(3_000_001, ddl.rank() + 1, np.float32))
        ddl.allreduce_(x, op="max")
        if ddl.rank() == 1:
            fake.refuse(entry, code, 1)
            with pytest.raises(ddl.ResourceError, match=rf"GPU 0: {entry}: .*\({code}\)$"):
                ddl.allreduce_(x, op="sum")
        assert ddl.allreduce_(x, op="sum") is x
        assert (x.numpy() == 4).all()
        wait_until_let_go(x)
        assert x.released == len(x.requested)


@pytest.mark.parametrize(
    ("entry", "code"),
    [("cuMemcpyDtoHAsync_v2", 2), ("cuMemcpyDtoHAsync_v2", 1), ("cuStreamWriteValue32_v2", 400)],
)
@pytest.mark.fake_driver("it refuses a call")
def test_a_refused_call_is_an_error_of_this_rank_alone(entry: str, code: int) -> None:
    ranks.run(2, refused_in_passing, entry, code, env=Fake.environment())


def captured_by_dlpack() -> None:
    """The owner of an array makes a stream of DDL's a part of a capture: no later call is the worse for it."""
    with gpu() as fake:
        stream = fake.stream()
        x = array_of(fake, np.ones(100, np.float32), stream=stream)
        y = array_of(fake, np.ones(100, np.float32))
        fake.finish(stream)
        for _ in range(2):
            fake.capture_begin(stream)
            with pytest.raises(ddl.InvalidState, match="CUDA graph is being captured"):
                ddl.allreduce_(x)
            ddl.allreduce_(y)
            fake.capture_end(stream)
            assert (y.numpy() == 1).all()  # to look takes calls that this thread may not make in a capture
        assert (ddl.allreduce_(x, op="sum").numpy() == ddl.size()).all()


def test_a_capture_cannot_take_the_streams_of_other_calls() -> None:
    ranks.run(2, captured_by_dlpack, env=environment())


def on_one_that_fails(after: int) -> List[str]:
    fake = Fake(reset=False)
    arrays = [array_of(fake, np.ones(N, np.float32)) for _ in range(4)]
    for x in arrays:
        ddl.allreduce_(x)  # the first transfers are in order
    ranks.meet()
    if ddl.rank() == 1:
        fake.fail(700, after)
    texts = []
    for _ in range(2):  # sticky: the same error again
        with pytest.raises(ddl.Error) as caught:
            for x in arrays:
                ddl.allreduce_(x)
        texts.append(str(caught.value))
    return texts


@pytest.mark.fake_driver("it fails when the test says so")
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_gpu_that_fails_is_named_on_all_ranks(after: int) -> None:
    for texts in ranks.run(3, on_one_that_fails, after, env=Fake.environment()):
        assert all("GPU 0" in text and "ILLEGAL_ADDRESS (700)" in text for text in texts), texts


def on_one_that_stands_still() -> List[Any]:
    """The deadline is that of rank 0; when it begins, the other rank has called, too."""
    fake = Fake(reset=False)
    x = array_of(fake, np.ones(N, np.float32))
    ddl.allreduce_(x)
    if ddl.rank() == 1:
        fake.pause()
        work = ddl.allreduce_async_(x)
    ranks.meet()
    with pytest.raises(ddl.CollectiveTimeout) as caught:
        if ddl.rank() == 0:
            ddl.world().set_timeout(1.0)
            work = ddl.allreduce_async_(x)
        work.wait()
    ddl.shutdown()  # it waits for no GPU: a call of the driver that does is a violation
    return [str(caught.value), list(fake.violations)]


@pytest.mark.fake_driver("it stands still when the test says so")
@pytest.mark.slow
def test_a_gpu_that_stands_still_is_a_timeout() -> None:
    for text, violations in ranks.run(2, on_one_that_stands_still, env=Fake.environment()):
        assert "allreduce" in text and "rank 1" in text, text  # the one whose GPU stands still
        assert violations == []


def loses_a_rank() -> str:
    fake = driver()
    arrays = [array_of(fake, np.ones(N, np.float32)) for _ in range(3)]
    for x in arrays:
        ddl.allreduce_(x)
    ranks.meet()
    if ddl.rank() == 1:
        time.sleep(0.2)  # so that the others have their operations under way, mostly
        os.kill(os.getpid(), signal.SIGKILL)
    works: List[ddl.Work] = []
    texts = []
    for number in range(len(arrays)):
        with pytest.raises(ddl.PeerLost) as caught:
            works = works or [ddl.allreduce_async_(each) for each in arrays]
            works[number].wait()
        texts.append(str(caught.value))
    ddl.shutdown()
    assert fake.violations == [] and all("lost rank 1" in text for text in texts)
    assert all(x.released == len(x.requested) for x in arrays)  # all are let go
    return "named"


@pytest.mark.faults
def test_a_lost_rank_is_named_and_arrays_are_let_go() -> None:
    first, died, third = ranks.run(3, loses_a_rank, env=environment(), may_die=[1])
    assert first == third == "named" and died == -signal.SIGKILL


def without(entry: str) -> List[str]:
    """Make some all-reduces while calls of ``entry`` say that they have worked and do nothing."""
    fake = Fake(reset=False)
    stream = fake.stream()
    arrays = [array_of(fake, np.ones(N, np.float32), stream=stream) for _ in range(3)]
    for x in arrays:
        x.interface_stream = stream
        ddl.allreduce_(Interface(x))
    assert fake.violations == []
    fake.refuse(entry, 0)
    for x in arrays:
        x.set(1.0)
        ddl.allreduce_(Interface(x))
    fake.refuse(entry, 0, 0)
    return list(fake.violations)


def words_too_early() -> List[str]:
    fake = Fake(reset=False)
    x = array_of(fake, np.ones(N, np.float32))
    ddl.allreduce_(x)
    assert fake.violations == []
    fake.option("early_words")
    fake.pause()
    work = ddl.allreduce_async_(x)
    fake.until(lambda: fake.violations != [])  # the lane reads what is not there yet
    fake.pause(False)
    work.wait()
    return list(fake.violations)


@pytest.mark.fake_driver("it has a ledger")
def test_the_ledger_objects_if_a_word_does_not_come_behind_its_piece() -> None:
    for violations in ranks.run(2, words_too_early, env=Fake.environment()):
        assert any("lane" in text and "cuMemcpyDtoHAsync_v2" in text for text in violations), violations


def received_without_a_wait() -> List[str]:
    """An array that is only written, while what its owner has queued still writes it, too."""
    fake = Fake(reset=False)
    stream = fake.stream()
    ddl.broadcast_(array_of(fake, np.ones(N, np.float32), stream=stream), 0)
    assert fake.violations == []
    fake.refuse("cuStreamWaitEvent", 0)
    ddl.broadcast_(array_of(fake, np.ones(N, np.float32), stream=stream), 0)
    return list(fake.violations)


@pytest.mark.fake_driver("it has a ledger")
def test_the_ledger_objects_if_a_received_array_is_not_waited_for() -> None:
    assert all(ranks.run(2, received_without_a_wait, env=Fake.environment()))


def during_a_capture_elsewhere() -> None:
    """A stream that has nothing to do with DDL is captured, in the strictest mode: calls go on, and it stays valid."""
    with gpu() as fake:
        captured = fake.stream()
        x = array_of(fake, np.full(N, ddl.rank() + 1, np.float32), stream=fake.stream())
        for mode in (0, 1, 2):
            fake.capture_begin(captured, mode)
            ddl.allreduce_(Interface(x), op="max")
            ddl.allreduce_async_(x, op="max").wait()
            assert fake.capture_end(captured) == 0
        assert (x.numpy() == ddl.size()).all()


@pytest.mark.fake_driver("it captures without a framework")
def test_a_capture_elsewhere_survives() -> None:
    ranks.run(2, during_a_capture_elsewhere, env=Fake.environment())


def without_heed_of_captures(entry: str) -> bool:
    """The test of the test: calls of ``entry`` do nothing. Return whether a capture was spoilt, or was not refused."""
    fake = Fake(reset=False)
    fake.refuse(entry, 0)
    stream = fake.stream()
    x = array_of(fake, np.ones(N, np.float32), stream=stream)
    x.interface_stream = stream
    fake.finish(stream)
    ddl.allreduce_(np.ones(N, np.float32))  # connects; of the GPU, the call below is the first one
    ranks.meet()
    ddl.world().set_timeout(1.0)  # copies that became a part of the graph never run
    captured = stream if entry == "cuStreamIsCapturing" else fake.stream()
    fake.capture_begin(captured)
    try:
        ddl.allreduce_(Interface(x))
    except ddl.Error as error:
        return "graph is being captured" not in str(error)
    return fake.capture_end(captured) != 0 or fake.violations != []


@pytest.mark.fake_driver("it refuses calls")
@pytest.mark.parametrize("entry", ["cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"])
def test_without_heed_of_captures_it_is_noticed(entry: str) -> None:
    assert ranks.run(2, without_heed_of_captures, entry, env=Fake.environment()) == [True, True]


def leaves_its_context(entry: str) -> bool:
    fake = Fake(reset=False)
    fake.set_context(0)
    x = None
    with fake.pushed(fake.retain()):
        x = array_of(fake, np.ones(N, np.float32))
        x.interface_stream = 1
    fake.refuse(entry, 0)
    ddl.allreduce_(Interface(x))
    fake.refuse(entry, 0, 0)
    return fake.context() == 0


@pytest.mark.fake_driver("it refuses calls")
def test_a_context_that_stays_is_noticed() -> None:
    assert ranks.run(2, leaves_its_context, "cuCtxPopCurrent_v2", env=Fake.environment()) == [False, False]
    assert ranks.run(2, leaves_its_context, "cuStreamQuery", env=Fake.environment()) == [True, True]


@pytest.mark.fake_driver("it has a ledger")
@pytest.mark.parametrize("entry", ["cuStreamWaitEvent", "cuEventQuery"])
def test_the_ledger_objects_if_a_wait_is_taken_out(entry: str) -> None:
    for violations in ranks.run(2, without, entry, env=Fake.environment()):
        assert violations
